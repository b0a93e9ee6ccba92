//! `/proc/self/status` and lists of NUMA nodes: no input panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_sys::proc::{node, status};

fuzz_target!(|text: &[u8]| {
    let _: Result<_, _> = status::parse(text);
    // Each range of a list may name 65536 nodes.
    if text.len() < 256 {
        let _: Result<_, _> = node::parse_list(text);
    }
});

//! The functions for kernels in C, called at random: every answer is the model's, and so is every translation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_paging_capi::fuzzing::play;

fuzz_target!(|input: &[u8]| {
    if let Err(reason) = play(input) {
        panic!("{reason}");
    }
});

//! `/proc/self/smaps`: no input panics, and a mapping's figures never wrap.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_sys::pages::smaps::Entries;

fuzz_target!(|text: &[u8]| {
    for entry in Entries::new(text).map_while(Result::ok) {
        assert!(entry.pmd_mapped() >= entry.shmem_pmd_mapped);
        assert!(entry.map.end > entry.map.start);
    }
});

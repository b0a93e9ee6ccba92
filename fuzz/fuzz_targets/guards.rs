//! Guards of frozen memory, compared with the kernel: they do what it does to ordinary memory with the same contents.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_fork::fuzzing::compare_guards_with_the_kernel;

fuzz_target!(|program: &[u8]| {
    if let Err(reason) = compare_guards_with_the_kernel(program) {
        panic!("{reason}");
    }
});

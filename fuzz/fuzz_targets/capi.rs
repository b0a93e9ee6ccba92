//! The functions for C, called at random: every answer is the model's, and every byte stays where it was put.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_capi::fuzzing::play;

fuzz_target!(|input: &[u8]| {
    if let Err(reason) = play(input) {
        panic!("{reason}");
    }
});

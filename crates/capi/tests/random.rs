//! Some thousand random calls of the functions for C, as the fuzz target `capi` makes them; and a panic in each.

mod declared;
mod panics;

use palimpsest_capi::fuzzing::play;

/// Returns bytes that are the same in each run: xorshift.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[test]
fn random_calls_get_the_answers_of_the_model() {
    for seed in 1..=24 {
        if let Err(reason) = play(&bytes(seed, 1000)) {
            panic!("seed {seed}: {reason}");
        }
    }
}

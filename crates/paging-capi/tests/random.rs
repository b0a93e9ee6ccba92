//! Some thousand random calls of the functions for C, as the fuzz target `paging_capi` makes them.
//!
//! Mutants that it has found: a drop leaves the name; a copy of a space elsewhere counts as one; a flush of all
//! addresses is not sent; a flush says nothing of tables; only the first range is flushed; a query forgets sharing; a
//! size of results is not checked; a change by user mode reaches the kernel's pages; a fork takes its parent's id.
//! `PALIMPSEST_SEEDS=2000` plays more.

use palimpsest_paging_capi::fuzzing::play;

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
    let seeds = std::env::var("PALIMPSEST_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(40);
    for seed in 1..=seeds {
        if let Err(reason) = play(&bytes(seed, 1200)) {
            panic!("seed {seed}: {reason}");
        }
    }
}

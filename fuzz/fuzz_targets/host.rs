//! The fuzzer's side of the fork server: whatever a server says, leaves unsaid or hangs on, each run ends as it did,
//! the next request says whether the last worker was killed, and a server that is gone is an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use palimpsest_forkserver::HostError;
use palimpsest_forkserver::fuzzing::{Step, runs};
use palimpsest_forkserver::host::Run;

/// How many runs: each takes processes. Runs beyond the input are drawn from it.
const RUNS: usize = 6;

fn steps(bytes: &[u8]) -> Vec<Step> {
    let (chunks, _) = bytes.as_chunks::<4>();
    let step = |&[kind, low, high, more]: &[u8; 4]| {
        // Statuses that `wait(2)` makes, and any others.
        let status = match kind >> 3 & 3 {
            0 => i32::from(low) << 8,
            1 => i32::from(low & 0x7f),
            2 => i32::from(low) << 8 | 0x7f,
            _ => i32::from_ne_bytes([low, high, more, 0]),
        };
        match kind & 7 {
            0..=2 => Step::Tells { status },
            3 => Step::TellsOfNobody { worker: if more & 1 == 0 { 0 } else { 0x8000_0000 | u32::from(low) }, status },
            4..=5 => Step::Hangs,
            _ => Step::Leaves { bytes: low & 7, exits: high & 1 == 0 },
        }
    };
    let mut seed = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    let drawn = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let [.., first, second, third, fourth] = seed.to_le_bytes();
        [first, second, third, fourth]
    });
    chunks.iter().copied().chain(drawn).take(RUNS).map(|chunk| step(&chunk)).collect()
}

/// How to read a wait status (`wait(2)`), written a second time.
fn meaning(status: i32) -> Run {
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, 0) | (0x7f, _) => Run::Returned,
        (0, code) => Run::Exited { code },
        (9, _) => Run::Killed,
        (signal, _) => Run::Signalled { signal },
    }
}

fuzz_target!(|bytes: &[u8]| {
    let steps = steps(bytes);
    let ended = runs(&steps).expect("pipes and processes");
    for (number, (step, run)) in steps.iter().zip(&ended).enumerate() {
        let is_right = match (step, run) {
            (Step::Tells { status } | Step::TellsOfNobody { status, .. }, Ok(run)) => *run == meaning(*status),
            (Step::Hangs, Ok(run)) => *run == Run::TimedOut,
            // It has left no reason where reasons lie.
            (Step::Leaves { exits: true, .. }, Err(HostError::SetUp { .. })) => true,
            (Step::Leaves { exits: false, .. }, Err(HostError::ServerGone)) => true,
            _ => false,
        };
        assert!(is_right, "run {number}, {step:?}: {run:?}");
    }
    let until = steps.iter().position(|step| matches!(step, Step::Leaves { .. })).map_or(steps.len(), |last| last + 1);
    assert_eq!(ended.len(), until);
});

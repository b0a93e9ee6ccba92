//! An oracle: a program of memory operations shows the same memory and gets the same answers whether it is frozen or
//! not.
//!
//! | module | holds |
//! |---|---|
//! | `program` | operations, and how bytes become a program |
//! | `interpreter`, `family` | a process that runs one: its memory, its children |
//! | `calls` | its system calls: plain, guarded as the preload object does it, or guarded wrongly on purpose |
//! | `memory` | what its memory looks like |
//! | `run` | starting it and comparing two runs |
//!
//! `PALIMPSEST_ORACLE_PROGRAMS` is the number of programs, `PALIMPSEST_ORACLE_SEED` chooses them, and
//! `PALIMPSEST_ORACLE_REPLAY` runs the one that a failure has printed.

mod calls;
mod family;
mod interpreter;
mod memory;
mod program;
mod run;

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::calls::World;
use crate::program::{Code, Program};

/// Programs per test; each takes some 50 ms here.
const PROGRAMS: u32 = 300;

/// Programs after which a missing guard must have been noticed.
const MUTANT_PROGRAMS: u32 = 200;

/// Codes of `Map` and `Write` whose areas are private, anonymous, readable and writable, so that a freeze finds
/// something.
fn any_area() -> impl Strategy<Value = [Code; 2]> {
    (0..6_u8, any::<u8>(), any::<u8>())
        .prop_map(|(slot, len, byte)| [[0, slot, len, 0, 0, 0], [38, slot, 0, 0, 0, byte & !3]])
}

/// Areas with something in them, operations, a freeze, operations.
fn any_program() -> impl Strategy<Value = Program> {
    (vec(any_area(), 1..5), vec(any::<Code>(), 0..8), vec(any::<Code>(), 0..30)).prop_map(|(areas, before, after)| {
        Program(areas.concat().into_iter().chain(before).chain([[63; 6]]).chain(after).collect())
    })
}

fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, which is no number")),
        Err(_) => default,
    }
}

/// Runs programs in both worlds until they differ; the smallest that does, or the first with a mutant, and what
/// differs.
fn hunt(programs: u32, world: World, frozen: &Cell<usize>) -> Result<(), TestError<Program>> {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&setting("PALIMPSEST_ORACLE_SEED", 1_u64).to_le_bytes());
    // Nobody reads the smallest program that shows a mutant.
    let max_shrink_iters = if world == World::Mutant { 0 } else { 300 };
    let config = Config { cases: programs, failure_persistence: None, max_shrink_iters, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed));
    runner.run(&any_program(), |program| compare(&program, world, frozen))
}

fn compare(program: &Program, world: World, frozen: &Cell<usize>) -> Result<(), TestCaseError> {
    let other = run::run(program, world);
    frozen.set(frozen.get() + other.frozen);
    if world == World::Frozen && !other.complaints.is_empty() {
        return Err(TestCaseError::fail(format!("it complains: {:?}", other.complaints)));
    }
    let plain = run::run(program, World::Plain);
    run::difference(&plain, &other).map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
}

#[test]
fn frozen_programs_run_as_plain_ones() {
    let frozen = Cell::new(0);
    if let Ok(program) = std::env::var("PALIMPSEST_ORACLE_REPLAY") {
        let program = Program::from_hex(&program).expect("a program as a failure prints it");
        println!("{program:?}");
        compare(&program, World::Frozen, &frozen).unwrap_or_else(|error| panic!("{error}"));
        return;
    }
    match hunt(setting("PALIMPSEST_ORACLE_PROGRAMS", PROGRAMS), World::Frozen, &frozen) {
        Ok(()) => assert_ne!(frozen.get(), 0, "nothing was ever frozen, so nothing was compared"),
        Err(TestError::Fail(reason, program)) => panic!("{program:?}{reason}"),
        Err(abort) => panic!("{abort}"),
    }
}

#[test]
fn a_missing_guard_is_noticed() {
    let frozen = Cell::new(0);
    let caught = hunt(MUTANT_PROGRAMS, World::Mutant, &frozen);
    let Err(TestError::Fail(reason, program)) = caught else {
        panic!(
            "discarded memory shows the bytes of the freeze, and {MUTANT_PROGRAMS} programs have not seen it: {caught:?}"
        );
    };
    println!("caught by {program:?}{reason}");
}

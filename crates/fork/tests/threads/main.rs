//! An oracle of threads: a program of several threads that write, discard, move and replace memory, fork, and start and
//! end other threads finds the same in it whether slices freeze or gather it meanwhile, or nobody does.
//!
//! Each thread knows what its memory must hold, and has its children look, too; what all threads have counted together
//! is summed up. So nothing depends on who comes first. The process's first thread takes slices all the time, with a
//! step of some other thread between any two; forks of the others take more.
//!
//! | module | holds |
//! |---|---|
//! | `program` | operations, and how bytes become a program |
//! | `interpreter` | a process that runs one, and takes slices |
//! | `worker` | a thread: its memory, what that must hold, and what it does |
//! | `calls` | the calls that the library answers for: plain, or as the preload object makes them |
//! | `run`, `world`, `hunt` | starts it, compares two runs, and makes up programs, as in the oracle of memory |
//!
//! `PALIMPSEST_THREADS_PROGRAMS` sets the number of programs, `PALIMPSEST_THREADS_SEED` chooses them, and
//! `PALIMPSEST_THREADS_REPLAY` runs one that a failure has printed; run it some hundred times.

mod calls;
#[path = "../oracle/hunt.rs"]
mod hunt;
mod interpreter;
mod program;
#[path = "../oracle/run.rs"]
mod run;
mod worker;
#[path = "../oracle/world.rs"]
mod world;

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::calls::World;
use crate::hunt::Hunt;
use crate::program::{Code, Program};
use crate::world::{BUDGETS, LEAST, ungathered};

/// Programs per test, each of which takes some 300 ms on the machine of the records; and at each budget.
const PROGRAMS: u32 = 10;
const BUDGETED_PROGRAMS: u32 = 1;

/// A missing guard must be noticed within this many programs.
const MUTANT_PROGRAMS: u32 = 100;

fn any_program() -> impl Strategy<Value = Program> {
    vec(any::<Code>(), 24..90).prop_map(Program)
}

fn compare(program: &Program, world: World, frozen: &Cell<usize>) -> Result<(), TestCaseError> {
    let other = run::run(program, world);
    frozen.set(frozen.get() + other.frozen);
    let plain = run::run(program, World::Plain);
    run::difference(&plain, &other).map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
}

/// Whatever is found once may not be found again: hardly worth looking for a smaller program.
fn hunt(programs: u32) -> Hunt {
    Hunt { of: "THREADS", programs, usual: PROGRAMS, shrinks: 30 }
}

fn say_what_is_not_gathered() {
    if let Some(reason) = ungathered() {
        println!("partly skipped: nothing is gathered here, and everything is frozen: {reason}");
    }
}

#[test]
fn threads_find_what_they_would_while_all_is_frozen_again_and_again() {
    hunt(PROGRAMS).finds_none(&any_program(), compare);
}

#[test]
fn threads_find_what_they_would_while_slices_freeze() {
    hunt(PROGRAMS).finds_none_in(World::Sliced, &any_program(), compare);
}

#[test]
fn threads_find_what_they_would_while_slices_gather() {
    say_what_is_not_gathered();
    hunt(PROGRAMS).finds_none_in(World::Gathered(LEAST), &any_program(), compare);
}

#[test]
fn threads_find_what_they_would_while_deputies_gather() {
    say_what_is_not_gathered();
    hunt(PROGRAMS).finds_none_in(World::Deputed(LEAST), &any_program(), compare);
}

#[test]
fn threads_find_what_they_would_at_any_budget() {
    say_what_is_not_gathered();
    for budget in BUDGETS {
        for world in [World::Budgeted(budget), World::Gathered(budget), World::Deputed(budget)] {
            hunt(BUDGETED_PROGRAMS).finds_none_in(world, &any_program(), compare);
        }
    }
}

/// Slices that hold nobody are among the mutants of `docs/records/2026-11-25-freeze`: whether somebody writes while one
/// copies is up to the kernel.
#[test]
fn a_missing_guard_is_noticed() {
    let seen = hunt(MUTANT_PROGRAMS).catches("discarded memory shows the bytes of the freeze", &any_program(), compare);
    assert!(seen.contains("Discard"), "{seen}");
}

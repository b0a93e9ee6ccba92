//! An oracle: a program of memory operations shows the same memory and gets the same answers whether it is frozen or
//! not.
//!
//! | module | holds |
//! |---|---|
//! | `program` | operations, and how bytes become a program |
//! | `interpreter`, `family` | a process that runs one: its memory, its children |
//! | `calls` | its system calls: plain, guarded as the preload object does it, or guarded wrongly on purpose |
//! | `memory` | what its memory looks like |
//! | `run`, `world` | starts it, and compares two runs |
//! | `hunt` | makes up programs until two runs differ |
//!
//! `PALIMPSEST_ORACLE_PROGRAMS` sets the number of programs, `PALIMPSEST_ORACLE_SEED` chooses them, and
//! `PALIMPSEST_ORACLE_REPLAY` runs one that a failure has printed.

mod calls;
mod family;
mod hunt;
mod interpreter;
mod memory;
mod program;
mod run;
mod world;

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::calls::World;
use crate::hunt::Hunt;
use crate::program::{Code, Program, WIDE};
use crate::world::{BUDGETS, LEAST, ungathered};

/// Programs per test; each takes some 50 ms on the machine of the records.
const PROGRAMS: u32 = 300;

/// Programs at each budget of slices.
const BUDGETED_PROGRAMS: u32 = 10;

/// A missing guard must be noticed within this many programs.
const MUTANT_PROGRAMS: u32 = 200;

/// Programs at each budget of slices that gather.
const GATHERED_AT_BUDGETS: u32 = 2;

/// Programs with wide areas, whose memory is gathered.
const GATHERED_PROGRAMS: u32 = 30;

/// Codes of `Map` and `Write` whose areas are private, anonymous, readable and writable, so that a freeze finds
/// something. `room` is an argument of `Map`.
fn any_area(room: u8) -> impl Strategy<Value = [Code; 2]> {
    (0..6_u8, any::<u8>(), any::<u8>())
        .prop_map(move |(slot, len, byte)| [[0, slot, len, 0, room, 0], [38, slot, 0, 0, 0, byte & !3]])
}

/// Areas with something in them, operations, a freeze, operations.
fn any_program() -> impl Strategy<Value = Program> {
    any_program_with(0)
}

/// The same, in which most areas have whole pieces of 2 MiB.
fn any_wide_program() -> impl Strategy<Value = Program> {
    any_program_with(WIDE)
}

fn any_program_with(room: u8) -> impl Strategy<Value = Program> {
    let parts = (vec(any_area(room), 1..5), vec(any::<Code>(), 0..8), vec(any::<Code>(), 0..30));
    parts.prop_map(|(areas, before, after)| {
        Program(areas.concat().into_iter().chain(before).chain([[63; 6]]).chain(after).collect())
    })
}

fn hunt(programs: u32, shrinks: u32) -> Hunt {
    Hunt { of: "ORACLE", programs, usual: PROGRAMS, shrinks }
}

/// Says why nothing is gathered here, if that is so.
fn say_what_is_not_gathered() {
    if let Some(reason) = ungathered() {
        println!("partly skipped: nothing is gathered here, and everything is frozen: {reason}");
    }
}

fn compare(program: &Program, world: World, frozen: &Cell<usize>) -> Result<(), TestCaseError> {
    let other = run::run(program, world);
    frozen.set(frozen.get() + other.frozen);
    if world != World::Mutant && !other.complaints.is_empty() {
        return Err(TestCaseError::fail(format!("it complains: {:?}", other.complaints)));
    }
    let plain = run::run(program, World::Plain);
    run::difference(&plain, &other).map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
}

#[test]
fn frozen_programs_run_as_plain_ones() {
    hunt(PROGRAMS, 300).finds_none(&any_program(), compare);
}

#[test]
fn programs_that_are_frozen_in_slices_run_as_plain_ones() {
    hunt(PROGRAMS, 300).finds_none_in(World::Sliced, &any_program(), compare);
}

#[test]
fn programs_that_are_frozen_at_any_budget_run_as_plain_ones() {
    for microseconds in BUDGETS {
        let hunt = hunt(BUDGETED_PROGRAMS, 300);
        hunt.finds_none_in(World::Budgeted(microseconds), &any_program(), compare);
    }
}

#[test]
fn programs_that_are_gathered_run_as_plain_ones() {
    say_what_is_not_gathered();
    let hunt = hunt(GATHERED_PROGRAMS, 300);
    hunt.finds_none_in(World::Gathered(LEAST), &any_wide_program(), compare);
}

/// Deputies are at work or done, as it comes.
#[test]
fn programs_that_deputies_gather_run_as_plain_ones() {
    say_what_is_not_gathered();
    let hunt = hunt(GATHERED_PROGRAMS, 300);
    hunt.finds_none_in(World::Deputed(LEAST), &any_wide_program(), compare);
}

#[test]
fn programs_that_are_gathered_at_any_budget_run_as_plain_ones() {
    say_what_is_not_gathered();
    let worlds = BUDGETS.into_iter().flat_map(|budget| [World::Gathered(budget), World::Deputed(budget)]);
    for world in worlds {
        let hunt = hunt(GATHERED_AT_BUDGETS, 300);
        hunt.finds_none_in(world, &any_wide_program(), compare);
    }
}

#[test]
fn a_missing_guard_is_noticed() {
    let hunt = hunt(MUTANT_PROGRAMS, 0);
    hunt.catches("discarded memory shows the bytes of the freeze", &any_program(), compare);
}

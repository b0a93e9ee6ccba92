//! An oracle: a program of memory operations shows the same memory and gets the same answers whether it is frozen or
//! not.
//!
//! | module | holds |
//! |---|---|
//! | `program` | operations, and how bytes become a program |
//! | `interpreter`, `family` | a process that runs one: its memory, its children |
//! | `calls` | its system calls: plain, guarded as the preload object does it, or guarded wrongly on purpose |
//! | `memory` | what its memory looks like |
//! | `run`, `world`, `compare` | starts it, and compares two runs |
//! | `hunt` | makes up programs until two runs differ |
//!
//! `PALIMPSEST_ORACLE_PROGRAMS` sets the number of programs, `PALIMPSEST_ORACLE_SEED` chooses them, and
//! `PALIMPSEST_ORACLE_REPLAY` runs one that a failure has printed.

mod calls;
mod compare;
mod family;
mod hunt;
mod interpreter;
mod memory;
mod program;
mod run;
mod world;

use crate::calls::World;
use crate::compare::compare;
use crate::hunt::Hunt;
use crate::program::{WIDE, any_program};
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

fn hunt(programs: u32, shrinks: u32) -> Hunt {
    Hunt { of: "ORACLE", programs, usual: PROGRAMS, shrinks }
}

/// Says why nothing is gathered here, if that is so.
fn say_what_is_not_gathered() {
    if let Some(reason) = ungathered() {
        println!("partly skipped: nothing is gathered here, and everything is frozen: {reason}");
    }
}

#[test]
fn frozen_programs_run_as_plain_ones() {
    hunt(PROGRAMS, 300).finds_none(&any_program(0), compare);
}

#[test]
fn programs_that_are_frozen_in_slices_run_as_plain_ones() {
    hunt(PROGRAMS, 300).finds_none_in(World::Sliced, &any_program(0), compare);
}

#[test]
fn programs_that_are_frozen_at_any_budget_run_as_plain_ones() {
    for microseconds in BUDGETS {
        let hunt = hunt(BUDGETED_PROGRAMS, 300);
        hunt.finds_none_in(World::Budgeted(microseconds), &any_program(0), compare);
    }
}

#[test]
fn programs_that_are_gathered_run_as_plain_ones() {
    say_what_is_not_gathered();
    let hunt = hunt(GATHERED_PROGRAMS, 300);
    hunt.finds_none_in(World::Gathered(LEAST), &any_program(WIDE), compare);
}

/// Deputies are at work or done, as it comes.
#[test]
fn programs_that_deputies_gather_run_as_plain_ones() {
    say_what_is_not_gathered();
    let hunt = hunt(GATHERED_PROGRAMS, 300);
    hunt.finds_none_in(World::Deputed(LEAST), &any_program(WIDE), compare);
}

#[test]
fn programs_that_are_gathered_at_any_budget_run_as_plain_ones() {
    say_what_is_not_gathered();
    let worlds = BUDGETS.into_iter().flat_map(|budget| [World::Gathered(budget), World::Deputed(budget)]);
    for world in worlds {
        let hunt = hunt(GATHERED_AT_BUDGETS, 300);
        hunt.finds_none_in(world, &any_program(WIDE), compare);
    }
}

#[test]
fn a_missing_guard_is_noticed() {
    let hunt = hunt(MUTANT_PROGRAMS, 0);
    hunt.catches("discarded memory shows the bytes of the freeze", &any_program(0), compare);
}

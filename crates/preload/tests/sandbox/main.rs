//! The oracle of sandboxes through the object: what a process can reach and do is the same whether the object is
//! preloaded or not.
//!
//! The oracle of `palimpsest-fork` asks the guards itself, and says when it installs a filter. Here programs make their
//! calls by every name that the C library has for them, as a sandboxed worker does.
//!
//! | module | holds |
//! |---|---|
//! | `calls` | the calls of a program, by all their names |
//! | `names`, `world`, `hunt`, `run` | as in the oracle of memory |
//! | the others, which are links | as in `palimpsest-fork` |
//!
//! `PALIMPSEST_SANDBOX_PROGRAMS` sets the number of programs, `PALIMPSEST_SANDBOX_SEED` chooses them, and
//! `PALIMPSEST_SANDBOX_REPLAY` runs one that a failure has printed.

mod calls;
#[path = "../oracle/hunt.rs"]
mod hunt;
mod interpreter;
#[path = "../oracle/names.rs"]
mod names;
mod probe;
mod program;
#[path = "../oracle/run.rs"]
mod run;
#[path = "../oracle/world.rs"]
mod world;

use std::cell::Cell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::calls::World;
use crate::hunt::Hunt;
use crate::program::{Code, Program};

/// Programs per test; each takes some 100 ms on the machine of the records, twice.
const PROGRAMS: u32 = 60;

/// Programs whose slices come in waits, or whose memory is gathered.
const SLICED_PROGRAMS: u32 = 25;

/// A superfluous descriptor must be noticed within this many programs.
const MUTANT_PROGRAMS: u32 = 20;

/// Microseconds of a slice.
const SLICE: u32 = 300;

/// Codes of operations; see `program`.
const FREEZE: u8 = 22;
const FORK: u8 = 25;

/// Operations, a fork for which the object freezes, operations, and a fork whose child goes on.
fn any_program() -> impl Strategy<Value = Program> {
    (vec(any::<Code>(), 0..4), vec(any::<Code>(), 0..8), vec(any::<Code>(), 0..6)).prop_map(|(before, after, child)| {
        let (freeze, fork) = ([FREEZE, 0, 0, 0], [FORK, 7, 0, 0]);
        Program(before.into_iter().chain([freeze]).chain(after).chain([fork]).chain(child).collect())
    })
}

fn compare(program: &Program, world: World, frozen: &Cell<usize>) -> Result<(), TestCaseError> {
    let other = run::run(program, world);
    // What it says is right here: the program may have forbidden what a freeze needs.
    frozen.set(frozen.get() + other.frozen);
    let plain = run::run(program, World::Plain);
    run::difference(&plain, &other).map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
}

fn hunt(programs: u32, shrinks: u32) -> Hunt {
    Hunt { of: "SANDBOX", programs, usual: PROGRAMS, shrinks }
}

#[test]
fn programs_that_the_object_freezes_reach_and_do_what_plain_ones_do() {
    hunt(PROGRAMS, 100).finds_none(&any_program(), compare);
}

#[test]
fn programs_that_it_freezes_in_slices_reach_and_do_what_plain_ones_do() {
    hunt(SLICED_PROGRAMS, 100).finds_none_in(World::Sliced(SLICE), &any_program(), compare);
}

/// What `palimpsest run` does by default.
#[test]
fn programs_that_it_gathers_reach_and_do_what_plain_ones_do() {
    hunt(SLICED_PROGRAMS, 100).finds_none_in(World::Deputed(SLICE), &any_program(), compare);
}

#[test]
fn a_descriptor_too_many_is_noticed() {
    let seen = hunt(MUTANT_PROGRAMS, 0).catches("children keep the root folder open", &any_program(), compare);
    assert!(seen.contains("probe descriptors"), "{seen}");
}

//! The oracle of threads through the object: a program of several threads finds the same in its memory whether the
//! object is preloaded or not.
//!
//! The oracle of `palimpsest-fork` asks the guards itself, and takes slices itself. Here threads make their calls by
//! every name that the C library has for them, and the object takes slices in waits and at forks, as in programs.
//!
//! | module | holds |
//! |---|---|
//! | `calls` | the calls of threads, by all their names, and what makes the object freeze meanwhile |
//! | `names`, `rights`, `world`, `hunt`, `run`, `compare` | as in the oracle of memory |
//! | the others, which are links | as in `palimpsest-fork` |
//!
//! `PALIMPSEST_THREADS_PROGRAMS` sets the number of programs, `PALIMPSEST_THREADS_SEED` chooses them, and
//! `PALIMPSEST_THREADS_REPLAY` runs one that a failure has printed; run it some hundred times.

// Before what makes more calls by number.
#[macro_use]
#[path = "../oracle/names.rs"]
mod names;

mod calls;
#[path = "../oracle/compare.rs"]
mod compare;
#[path = "../oracle/hunt.rs"]
mod hunt;
mod interpreter;
mod program;
#[path = "../oracle/rights.rs"]
mod rights;
#[path = "../oracle/run.rs"]
mod run;
mod worker;
#[path = "../oracle/world.rs"]
mod world;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::calls::World;
use crate::compare::compare;
use crate::hunt::Hunt;
use crate::program::{Code, Program};

/// Programs per test, each of which takes some 300 ms on the machine of the records.
const PROGRAMS: u32 = 10;

/// A call that goes past the object must be noticed within this many programs.
const MUTANT_PROGRAMS: u32 = 100;

/// Microseconds of a slice: as short as any, and as long as most.
const SLICES: [u32; 2] = [100, 2000];

fn any_program() -> impl Strategy<Value = Program> {
    vec(any::<Code>(), 24..90).prop_map(Program)
}

/// Whatever is found once may not be found again: hardly worth looking for a smaller program.
fn hunt(programs: u32) -> Hunt {
    Hunt { of: "THREADS", programs, usual: PROGRAMS, shrinks: 30 }
}

#[test]
fn threads_find_what_they_would_without_the_object() {
    hunt(PROGRAMS).finds_none(&any_program(), compare);
}

#[test]
fn threads_find_what_they_would_while_it_freezes_in_slices() {
    for slice in SLICES {
        hunt(PROGRAMS).finds_none_in(World::Sliced(slice), &any_program(), compare);
    }
}

/// Deputies are at work or done, as it comes.
#[test]
fn threads_find_what_they_would_while_it_gathers() {
    for slice in SLICES {
        hunt(PROGRAMS).finds_none_in(World::Deputed(slice), &any_program(), compare);
    }
}

#[test]
fn a_name_that_goes_past_the_object_is_noticed() {
    let seen = hunt(MUTANT_PROGRAMS).catches("discarded memory shows the bytes of the freeze", &any_program(), compare);
    assert!(seen.contains("Discard"), "{seen}");
}

//! An oracle of sandboxes: what a process can reach and do is the same whether its memory is frozen or not.
//!
//! Programs jail themselves, leave root, install filters, limit and close descriptors, reset signals, make rings and
//! namespaces, erase a secret, and fork at any point. After each fork, and at its end, every process tries what it
//! should not be able to do: each descriptor it can find, ways up from it, its bytes; files; memory calls and what they
//! leave; the parent's memory; the secret in every place where it could still be.
//!
//! | module | holds |
//! |---|---|
//! | `program` | operations, and how bytes become a program |
//! | `interpreter` | a process that runs one |
//! | `calls` | the calls that the library answers for: plain, or as the preload object makes them |
//! | `probe` | what a process can reach and do |
//! | `run`, `world`, `hunt` | starts it, compares two runs, and makes up programs, as in the oracle of memory |
//!
//! `PALIMPSEST_SANDBOX_PROGRAMS` sets the number of programs, `PALIMPSEST_SANDBOX_SEED` chooses them, and
//! `PALIMPSEST_SANDBOX_REPLAY` runs one that a failure has printed.

mod calls;
#[path = "../oracle/hunt.rs"]
mod hunt;
mod interpreter;
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
use crate::world::{BUDGETS, LEAST, ungathered};

/// Programs per test; each takes some 100 ms on the machine of the records, twice.
const PROGRAMS: u32 = 60;

/// Programs per test that are frozen in slices.
const SLICED_PROGRAMS: u32 = 25;

/// Programs at each budget of slices.
const BUDGETED_PROGRAMS: u32 = 2;

/// Programs whose memory is gathered, by the process itself or by deputies; and at each budget.
const GATHERED_PROGRAMS: u32 = 12;
const GATHERED_AT_BUDGETS: u32 = 1;

/// A superfluous descriptor must be noticed within this many programs.
const MUTANT_PROGRAMS: u32 = 20;

/// Operations by their codes; see `program`.
const ERASE: u8 = 4;
const DISCARD: u8 = 6;
const JAIL: u8 = 9;
const LEAVE_ROOT: u8 = 10;
const FILTER: u8 = 12;
const LIMIT: u8 = 15;
const SIGNALS: u8 = 16;
const RING: u8 = 17;
const UNSHARE: u8 = 18;
const THREAD: u8 = 21;
const FREEZE: u8 = 22;
const FREEZE_ARENA: u8 = 24;
const FORK: u8 = 25;
const EXEC: u8 = 29;

/// Operations, a freeze, operations, and a fork whose child goes on.
fn any_program() -> impl Strategy<Value = Program> {
    (vec(any::<Code>(), 0..4), vec(any::<Code>(), 0..8), vec(any::<Code>(), 0..6)).prop_map(|(before, after, child)| {
        let freeze = [FREEZE, 0, 0, 0];
        let fork = [FORK, 7, 0, 0];
        Program(before.into_iter().chain([freeze]).chain(after).chain([fork]).chain(child).collect())
    })
}

fn compare(program: &Program, world: World, frozen: &Cell<usize>) -> Result<(), TestCaseError> {
    let other = run::run(program, world);
    // Refusals are right here: the program may have forbidden what a freeze needs.
    frozen.set(frozen.get() + other.frozen);
    let plain = run::run(program, World::Plain);
    run::difference(&plain, &other).map_or(Ok(()), |difference| Err(TestCaseError::fail(difference)))
}

fn hunt(programs: u32, shrinks: u32) -> Hunt {
    Hunt { of: "SANDBOX", programs, usual: PROGRAMS, shrinks }
}

fn say_what_is_left_out() {
    if let Some(reason) = ungathered() {
        println!("partly skipped: nothing is gathered here, and everything is frozen: {reason}");
    }
    if !rustix::process::geteuid().is_root() {
        println!("partly skipped: without root there is no chroot and no change of user, only their refusals");
    }
}

/// Runs a program that once showed a mistake; the frozen runs must have frozen something.
fn assert_same(codes: &[Code]) {
    say_what_is_left_out();
    let program = Program(codes.to_vec());
    let plain = run::run(&program, World::Plain);
    let budgeted = World::Budgeted(BUDGETS[codes.len() % BUDGETS.len()]);
    for world in [World::Frozen, World::Sliced, budgeted, World::Gathered(LEAST), World::Deputed(LEAST)] {
        let other = run::run(&program, world);
        let difference = run::difference(&plain, &other);
        assert!(difference.is_none(), "{world:?} {program:?}{}", difference.unwrap_or_default());
        // A busy machine may not let a deputy begin.
        let may_be_nothing = matches!(world, World::Deputed(_));
        assert!(other.frozen > 0 || may_be_nothing, "{world:?}: nothing was frozen, so nothing was compared");
    }
}

#[test]
fn frozen_programs_reach_and_do_what_plain_ones_do() {
    say_what_is_left_out();
    hunt(PROGRAMS, 100).finds_none(&any_program(), compare);
}

/// The least slice before each operation, in every sandbox, and one at each fork.
#[test]
fn programs_that_are_frozen_in_slices_reach_and_do_what_plain_ones_do() {
    let hunt = hunt(SLICED_PROGRAMS, 100);
    hunt.finds_none_in(World::Sliced, &any_program(), compare);
}

#[test]
fn programs_that_are_frozen_at_any_budget_reach_and_do_what_plain_ones_do() {
    for microseconds in BUDGETS {
        let hunt = hunt(BUDGETED_PROGRAMS, 100);
        hunt.finds_none_in(World::Budgeted(microseconds), &any_program(), compare);
    }
}

/// What `palimpsest run` does by default.
#[test]
fn programs_that_are_gathered_reach_and_do_what_plain_ones_do() {
    say_what_is_left_out();
    for world in [World::Gathered(LEAST), World::Deputed(LEAST)] {
        let hunt = hunt(GATHERED_PROGRAMS, 100);
        hunt.finds_none_in(world, &any_program(), compare);
    }
}

#[test]
fn programs_that_are_gathered_at_any_budget_reach_and_do_what_plain_ones_do() {
    say_what_is_left_out();
    for world in BUDGETS.into_iter().flat_map(|budget| [World::Gathered(budget), World::Deputed(budget)]) {
        let hunt = hunt(GATHERED_AT_BUDGETS, 100);
        hunt.finds_none_in(world, &any_program(), compare);
    }
}

#[test]
fn a_descriptor_too_many_is_noticed() {
    let hunt = hunt(MUTANT_PROGRAMS, 0);
    let seen = hunt.catches("children keep the root folder open", &any_program(), compare);
    assert!(seen.contains("probe descriptors"), "{seen}");
}

/// The kept descriptor of `/proc` led out of a `chroot`.
#[test]
fn a_jailed_child_stays_in() {
    assert_same(&[[FREEZE, 0, 0, 0], [FORK, 2, 0, 0], [JAIL, 0, 0, 0], [LEAVE_ROOT, 0, 0, 0]]);
}

/// An arena whose pages are pinned cannot be sealed, and its file stayed open for writing.
#[test]
fn a_child_cannot_write_to_an_arena_of_its_parent() {
    assert_same(&[[FREEZE, 0, 0, 0], [RING, 1, 0, 0], [FREEZE_ARENA, 0, 0, 0], [FORK, 1, 0, 0], [LEAVE_ROOT, 0, 0, 0]]);
}

#[test]
fn an_erased_secret_is_gone() {
    assert_same(&[[FREEZE, 0, 0, 0], [ERASE, 0, 0, 0], [FORK, 1, 0, 0], [LEAVE_ROOT, 0, 0, 0]]);
    assert_same(&[[FREEZE, 0, 0, 0], [FORK, 1, 0, 0], [ERASE, 0, 0, 0], [DISCARD, 140, 30, 0]]);
}

/// Guards opened files where the sandbox had forbidden that.
#[test]
fn memory_calls_work_in_every_sandbox() {
    for forbidden in 0..5 {
        for punishment in 0..2 {
            assert_same(&[[FREEZE, 0, 0, 0], [FORK, 1, 0, 0], [FILTER, forbidden, punishment, 0]]);
        }
    }
    assert_same(&[[FREEZE, 0, 0, 0], [FORK, 2, 0, 0], [LIMIT, 0, 0, 0], [FILTER, 0, 0, 0]]);
}

#[test]
fn signals_that_are_reset_are_nobodys() {
    for how in 0..3 {
        assert_same(&[[THREAD, 0, 0, 0], [FREEZE, 0, 0, 0], [SIGNALS, how, 0, 0], [FREEZE, 0, 0, 0], [FORK, 0, 0, 0]]);
    }
}

#[test]
fn namespaces_are_as_they_would_be() {
    for namespace in 0..3 {
        assert_same(&[[FREEZE, 0, 0, 0], [UNSHARE, namespace, 0, 0], [FREEZE, 0, 0, 0], [FORK, 0, 0, 0]]);
    }
}

#[test]
fn an_executed_program_inherits_nothing() {
    assert_same(&[[FREEZE, 0, 0, 0], [FREEZE_ARENA, 0, 0, 0], [FORK, 1, 0, 0], [EXEC, 0, 0, 0]]);
}

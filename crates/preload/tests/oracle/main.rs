//! The oracle of memory through the object: a program of memory operations shows the same memory and gets the same
//! answers whether the object is preloaded or not.
//!
//! The oracle of `palimpsest-fork` asks the guards itself. This one makes its calls by every name that the C library
//! has for them, as programs do, so that it notices a name that goes past the guards.
//!
//! | module | holds |
//! |---|---|
//! | `calls`, `names`, `rights` | the calls of a program, by all their names |
//! | `world` | with which settings the object is preloaded |
//! | the others, which are links | as in `palimpsest-fork` |
//!
//! `PALIMPSEST_ORACLE_PROGRAMS` sets the number of programs, `PALIMPSEST_ORACLE_SEED` chooses them, and
//! `PALIMPSEST_ORACLE_REPLAY` runs one that a failure has printed.

// Before what makes more calls by number.
#[macro_use]
mod names;

mod calls;
mod compare;
mod family;
mod hunt;
mod interpreter;
mod memory;
mod program;
mod rights;
mod run;
mod world;

use std::cell::Cell;

use crate::calls::World;
use crate::compare::compare;
use crate::hunt::Hunt;
use crate::program::{Program, WIDE, any_program};

/// Programs per test; each takes some 50 ms, twice.
const PROGRAMS: u32 = 300;
/// Programs whose slices come in waits.
const SLICED_PROGRAMS: u32 = 100;
/// Programs with wide areas, whose memory is gathered.
const GATHERED_PROGRAMS: u32 = 30;
/// A call that goes past the object must be noticed within this many programs.
const MUTANT_PROGRAMS: u32 = 200;

/// Microseconds of a slice, in which all of most programs fits and not all of any.
const SLICE: u32 = 300;

/// Programs that ran differently once, each with where, and why.
const FOUND: [(World, &str); 9] = [
    // A discard after an `mprotect` that failed for a hole: nobody knew the rights, and all stayed.
    (World::Frozen, "0002a4000000260200000000c814000049003f3f3f3f3f3f8bb600002d00d5bc000a001b"),
    // MADV_REMOVE of what is unmapped: EINVAL.
    (World::Frozen, "00024d0000002602000000003f3f3f3f3f3f88e600002700955c00000056"),
    // What is unmapped was made shorter.
    (World::Frozen, "0005b40000002605000000003f3f3f3f3f3f882f000027008f2f00000000"),
    // Memory that was to be wiped in children moved to a planned place; a slice froze it, and a child read it.
    (
        World::Sliced(SLICE),
        "0004a30000002604000000000003a30000002603000000003f3f3f3f3f3f953900004ecd927545be0000bc0000000000750000000000",
    ),
    // After advice on memory with a hole, MADV_WIPEONFORK did nothing.
    (World::Frozen, "0004590000002604000000004864130031003f3f3f3f3f3f95520000579115d00000007c"),
    // A move of what is unmapped onto itself: EFAULT.
    (World::Frozen, "0003450000002603000000003f3f3f3f3f3f880300000000120347030000"),
    // After an `mprotect` that failed at a hole, MADV_WIPEONFORK did nothing, and a child read all.
    (World::Frozen, "00045900000026040000000c3f3f3f3f3f3f0804101401000b0400000000150400000010350000000000"),
    // The same in a child: its children read all.
    (World::Frozen, "00045900000026040000000c3f3f3f3f3f3f3500000004000804101401000b0400000000150400000010350000000000"),
    // What memory that is wiped in children grew by was not wiped.
    (World::Frozen, "00045900000026040000000c3f3f3f3f3f3f1504000000100f04c800000026040000000c350000000000"),
];

fn hunt(programs: u32, shrinks: u32) -> Hunt {
    Hunt { of: "ORACLE", programs, usual: PROGRAMS, shrinks }
}

#[test]
fn programs_that_the_object_freezes_run_as_plain_ones() {
    hunt(PROGRAMS, 300).finds_none(&any_program(0), compare);
}

#[test]
fn programs_that_it_freezes_in_slices_run_as_plain_ones() {
    hunt(SLICED_PROGRAMS, 300).finds_none_in(World::Sliced(SLICE), &any_program(0), compare);
}

/// Deputies are at work or done, as it comes.
#[test]
fn programs_that_it_gathers_run_as_plain_ones() {
    hunt(GATHERED_PROGRAMS, 300).finds_none_in(World::Deputed(SLICE), &any_program(WIDE), compare);
}

#[test]
fn programs_that_ran_differently_once_do_no_more() {
    for (world, program) in FOUND {
        let program = Program::from_hex(program).expect("as it was printed");
        compare(&program, world, &Cell::new(0)).unwrap_or_else(|error| panic!("{world:?}, {program:?}: {error}"));
    }
}

#[test]
fn a_name_that_goes_past_the_object_is_noticed() {
    hunt(MUTANT_PROGRAMS, 0).catches("files that are mapped by one name read as zeros", &any_program(0), compare);
}

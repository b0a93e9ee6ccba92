//! What all usable `Packs` must do: load, run, free, reclaim, and load again in the freed place.

use palimpsest_sys::capabilities::Capabilities;
use palimpsest_sys::pages::maps::Maps;
use palimpsest_text::{Backing, LoadError, Packs, Program};

use crate::arch::return_number;

const PROGRAMS: u16 = 300;

/// Loads, runs, frees and reclaims programs, and checks that the statistics follow.
pub(crate) fn exercise(packs: &Packs) {
    // Otherwise programs that are retired already could make an automatic reclaim due meanwhile.
    packs.reclaim().expect("nothing keeps retired programs");
    let before = packs.stats().programs;
    let programs: Vec<Program> = (0..PROGRAMS).map(|number| load(packs, number)).collect();
    for (number, program) in (0..PROGRAMS).zip(&programs) {
        assert_eq!(run(program), number);
    }
    assert_eq!(packs.stats().programs - before, usize::from(PROGRAMS));
    nothing_is_writable_and_executable();
    huge_pages_are_huge(packs);

    let (kept, dropped): (Vec<_>, Vec<_>) = (0..PROGRAMS).zip(programs).partition(|(number, _)| number % 2 == 0);
    drop(dropped);
    let reclaimed = packs.reclaim().expect("nothing keeps the programs");
    assert_eq!(reclaimed.programs, usize::from(PROGRAMS / 2), "{reclaimed:?}");
    for (number, program) in &kept {
        assert_eq!(run(program), *number, "a neighbour was freed");
    }
    let again = load(packs, 4711);
    assert_eq!(run(&again), 4711);

    drop(kept);
    drop(again);
    packs.reclaim().expect("nothing keeps the programs");
    let stats = packs.stats();
    assert_eq!((stats.programs, stats.retired_bytes), (before, 0), "{stats:?}");
    println!("exercised on {}: {stats:?}", packs.backing());
}

/// Checks that `palimpsest doctor` says what `Packs` does.
pub(crate) fn doctor_agrees(packs: &Packs) {
    let capabilities = Capabilities::probe();
    let told = capabilities.choice().backing.map(|backing| backing.to_string());
    assert_eq!(told, Some(packs.backing().to_string()), "{:#?}", capabilities.findings());
}

/// Returns the reasons against better backings, as a user reads them.
pub(crate) fn refusals(packs: &Packs) -> String {
    packs.refused().iter().map(|refused| format!("{}: {}\n", refused.backing, chain(&refused.error))).collect()
}

/// Returns an error and its sources, as a user reads them.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text += ": ";
        text += &inner.to_string();
        source = inner.source();
    }
    text
}

/// Asserts that a text for users contains all of `parts`.
#[track_caller]
pub(crate) fn assert_tells(text: &str, parts: &[&str]) {
    println!("it says: {text}");
    for part in parts {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
}

/// Loads a program that returns `number`.
pub(crate) fn load(packs: &Packs, number: u16) -> Program {
    try_load(packs, number).unwrap_or_else(|error| panic!("program {number}: {}", chain(&error)))
}

/// Does the same as [`load`], where it may fail.
pub(crate) fn try_load(packs: &Packs, number: u16) -> Result<Program, LoadError> {
    packs.load(&return_number(number), 16)
}

/// Calls a program made by `return_number`.
pub(crate) fn run(program: &Program) -> u16 {
    // SAFETY: the code is a C function without parameters that returns a number, and the program outlives the call.
    let function = unsafe { program.function::<extern "C" fn() -> u32>() };
    u16::try_from(function()).expect("the program returns 16 bits")
}

/// Checks that the executable views of packs that count as huge are mapped so.
fn huge_pages_are_huge(packs: &Packs) {
    let stats = packs.stats();
    let promised = matches!(packs.backing(), Backing::CollapsedMemfd | Backing::HugetlbMemfd);
    // Without /proc this cannot be checked.
    if let (Ok(huge), true, 0) = (packs.huge_mapped(), promised, stats.downgraded_packs) {
        assert_eq!(huge.bytes, huge.reserved_bytes, "{stats:?}");
    }
}

fn nothing_is_writable_and_executable() {
    // Without /proc this cannot be checked.
    let Ok(maps) = Maps::read() else { return };
    let found: Vec<_> = maps.writable_and_executable().collect();
    assert!(found.is_empty(), "{found:?}");
}

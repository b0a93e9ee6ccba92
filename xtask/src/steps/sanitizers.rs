//! Runs ThreadSanitizer and AddressSanitizer over the crates whose unsafe code is shared by threads.

use std::process::Command;

use crate::{
    process,
    programs::{self, TestProgram},
    step::{Depth, Done, LeftOut, StepError, Unsuitable},
    workspace::Workspace,
};

/// Names of the sanitizers, and of their target folders.
pub(super) const THREAD: &str = "thread";
pub(super) const ADDRESS: &str = "address";

/// Sanitizer flags must not reach build scripts, so the host is named as a target.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// A crate under test.
struct Tested {
    /// Its folder below `crates`.
    name: &'static str,
    /// The test in which threads meet, if it is not in the library.
    threaded: Option<&'static str>,
    /// When AddressSanitizer runs it; ThreadSanitizer runs each.
    addresses: Depth,
    /// Other tests, which run under AddressSanitizer.
    others: &'static [&'static str],
}

/// Built together: built alone, each would have dependencies with features of its own. The other tests of the first two
/// drive child processes into limits in which no sanitizer can start. Those of the third run on the software machine;
/// its mutants end by panics, which leak, and its counts are of gigabytes.
const CRATES: [Tested; 3] = [
    Tested { name: "sys", threaded: None, addresses: Depth::Short, others: &[] },
    Tested { name: "text", threaded: Some("stress"), addresses: Depth::Short, others: &[] },
    Tested {
        name: "paging",
        threaded: Some("threads"),
        addresses: Depth::Exhaustive,
        others: &["cursors", "defects", "refusals", "replicas", "cursor_steps", "objections", "properties"],
    },
];

const THREAD_UNSUITABLE: &[Unsuitable] = &[
    Unsuitable { name: "core_sync::tests::broadcasts", reason: BLOCKED },
    Unsuitable { name: "signals_take_over_where_membarrier_has_begun_to_fail", reason: BLOCKED },
    Unsuitable { name: "tracer::tests", reason: CLONE },
    Unsuitable { name: "deputy::tests", reason: CLONE },
    Unsuitable { name: "threads::hold::tests", reason: CLONE },
    Unsuitable { name: "a_replacement_is_locked_like_what_it_replaces", reason: LOCKED },
    Unsuitable { name: "each_call_of_a_freeze_is_tried_before_it_kills", reason: FORBIDDEN },
    Unsuitable { name: "threads_are_counted_by_a_proc_of_another_pid_namespace_too", reason: FORKED },
    Unsuitable { name: "children_of_another_namespace_are_far", reason: CLONE },
    Unsuitable { name: "the_children_of_a_namespace_are_near", reason: CLONE },
];
const ADDRESS_UNSUITABLE: &[Unsuitable] = &[
    Unsuitable { name: "a_replacement_is_locked_like_what_it_replaces", reason: LOCKED },
    Unsuitable { name: "each_call_of_a_freeze_is_tried_before_it_kills", reason: FORBIDDEN },
];

pub(super) const LEFT_OUT: &[LeftOut] = &[LeftOut {
    what: "palimpsest-paging",
    reason: "the fuzz target `paging` reaches the same accesses to tables, with AddressSanitizer, too",
}];

const FORBIDDEN: &str = "sanitizers call sigaltstack themselves, which one of the filters forbids";
const BLOCKED: &str = "ThreadSanitizer's own thread blocks every signal";
const LOCKED: &str = "sanitizers make mlock do nothing";
const FORKED: &str = "ThreadSanitizer starts no thread in a child of several";
const CLONE: &str = "ThreadSanitizer takes a child in the same memory for a fork";

pub(super) fn thread(workspace: &Workspace) -> Result<Done, StepError> {
    let chosen = chosen(CRATES.iter().map(|tested| (tested, &[][..])));
    let mut build = cargo_test(workspace, THREAD, &chosen);
    // A std without instrumentation hides the synchronisation of Arc and of channels; every use of them would be
    // reported as a race.
    build.env("RUSTFLAGS", "-Zsanitizer=thread").arg("-Zbuild-std");
    // One test after the other: ThreadSanitizer does not notice that mappings come and go, so that two tests whose
    // memory had the same address would race.
    run(workspace, &mut build, &chosen, &["--test-threads=1"], THREAD_UNSUITABLE)?;
    Ok(Unsuitable::remark(WITHOUT, THREAD_UNSUITABLE))
}

/// The std that comes with the toolchain has no checks inside; the second flag accepts that. The third lets a test find
/// the function with which it clears the stack of a child in the same memory: marks of the last child's frames would
/// be errors of the next one, whose report waits for ever for locks of the process.
const ADDRESS_FLAGS: &str = "-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer \
    -Clink-arg=-Wl,--export-dynamic-symbol=__asan_unpoison_memory_region";

pub(super) fn address(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let crates = CRATES.iter().filter(|tested| depth == Depth::Exhaustive || tested.addresses == Depth::Short);
    let chosen = chosen(crates.map(|tested| (tested, tested.others)));
    let mut build = cargo_test(workspace, ADDRESS, &chosen);
    build.env("RUSTFLAGS", ADDRESS_FLAGS);
    run(workspace, &mut build, &chosen, &[], ADDRESS_UNSUITABLE)?;
    Ok(Unsuitable::remark(WITHOUT, ADDRESS_UNSUITABLE))
}

/// Returns test programs of crates, by package and name: for each crate its library, the test in which threads meet,
/// and the others given.
fn chosen<'a>(crates: impl Iterator<Item = (&'a Tested, &'a [&'static str])>) -> Vec<(&'static str, &'static str)> {
    let of_crate = |(tested, others): (&'a Tested, &'a [&'static str])| {
        let tests = others.iter().copied().chain(tested.threaded).chain([LIBRARY]);
        tests.map(|test| (tested.name, test)).collect::<Vec<_>>()
    };
    crates.flat_map(of_crate).collect()
}

/// Stands for the tests in a library, as in the name of a [`TestProgram`].
const LIBRARY: &str = "lib";

/// Optimises the software machine: what checks each of its accesses takes far longer than the compiler.
const OPTIMISED: [&str; 2] = ["--config", "profile.dev.package.palimpsest-paging.opt-level=2"];

/// Returns a `cargo test` of `chosen`, in a target folder of its own.
fn cargo_test(workspace: &Workspace, sanitizer: &str, chosen: &[(&str, &str)]) -> Command {
    let mut test = process::nightly_cargo(workspace);
    test.args(["test", "--all-features", "--target", HOST, "--lib"]).args(OPTIMISED);
    for (package, test_name) in chosen {
        if *test_name == LIBRARY {
            test.arg(format!("--package=palimpsest-{package}"));
        } else {
            test.args(["--test", test_name]);
        }
    }
    process::apart(&mut test, workspace, sanitizer);
    test
}

/// Makes `build` build test programs, and runs the `chosen` ones with these arguments for libtest, without
/// `unsuitable`.
fn run(
    workspace: &Workspace,
    build: &mut Command,
    chosen: &[(&str, &str)],
    arguments: &[&str],
    unsuitable: &[Unsuitable],
) -> Result<(), StepError> {
    let built = programs::build(build)?;
    let mut failed = Vec::new();
    for (package, test) in chosen {
        let name = format!("{package}.{test}");
        let program = built.iter().find(|program| program.name == name);
        let TestProgram { path, folder, .. } = program.ok_or(StepError::NoPrograms)?;
        let mut test = process::test_program(workspace, path, folder);
        test.args(arguments).env("TSAN_OPTIONS", "halt_on_error=1").env("PROPTEST_CASES", "32");
        // Tracers and deputies run with the thread-local storage of whoever has made them, where AddressSanitizer keeps
        // the stack that this detection makes up: both would use one.
        test.env("ASAN_OPTIONS", "detect_stack_use_after_return=0");
        // The number of random operations in the tests of palimpsest-paging, which do not use PROPTEST_CASES.
        test.env("PALIMPSEST_PAGING_OPERATIONS", "12000");
        for Unsuitable { name, .. } in unsuitable {
            test.args(["--skip", name]);
        }
        if let Err(error) = process::stream_within(&mut test, process::LIMIT) {
            failed.push(format!("{name}: {error}"));
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(StepError::Programs { failed, total: chosen.len() }) }
}

/// Begins the remark on tests that were left out.
const WITHOUT: &str = "without what it cannot run";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_that_are_named_exist() {
        let workspace = Workspace::find();
        for tested in &CRATES {
            let names = workspace.integration_tests(tested.name);
            let mut named = tested.others.iter().chain(&tested.threaded);
            let missing = named.find(|&&test| names.iter().all(|name| name != test));
            assert_eq!(missing, None, "{} has {names:?}", tested.name);
        }
    }
}

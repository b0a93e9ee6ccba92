//! Runs ThreadSanitizer and AddressSanitizer over the crates whose unsafe code is shared by threads.

use std::{fs, process::Command};

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
    /// Part of the names of those tests in which threads meet, which run under both sanitizers.
    threaded: &'static str,
    /// Other tests, which run under AddressSanitizer.
    others: &'static [&'static str],
    /// More tests, which run under AddressSanitizer in an exhaustive run.
    exhaustive: &'static [&'static str],
}

/// Built together: built alone, each would have dependencies with features of its own. The other tests of the first two
/// drive child processes into limits in which no sanitizer can start. Those of the third run on the software machine;
/// its mutants end by panics, which leak, and its counts are of gigabytes.
const CRATES: [Tested; 3] = [
    Tested { name: "sys", threaded: "stress", others: &[], exhaustive: &[] },
    Tested { name: "text", threaded: "stress", others: &[], exhaustive: &[] },
    Tested {
        name: "paging",
        threaded: "threads",
        others: &["cursors", "defects", "refusals", "replicas"],
        exhaustive: &["cursor_steps", "objections", "properties"],
    },
];

const THREAD_UNSUITABLE: &[Unsuitable] = &[
    Unsuitable { name: "core_sync::tests::broadcasts", reason: BLOCKED },
    Unsuitable { name: "tracer::tests", reason: CLONE },
    Unsuitable { name: "threads::hold::tests", reason: CLONE },
    Unsuitable { name: "a_replacement_is_locked_like_what_it_replaces", reason: LOCKED },
];
const ADDRESS_UNSUITABLE: &[Unsuitable] =
    &[Unsuitable { name: "a_replacement_is_locked_like_what_it_replaces", reason: LOCKED }];

pub(super) const LEFT_OUT: &[LeftOut] = &[LeftOut {
    what: "cursor_steps, objections and properties of palimpsest-paging",
    reason: "they reach the same accesses to tables as the tests that stay, with more random operations",
}];

const BLOCKED: &str = "ThreadSanitizer's own thread blocks every signal";
const LOCKED: &str = "sanitizers make mlock do nothing";
const CLONE: &str = "ThreadSanitizer takes a child in the same memory for a fork";

pub(super) fn thread(workspace: &Workspace) -> Result<Done, StepError> {
    let chosen = chosen(workspace, |_| Vec::new());
    let mut build = cargo_test(workspace, THREAD, &chosen);
    // A std without instrumentation hides the synchronisation of Arc and of channels; every use of them would be
    // reported as a race.
    build.env("RUSTFLAGS", "-Zsanitizer=thread").arg("-Zbuild-std");
    // One test after the other: ThreadSanitizer does not notice that mappings come and go, so that two tests whose
    // memory had the same address would race.
    run(workspace, &mut build, &chosen, &["--test-threads=1"], THREAD_UNSUITABLE)?;
    Ok(Unsuitable::remark(WITHOUT, THREAD_UNSUITABLE))
}

pub(super) fn address(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let chosen = chosen(workspace, |tested| {
        let further: &[&str] = if depth == Depth::Exhaustive { tested.exhaustive } else { &[] };
        [tested.others, further].concat()
    });
    let mut build = cargo_test(workspace, ADDRESS, &chosen);
    // The std that comes with the toolchain has no checks inside; the second flag accepts that.
    build.env("RUSTFLAGS", "-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer");
    run(workspace, &mut build, &chosen, &[], ADDRESS_UNSUITABLE)?;
    Ok(Unsuitable::remark(WITHOUT, ADDRESS_UNSUITABLE))
}

/// Returns the names of test programs, as [`TestProgram`] has them: for each crate its library, the integration tests
/// in which threads meet, and its `others`.
fn chosen(workspace: &Workspace, others: impl Fn(&Tested) -> Vec<&'static str>) -> Vec<String> {
    let of_crate = |tested: &Tested| {
        let others = others(tested);
        let mut names = integration_tests(workspace, tested);
        names.retain(|name| name.contains(tested.threaded) || others.contains(&name.as_str()));
        names.push("lib".to_owned());
        names.into_iter().map(|name| format!("{}.{name}", tested.name)).collect::<Vec<_>>()
    };
    CRATES.iter().flat_map(of_crate).collect()
}

/// Returns the integration tests of a crate.
fn integration_tests(workspace: &Workspace, tested: &Tested) -> Vec<String> {
    let files = fs::read_dir(workspace.root.join("crates").join(tested.name).join("tests")).into_iter().flatten();
    files.flatten().filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".rs")?.to_owned())).collect()
}

/// Returns a `cargo test` of `chosen`, in a target folder of its own.
fn cargo_test(workspace: &Workspace, sanitizer: &str, chosen: &[String]) -> Command {
    let mut test = process::nightly_cargo(workspace);
    test.args(["test", "--all-features", "--target", HOST, "--lib"]);
    for tested in &CRATES {
        test.arg(format!("--package=palimpsest-{}", tested.name));
    }
    for name in
        chosen.iter().filter_map(|name| name.split_once('.')).map(|(_, name)| name).filter(|&name| name != "lib")
    {
        test.args(["--test", name]);
    }
    process::apart(&mut test, workspace, sanitizer);
    test
}

/// Makes `build` build test programs, and runs the `chosen` ones with these arguments for libtest, without
/// `unsuitable`.
fn run(
    workspace: &Workspace,
    build: &mut Command,
    chosen: &[String],
    arguments: &[&str],
    unsuitable: &[Unsuitable],
) -> Result<(), StepError> {
    let built = programs::build(build)?;
    let mut failed = Vec::new();
    for name in chosen {
        let program = built.iter().find(|program| program.name == *name);
        let TestProgram { path, folder, .. } = program.ok_or(StepError::NoPrograms)?;
        let mut test = process::test_program(workspace, path, folder);
        test.args(arguments).env("TSAN_OPTIONS", "halt_on_error=1").env("PROPTEST_CASES", "32");
        // The number of random operations in the tests of palimpsest-paging, which do not use PROPTEST_CASES.
        test.env("PALIMPSEST_PAGING_OPERATIONS", "12000");
        for Unsuitable { name, .. } in unsuitable {
            test.args(["--skip", name]);
        }
        if let Err(error) = process::stream(&mut test) {
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
            let names = integration_tests(&workspace, tested);
            // One crate has its tests only beside the code.
            let threaded = names.is_empty() || names.iter().any(|name| name.contains(tested.threaded));
            let missing =
                tested.others.iter().chain(tested.exhaustive).find(|&&other| names.iter().all(|name| name != other));
            assert!(threaded && missing.is_none(), "{}: {missing:?} of {names:?}", tested.name);
        }
    }
}

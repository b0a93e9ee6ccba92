//! Runs ThreadSanitizer and AddressSanitizer over the crates whose unsafe code is shared by threads.

use std::{fs, process::Command};

use crate::{
    process,
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
    package: &'static str,
    /// The folder of its integration tests.
    tests: &'static str,
    /// Part of the names of those tests in which threads meet, which run under both sanitizers.
    threaded: &'static str,
    /// Other tests, which run under AddressSanitizer.
    others: &'static [&'static str],
    /// More tests, which run under AddressSanitizer in an exhaustive run.
    exhaustive: &'static [&'static str],
}

/// The crates. They are tested one after the other, since a test is named without its package. The other tests of the
/// first two drive child processes into limits in which no sanitizer can start. Those of the third run on the software
/// machine; its mutants end by panics, which leak, and its counts are of gigabytes.
const CRATES: [Tested; 3] = [
    Tested { package: "palimpsest-sys", tests: "crates/sys/tests", threaded: "stress", others: &[], exhaustive: &[] },
    Tested { package: "palimpsest-text", tests: "crates/text/tests", threaded: "stress", others: &[], exhaustive: &[] },
    Tested {
        package: "palimpsest-paging",
        tests: "crates/paging/tests",
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
    for tested in &CRATES {
        let mut test = sanitized(workspace, tested, THREAD, &[]);
        // A std without instrumentation hides the synchronisation of Arc and of channels; every use of them would be
        // reported as a race.
        test.env("RUSTFLAGS", "-Zsanitizer=thread").arg("-Zbuild-std").env("TSAN_OPTIONS", "halt_on_error=1");
        // One test after the other: ThreadSanitizer does not notice that mappings come and go, so that two tests whose
        // memory had the same address would race.
        run(test, &["--test-threads=1"], THREAD_UNSUITABLE)?;
    }
    Ok(Unsuitable::remark(WITHOUT, THREAD_UNSUITABLE))
}

pub(super) fn address(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    for tested in &CRATES {
        let further: &[&str] = if depth == Depth::Exhaustive { tested.exhaustive } else { &[] };
        let mut test = sanitized(workspace, tested, ADDRESS, &[tested.others, further].concat());
        // The std that comes with the toolchain has no checks inside; the second flag accepts that.
        test.env("RUSTFLAGS", "-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer");
        run(test, &[], ADDRESS_UNSUITABLE)?;
    }
    Ok(Unsuitable::remark(WITHOUT, ADDRESS_UNSUITABLE))
}

/// Returns `cargo test` of a crate's library, of the integration tests in which threads meet, and of `others`, in a
/// target folder of its own.
fn sanitized(workspace: &Workspace, tested: &Tested, sanitizer: &str, others: &[&str]) -> Command {
    let mut test = process::nightly_cargo(workspace);
    test.args(["test", "--no-fail-fast", "--all-features", "--target", HOST, "--package", tested.package, "--lib"]);
    let names = integration_tests(workspace, tested);
    for name in names.iter().filter(|name| name.contains(tested.threaded) || others.contains(&name.as_str())) {
        test.args(["--test", name]);
    }
    process::apart(&mut test, workspace, sanitizer).env("PROPTEST_CASES", "32");
    // The tests of palimpsest-paging read from this how many random operations they do.
    test.env("PALIMPSEST_PAGING_OPERATIONS", "12000");
    test
}

/// Returns the integration tests of a crate.
fn integration_tests(workspace: &Workspace, tested: &Tested) -> Vec<String> {
    let files = fs::read_dir(workspace.root.join(tested.tests)).into_iter().flatten().flatten();
    files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".rs")?.to_owned())).collect()
}

/// Runs `test` with these arguments for libtest, without `unsuitable`.
fn run(mut test: Command, arguments: &[&str], unsuitable: &[Unsuitable]) -> Result<(), StepError> {
    test.arg("--").args(arguments);
    for Unsuitable { name, .. } in unsuitable {
        test.args(["--skip", name]);
    }
    process::stream(&mut test)
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
            assert!(threaded && missing.is_none(), "{}: {missing:?} of {names:?}", tested.package);
        }
    }
}

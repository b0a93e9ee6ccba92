//! ThreadSanitizer and AddressSanitizer over the two crates that hold the unsafe code.

use std::{fs, process::Command};

use crate::{
    process,
    step::{Done, StepError, Unsuitable},
    workspace::Workspace,
};

/// Sanitizer flags must not reach build scripts, so the host is named as a target.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// Crates under test, with the folder of their integration tests.
const CRATES: [(&str, &str); 2] = [("palimpsest-sys", "crates/sys/tests"), ("palimpsest-text", "crates/text/tests")];
/// Integration tests whose file name holds this word run as well; the others drive child processes into limits in which no sanitizer can start.
const STRESS: &str = "stress";

const THREAD_UNSUITABLE: &[Unsuitable] = &[
    Unsuitable { name: "core_sync::tests::a_thread_that_blocks_the_signal", reason: BLOCKED },
    Unsuitable { name: "core_sync::tests::signals_reach", reason: BLOCKED },
    Unsuitable { name: "tracer::tests", reason: CLONE },
    Unsuitable { name: "world::tests", reason: CLONE },
];
const ADDRESS_UNSUITABLE: &[Unsuitable] = &[];

const BLOCKED: &str = "ThreadSanitizer's own thread blocks every signal";
const CLONE: &str = "ThreadSanitizer takes a child in the same memory for a fork";

pub(super) fn thread(workspace: &Workspace) -> Result<Done, StepError> {
    let mut test = sanitized(workspace, "thread");
    // A std without instrumentation hides the synchronisation of Arc and of channels, and every use of them is reported as a race.
    test.env("RUSTFLAGS", "-Zsanitizer=thread").arg("-Zbuild-std").env("TSAN_OPTIONS", "halt_on_error=1");
    finish(test, THREAD_UNSUITABLE)
}

pub(super) fn address(workspace: &Workspace) -> Result<Done, StepError> {
    let mut test = sanitized(workspace, "address");
    // The std that comes with the toolchain has no checks inside; the second flag says that we accept that.
    test.env("RUSTFLAGS", "-Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer");
    finish(test, ADDRESS_UNSUITABLE)
}

/// `cargo test` of the library and stress tests, in a target folder of its own.
fn sanitized(workspace: &Workspace, sanitizer: &str) -> Command {
    let mut test = process::nightly_cargo(workspace);
    test.args(["test", "--no-fail-fast", "--all-features", "--target", HOST, "--lib"]);
    for (package, tests) in CRATES {
        test.args(["--package", package]);
        for name in stress_tests(workspace, tests) {
            test.args(["--test", &name]);
        }
    }
    test.env("CARGO_TARGET_DIR", workspace.separate_target(sanitizer)).env("PROPTEST_CASES", "32");
    test
}

fn stress_tests(workspace: &Workspace, folder: &str) -> Vec<String> {
    let files = fs::read_dir(workspace.root.join(folder)).into_iter().flatten().flatten();
    let names = files.filter_map(|file| Some(file.file_name().to_str()?.strip_suffix(".rs")?.to_owned()));
    names.filter(|name| name.contains(STRESS)).collect()
}

/// Adds libtest's arguments and runs `test` without `unsuitable`.
fn finish(mut test: Command, unsuitable: &[Unsuitable]) -> Result<Done, StepError> {
    test.arg("--");
    for Unsuitable { name, .. } in unsuitable {
        test.args(["--skip", name]);
    }
    process::stream(&mut test)?;
    Ok(Unsuitable::remark("without what it cannot run", unsuitable))
}

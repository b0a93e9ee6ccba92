//! Runs this test binary again, alone or under a tool.

use std::{
    env,
    ffi::OsStr,
    path::Path,
    process::{Command, Output},
};

use crate::{Attached, Scenario};

/// Environment variable that makes a run of this binary a child; its value is the scenario.
pub(crate) const SCENARIO: &str = "PALIMPSEST_OBSERVERS_SCENARIO";
/// Environment variable that tells the child whether to attach its observer.
pub(crate) const ATTACHED: &str = "PALIMPSEST_OBSERVERS_ATTACHED";

/// A tool that is missing or not permitted here.
pub(crate) struct Unavailable(pub(crate) String);

/// Runs a child on its own, or under `tool`, whose arguments come before those of the child.
///
/// # Errors
/// The tool is not installed.
pub(crate) fn child<S: AsRef<OsStr>>(
    tool: &[S],
    scenario: Scenario,
    attached: Attached,
    directory: &Path,
) -> Result<Output, Unavailable> {
    let executable = env::current_exe().expect("path of this test");
    let mut command = match tool {
        [] => Command::new(&executable),
        [tool, arguments @ ..] => {
            let mut command = Command::new(tool);
            command.args(arguments).arg(&executable);
            command
        }
    };
    command
        // One thread, so that nothing else prints or is listed.
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(SCENARIO, scenario.name())
        .env(ATTACHED, attached.name())
        .env("JITDUMPDIR", directory)
        // perf keeps a cache of the files it has seen below the home directory.
        .env("HOME", directory)
        .current_dir(directory);
    run(&mut command)
}

/// Checks that this binary can start itself.
///
/// # Errors
/// It cannot: it runs in an emulator that the kernel does not start by itself.
pub(crate) fn restart_works() -> Result<(), Unavailable> {
    let executable = env::current_exe().expect("path of this test");
    let output = run(Command::new(executable).args(["--exact", "child"]))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(Unavailable(format!(
            "this test cannot start itself, which an emulator needs binfmt_misc for: {}",
            output.status
        )))
    }
}

/// Runs `command`.
///
/// # Errors
/// It is not installed.
pub(crate) fn run(command: &mut Command) -> Result<Output, Unavailable> {
    command.output().map_err(|error| Unavailable(format!("cannot start {}: {error}", command.get_program().display())))
}

/// Returns everything that a command printed.
pub(crate) fn printed(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The arguments of gdb before those of the child.
pub(crate) const GDB: [&str; 22] = [
    "gdb",
    "-batch",
    "-nx",
    "-ex",
    "set debuginfod enabled off",
    "-ex",
    "set breakpoint pending on",
    "-ex",
    "break observers_innermost",
    "-ex",
    "break observers_unloaded",
    "-ex",
    "run",
    "-ex",
    "backtrace",
    "-ex",
    "continue",
    "-ex",
    "set language c",
    "-ex",
    "info symbol *(long *) &OBSERVERS_INNER_PROGRAM",
    "--args",
];

/// Returns why gdb did nothing, if it was not permitted to.
pub(crate) fn gdb_refusal(printed: &str) -> Option<Unavailable> {
    printed
        .lines()
        .find(|line| line.contains("ptrace: ") || line.contains("Could not trace"))
        .map(|line| Unavailable(format!("gdb cannot trace: {line}")))
}

/// The event of all recordings: a timer of the kernel, without hardware counters, in user mode only.
pub(crate) const PERF_EVENT: &str = "cpu-clock:u";

/// Checks that `perf record` is installed and permitted.
///
/// # Errors
/// It is not.
pub(crate) fn perf_works(directory: &Path) -> Result<(), Unavailable> {
    let output = run(Command::new("perf")
        .args(["record", "-q", "-e", PERF_EVENT, "-o", "probe.data", "--", "true"])
        .env("HOME", directory)
        .current_dir(directory))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(Unavailable(format!("perf record {}: {}", output.status, printed(&output).trim())))
    }
}

/// Runs `perf` with `arguments` in `directory`, which must succeed, and returns what it printed to stdout.
pub(crate) fn perf(arguments: &[&str], directory: &Path) -> Result<String, Unavailable> {
    let output = run(Command::new("perf").args(arguments).env("HOME", directory).current_dir(directory))?;
    assert!(output.status.success(), "{}", printed(&output));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

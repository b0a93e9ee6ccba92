//! `cargo xtask bench`: the program's suites with the peers, and the suites of the adapters, which are workspaces of
//! their own and write records of the same format.

use std::fs;
use std::path::Path;

use crate::{cmake, need::Need, process, step::StepError, workspace::Workspace};

/// The argument that chooses the adapters, and the name of their folder.
pub(crate) const ADAPTERS: &str = "adapters";

/// How an adapter is measured.
enum Measure {
    /// By its example `bench`, which writes the record that its first argument names. It is built with optimisation,
    /// except for `--check`, which takes what the adapter's step has built.
    Example,
    /// By a program that CMake builds with these options, and which prints values (`adapters/measure.h`).
    Program { name: &'static str, options: &'static [&'static str], needs: &'static [Need] },
}

/// The adapters that are measured.
const MEASURED: [(&str, Measure); 3] = [
    ("wasmtime", Measure::Example),
    (
        "llvm-orc",
        Measure::Program { name: "orc-bench", options: cmake::WITH_LLVM, needs: &[cmake::CMAKE, cmake::LLVM] },
    ),
    ("asmjit", Measure::Program { name: "asmjit-bench", options: &[], needs: &[cmake::CMAKE, cmake::ASMJIT] }),
];

/// Runs `palimpsest bench` with the arguments given.
pub(crate) fn suites(workspace: &Workspace, arguments: &[String]) -> Result<(), StepError> {
    let mut bench = process::cargo(workspace);
    bench.args(["run", "--release", "--package", "palimpsest-live-cli", "--features", "peers", "--", "bench"]);
    process::stream(bench.args(arguments))
}

/// Measures each adapter that can be, and shows the records as `palimpsest bench` shows its own.
pub(crate) fn adapters(workspace: &Workspace, arguments: &[String]) -> Result<(), StepError> {
    MEASURED.iter().try_for_each(|(name, _)| adapter(workspace, name, arguments))
}

/// Returns whether there is a measurement of the adapter.
#[cfg(test)]
pub(crate) fn is_measured(name: &str) -> bool {
    MEASURED.iter().any(|(measured, _)| *measured == name)
}

/// Measures one adapter, and shows its record. `arguments` may be `--quick` or `--check`.
pub(crate) fn adapter(workspace: &Workspace, name: &str, arguments: &[String]) -> Result<(), StepError> {
    let folder = workspace.target.join("bench");
    fs::create_dir_all(&folder).map_err(|source| StepError::File { action: "make", path: folder.clone(), source })?;
    let record = folder.join(name).with_extension("json");
    match MEASURED.iter().find(|(measured, _)| *measured == name) {
        Some((_, Measure::Program { name: program, options, needs })) => {
            if let Some(missing) = needs.iter().find(|need| !need.is_met(workspace)) {
                println!("{name}: not measured: {}", missing.remedy());
                return Ok(());
            }
            let source = workspace.root.join(ADAPTERS).join(name);
            let built = cmake::build(workspace, source, name, options)?;
            of_program(workspace, &built.join(program), &record, arguments)?;
        }
        _ => {
            let mut measure = process::cargo(workspace);
            measure.args(["run", "--locked", "--example", "bench", "--manifest-path"]);
            measure.arg(workspace.root.join(ADAPTERS).join(name).join("Cargo.toml"));
            if !arguments.iter().any(|argument| argument == "--check") {
                measure.arg("--release");
            }
            measure.arg("--").arg(&record).args(arguments);
            process::stream(process::apart(&mut measure, workspace, name))?;
        }
    }
    let mut show = process::cargo(workspace);
    show.args(["run", "--package", "palimpsest-live-cli", "--", "bench", "--from"]).arg(&record);
    process::stream(&mut show)
}

/// Makes a record of the values that a program prints.
fn of_program(workspace: &Workspace, program: &Path, record: &Path, arguments: &[String]) -> Result<(), StepError> {
    let mut measure = process::cargo(workspace);
    measure.args(["run", "--package", "palimpsest-bench", "--example", "samples", "--"]).arg(record).arg(program);
    // How many functions.
    let counts: &[&str] = match arguments.first().map(String::as_str) {
        Some("--check") => &["100"],
        Some("--quick") => &["1000"],
        _ => &[],
    };
    process::stream(measure.args(counts))
}

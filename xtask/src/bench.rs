//! `cargo xtask bench`: the program's suites with the peers, and the suites of the adapters, which are workspaces of
//! their own and write records of the same format.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{
    cmake,
    need::Need,
    process,
    step::StepError,
    steps::python::{self, Built},
    ubpf,
    workspace::Workspace,
};

/// The argument that chooses the adapters, and the name of their folder.
pub(crate) const ADAPTERS: &str = "adapters";

/// How an adapter is measured.
enum Measure {
    /// By its example `bench`, which writes the record that its first argument names. It is built with optimisation,
    /// except for `--check`, which takes what the adapter's step has built.
    Example,
    /// By a program that CMake builds with these options, and which prints values (`adapters/measure.h`).
    Program { name: &'static str, options: &'static [&'static str], needs: &'static [Need] },
    /// By its example of this name, and by the program that the package in its folder `plain` makes of the same file
    /// without the adapter, by turns. Both print such values.
    Pair { example: &'static str },
    /// By its script `measure.py`, which prints such values, with the package that is built for it.
    Script,
}

/// The adapters that are measured.
const MEASURED: [(&str, Measure); 5] = [
    ("wasmtime", Measure::Example),
    ("rbpf", Measure::Pair { example: "scripts" }),
    (
        "llvm-orc",
        Measure::Program { name: "orc-bench", options: cmake::WITH_LLVM, needs: &[cmake::CMAKE, cmake::LLVM] },
    ),
    ("asmjit", Measure::Program { name: "asmjit-bench", options: &[], needs: &[cmake::CMAKE, cmake::ASMJIT] }),
    ("python", Measure::Script),
];

/// The target folder of the program with uBPF.
const WITH_UBPF: &str = "peers";

/// Runs `palimpsest bench` with the arguments given.
pub(crate) fn suites(workspace: &Workspace, arguments: &[String]) -> Result<(), StepError> {
    let mut bench = process::cargo(workspace);
    match ubpf::missing(workspace) {
        None => {
            ubpf::with(&mut bench, workspace, WITH_UBPF);
        }
        Some(need) => println!("without uBPF: {}", need.remedy()),
    }
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
            // How many functions.
            let counts = numbers(arguments, "100", "1000");
            of_program(&mut samples(workspace), &record, &built.join(program), counts)?;
        }
        Some((_, Measure::Pair { example })) => pair(workspace, name, example, &record, arguments)?,
        Some((_, Measure::Script)) => {
            let built = if is_check(arguments) { Built::Debug } else { Built::Release };
            let package = python::package(workspace, built)?;
            let script = workspace.root.join(ADAPTERS).join(name).join("measure.py");
            let mut samples = samples(workspace);
            // How many MiB.
            let sizes = numbers(arguments, "16", "256");
            of_program(samples.env("PYTHONPATH", package), &record, &script, sizes)?;
        }
        _ => {
            let mut measure = process::cargo(workspace);
            measure.args(["run", "--locked", "--example", "bench", "--manifest-path"]);
            measure.arg(workspace.root.join(ADAPTERS).join(name).join("Cargo.toml"));
            if !is_check(arguments) {
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

/// Makes a record of what the adapter's example prints, and the same program without the adapter.
fn pair(
    workspace: &Workspace,
    name: &str,
    example: &str,
    record: &Path,
    arguments: &[String],
) -> Result<(), StepError> {
    let folder = workspace.root.join(ADAPTERS).join(name);
    let build = |folder: &Path, targets: [&str; 2]| {
        let mut cargo = process::cargo(workspace);
        cargo.args(["build", "--locked"]).args(targets).arg("--manifest-path").arg(folder.join("Cargo.toml"));
        if !is_check(arguments) {
            cargo.arg("--release");
        }
        process::stream(process::apart(&mut cargo, workspace, name))
    };
    build(&folder, ["--example", example])?;
    build(&folder.join("plain"), ["--bin", example])?;
    let built = workspace.separate_target(name).join(if is_check(arguments) { "debug" } else { "release" });
    let mut samples = samples(workspace);
    samples.arg(record).arg("--turns");
    for (contestant, program) in [("packs", built.join("examples").join(example)), ("plain", built.join(example))] {
        samples.arg(format!("{contestant}={}", program.display()));
    }
    process::stream(samples.arg("--").args(numbers(arguments, "100", "1000")))
}

fn is_check(arguments: &[String]) -> bool {
    arguments.iter().any(|argument| argument == "--check")
}

/// Returns the numbers for which a program is to measure; none for its own choice.
fn numbers(arguments: &[String], check: &'static str, quick: &'static str) -> Option<&'static str> {
    match arguments.first().map(String::as_str) {
        Some("--check") => Some(check),
        Some("--quick") => Some(quick),
        _ => None,
    }
}

/// Returns the program that makes records of the values that another prints.
fn samples(workspace: &Workspace) -> Command {
    let mut samples = process::cargo(workspace);
    samples.args(["run", "--package", "palimpsest-bench", "--example", "samples", "--"]);
    samples
}

/// Makes a record of the values that `program` prints.
fn of_program(
    samples: &mut Command,
    record: &Path,
    program: &Path,
    number: Option<&'static str>,
) -> Result<(), StepError> {
    process::stream(samples.arg(record).arg(program).args(number))
}

//! `cargo xtask bench`: the program's suites with the peers, and the suites of the adapters, which are workspaces of
//! their own and write records of the same format.

use std::fs;

use crate::{process, step::StepError, workspace::Workspace};

/// The argument that chooses the adapters, and the name of their folder.
pub(crate) const ADAPTERS: &str = "adapters";

/// Adapters with an example `bench`, which writes a record to the file that its first argument names. Each is built in
/// the folder of its step, optimised.
const WITH_BENCH: [&str; 1] = ["wasmtime"];

/// Runs `palimpsest bench` with the arguments given.
pub(crate) fn suites(workspace: &Workspace, arguments: &[String]) -> Result<(), StepError> {
    let mut bench = process::cargo(workspace);
    bench.args(["run", "--release", "--package", "palimpsest-live-cli", "--features", "peers", "--", "bench"]);
    process::stream(bench.args(arguments))
}

/// Measures each adapter that can be, and shows the records as `palimpsest bench` shows its own.
pub(crate) fn adapters(workspace: &Workspace, arguments: &[String]) -> Result<(), StepError> {
    WITH_BENCH.iter().try_for_each(|name| adapter(workspace, name, arguments))
}

/// Measures one adapter, and shows its record.
pub(crate) fn adapter(workspace: &Workspace, name: &str, arguments: &[String]) -> Result<(), StepError> {
    let folder = workspace.target.join("bench");
    fs::create_dir_all(&folder).map_err(|source| StepError::File { action: "make", path: folder.clone(), source })?;
    let record = folder.join(name).with_extension("json");
    let mut measure = process::cargo(workspace);
    measure.args(["run", "--locked", "--example", "bench", "--manifest-path"]);
    measure.arg(workspace.root.join(ADAPTERS).join(name).join("Cargo.toml"));
    measure.arg("--").arg(&record).args(arguments);
    process::stream(process::apart(&mut measure, workspace, name))?;
    let mut show = process::cargo(workspace);
    show.args(["run", "--package", "palimpsest-live-cli", "--", "bench", "--from"]).arg(&record);
    process::stream(&mut show)
}

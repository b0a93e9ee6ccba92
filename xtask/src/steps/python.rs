//! Builds the Python package, lays it out as in its wheel, and tests it with Debian's Python and a newer one.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    process,
    step::{Depth, Done, LeftOut, StepError},
    workspace::Workspace,
};

/// The target folder.
pub(super) const FOLDER: &str = "python";
/// The folder of the package, a workspace of its own.
const ADAPTER: &str = "adapters/python";
/// Debian's Python.
const OLDER: &str = "/usr/bin/python3";
/// Newer ones; the first that runs is taken.
const NEWER: [&str; 3] = ["python3.14", "python3.13", "python3.12"];

/// What tests start, if it is installed; exhaustive runs install it for the newer Python.
const SERVERS: [&str; 2] = ["gunicorn==27.0.1", "uvicorn==0.54.0"];

pub(super) const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        what: "the wheel, made by maturin and installed",
        reason: "it has the same files as the package that is tested, built once more, by a program from PyPI",
    },
    LeftOut { what: "the package's lints", reason: "PyO3 and the crates below are read once more for a small crate" },
];

pub(super) fn python(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let manifest = workspace.root.join(ADAPTER).join("Cargo.toml");
    if depth == Depth::Exhaustive {
        let mut lint = process::cargo(workspace);
        lint.args(["clippy", "--locked", "--manifest-path"]).arg(&manifest).args(["--", "-D", "warnings"]);
        process::stream(process::apart(&mut lint, workspace, FOLDER))?;
    }
    let package = package(workspace, Built::Debug)?;
    let older = if process::is_runnable(OLDER) { OLDER } else { "python3" };
    let mut remarks = Vec::new();
    let mut newer = newer(workspace);
    if newer.is_none() {
        remarks.push(format!("none of {} is here", NEWER.join(", ")));
    }
    if let (Depth::Exhaustive, Some(python)) = (depth, &newer) {
        match with_servers(workspace, python) {
            Some(within) => newer = Some(within),
            None => {
                remarks.push(format!("{}, or the module venv, cannot be had for the newer Python", SERVERS.join(", ")))
            }
        }
    }
    for python in std::iter::once(PathBuf::from(older)).chain(newer) {
        let mut test = process::program(python, workspace);
        test.args(["-m", "unittest", "-v"]).env("PYTHONPATH", &package).env("PYTHONDONTWRITEBYTECODE", "1");
        test.current_dir(workspace.root.join(ADAPTER).join("tests"));
        process::stream_within(&mut test, process::LIMIT)?;
    }
    if depth == Depth::Exhaustive {
        remarks.extend(wheel(workspace, older)?);
    }
    Ok(Done::with(&remarks))
}

/// Finds a newer Python, by its name in PATH or among those of pyenv.
fn newer(workspace: &Workspace) -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().filter_map(Result::ok);
    let versions: Vec<PathBuf> = versions.map(|version| version.path().join("bin/python3")).collect();
    let runs = |python: &PathBuf| {
        process::program(python, workspace).arg("--version").output().is_ok_and(|said| said.status.success())
    };
    NEWER.into_iter().find_map(|name| {
        let version = name.trim_start_matches("python");
        let is_it = |path: &&PathBuf| path.to_string_lossy().contains(&format!("/{version}."));
        let found = versions.iter().filter(is_it).cloned();
        std::iter::once(PathBuf::from(name)).chain(found).find(runs)
    })
}

/// Makes an environment of `python` with [`SERVERS`], and returns its Python, if both can be had.
fn with_servers(workspace: &Workspace, python: &Path) -> Option<PathBuf> {
    let home = workspace.separate_target(FOLDER).join("newer");
    process::stream(process::program(python, workspace).args(["-m", "venv", "--clear"]).arg(&home)).ok()?;
    let mut pip = process::program(home.join("bin/pip"), workspace);
    process::stream_within(pip.args(["install", "--quiet"]).args(SERVERS), process::LIMIT).ok()?;
    Some(home.join("bin/python"))
}

/// How the package is built.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Built {
    /// For tests.
    Debug,
    /// With optimisation, to be measured.
    Release,
}

/// Builds the package, and returns a folder for `PYTHONPATH` with the contents of its wheel.
pub(crate) fn package(workspace: &Workspace, built: Built) -> Result<PathBuf, StepError> {
    let mut build = process::cargo(workspace);
    build.args(["build", "--locked", "--manifest-path"]).arg(workspace.root.join(ADAPTER).join("Cargo.toml"));
    let (options, profile): (&[&str], _) = match built {
        Built::Debug => (&[], "debug"),
        Built::Release => (&["--release"], "release"),
    };
    process::stream(process::apart(build.args(options), workspace, FOLDER))?;
    let folder = workspace.separate_target(FOLDER).join(profile).join("package");
    let package = folder.join("palimpsest");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| StepError::File { action: "write", path, source }
    };
    fs::create_dir_all(&package).map_err(failed(&package))?;
    let sources = workspace.root.join(ADAPTER).join("python/palimpsest");
    let entries = fs::read_dir(&sources).map_err(failed(&sources))?;
    for entry in entries.filter_map(Result::ok).filter(|entry| entry.path().extension().is_some_and(|it| it == "py")) {
        let to = package.join(entry.file_name());
        fs::copy(entry.path(), &to).map_err(failed(&to))?;
    }
    let built = workspace.separate_target(FOLDER).join(profile).join("libpalimpsest_native.so");
    let to = package.join("_native.abi3.so");
    fs::copy(built, &to).map_err(failed(&to))?;
    Ok(folder)
}

/// Makes the wheel, installs it into an empty environment, and freezes with it; or returns why it could not.
fn wheel(workspace: &Workspace, python: &str) -> Result<Option<String>, StepError> {
    let folder = workspace.separate_target(FOLDER);
    let (home, wheels) = (folder.join("venv"), folder.join("wheels"));
    let made = process::stream(process::program(python, workspace).args(["-m", "venv", "--clear"]).arg(&home));
    if made.is_err() {
        return Ok(Some("no wheel: there is no module venv (Debian package python3-venv)".to_owned()));
    }
    let pip = |arguments: &[&str]| {
        let mut pip = process::program(home.join("bin/pip"), workspace);
        process::stream_within(pip.args(["install", "--quiet"]).args(arguments), process::LIMIT)
    };
    if pip(&["maturin>=1.7,<2"]).is_err() {
        return Ok(Some("no wheel: maturin cannot be had from PyPI".to_owned()));
    }
    let mut build = process::program(home.join("bin/maturin"), workspace);
    build.args(["build", "--locked", "--manifest-path"]).arg(workspace.root.join(ADAPTER).join("Cargo.toml"));
    process::stream(process::apart(build.arg("--out").arg(&wheels), workspace, FOLDER))?;
    pip(&["--no-index", "--find-links", &wheels.to_string_lossy(), "palimpsest"])?;
    let freezes = "import palimpsest; print(palimpsest.freeze(measure=True))";
    process::stream_within(process::program(home.join("bin/python"), workspace).args(["-c", freezes]), process::LIMIT)?;
    Ok(None)
}

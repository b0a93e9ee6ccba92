//! Builds the test programs for AArch64.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{Compiler, DEBIAN_RUSTC, LINKER, TARGET};
use crate::{
    process,
    step::{Done, StepError},
    workspace::Workspace,
};

/// The crates with code of their own for each architecture.
const PACKAGES: [&str; 3] = ["palimpsest-fork", "palimpsest-sys", "palimpsest-text"];

/// A test program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TestProgram {
    /// `package.target`, for people.
    pub(super) name: String,
    pub(super) path: PathBuf,
    /// What it is started with.
    pub(super) arguments: Vec<&'static str>,
}

pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let programs = test_programs(workspace)?;
    guest_init(workspace)?;
    Ok(Done::PassedWith(format!("{} test programs", programs.len())))
}

/// Builds the tests of [`PACKAGES`] and returns their programs.
pub(super) fn test_programs(workspace: &Workspace) -> Result<Vec<TestProgram>, StepError> {
    let mut test = cross_cargo(workspace, "test");
    test.args(["--no-run", "--all-features", "--message-format", "json-render-diagnostics"]);
    for package in PACKAGES {
        test.args(["--package", package]);
    }
    process::announce(&test);
    let programs = programs(&process::capture(test.stderr(Stdio::inherit()))?)?;
    if programs.is_empty() { Err(StepError::NoPrograms { target: TARGET }) } else { Ok(programs) }
}

/// Builds the guest's `/init` and returns its path.
pub(super) fn guest_init(workspace: &Workspace) -> Result<PathBuf, StepError> {
    let mut build = cross_cargo(workspace, "build");
    build.args(["--package", "xtask", "--no-default-features", "--bin", "guest-init"]);
    process::stream(&mut build)?;
    Ok(workspace.separate_target(FOLDER).join(TARGET).join("debug/guest-init"))
}

fn cross_cargo(workspace: &Workspace, task: &str) -> Command {
    let mut cargo = process::cargo(workspace);
    cargo.args([task, "--target", TARGET]).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER);
    // Emulation is slow and the programs travel in an initramfs: some optimisation, no debug information.
    cargo.envs([
        ("CARGO_PROFILE_DEV_OPT_LEVEL", "1"),
        ("CARGO_PROFILE_DEV_DEBUG", "0"),
        ("CARGO_PROFILE_DEV_STRIP", "debuginfo"),
    ]);
    process::apart(&mut cargo, workspace, FOLDER);
    if matches!(Compiler::find(workspace), Some(Compiler::Debian)) {
        cargo.env("RUSTC", DEBIAN_RUSTC);
    }
    cargo
}

/// The target folder, apart from the host's because the compiler may be another one.
pub(crate) const FOLDER: &str = "aarch64";

/// The test programs among cargo's JSON messages, one message on each line.
fn programs(messages: &str) -> Result<Vec<TestProgram>, StepError> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).map_err(|_| StepError::CargoOutput { found: line.to_owned() })?;
        if message["profile"]["test"] != true {
            continue;
        }
        let (Some(path), Some(target)) = (message["executable"].as_str(), message["target"]["name"].as_str()) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        // The folder of the package, which is its short name: `text` for palimpsest-text.
        let package = manifest.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let name = if kind == "lib" { format!("{package}.lib") } else { format!("{package}.{target}") };
        programs.push(TestProgram { name, path: path.into(), arguments: Vec::new() });
    }
    Ok(programs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_picked_from_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/text/Cargo.toml","target":{"kind":["lib"],"name":"palimpsest_text"},"profile":{"test":true},"executable":"/t/deps/palimpsest_text-1"}
{"reason":"compiler-artifact","manifest_path":"/w/crates/text/Cargo.toml","target":{"kind":["lib"],"name":"palimpsest_text"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/crates/text/Cargo.toml","target":{"kind":["test"],"name":"stress"},"profile":{"test":true},"executable":"/t/deps/stress-2"}
{"reason":"build-finished","success":true}"#;
        let expected = [("text.lib", "/t/deps/palimpsest_text-1"), ("text.stress", "/t/deps/stress-2")]
            .map(|(name, path)| TestProgram { name: name.to_owned(), path: path.into(), arguments: Vec::new() });
        assert_eq!(programs(messages).expect("valid messages"), expected);
    }

    #[test]
    fn other_output_is_an_error_that_shows_it() {
        let error = programs("warning: hello").expect_err("not JSON");
        assert!(error.to_string().ends_with("warning: hello"));
    }
}

//! Formatting, lints, documentation.

use crate::{
    guest::{self, Arch},
    process,
    step::{Done, StepError},
    workspace::Workspace,
};

pub(super) fn fmt(workspace: &Workspace) -> Result<Done, StepError> {
    process::stream(process::cargo(workspace).args(["fmt", "--all", "--check"]))?;
    process::stream(&mut guest::cargo(workspace, &["fmt", "--check"]))?;
    Ok(Done::Passed)
}

pub(super) fn clippy(workspace: &Workspace) -> Result<Done, StepError> {
    let mut clippy = process::cargo(workspace);
    let whole = ["clippy", "--workspace", "--all-targets", "--all-features", "--keep-going", "--", "-D", "warnings"];
    clippy.args(whole);
    process::stream(&mut clippy)?;
    // The program as its users build it: no other step of a short run has it without all features.
    let mut program = process::cargo(workspace);
    process::stream(program.args(["clippy", "--package", "palimpsest-live-cli", "--", "-D", "warnings"]))?;
    for arch in Arch::ALL.into_iter().filter(|arch| arch.target().is_met(workspace)) {
        let lint = ["clippy", "--target", arch.triple(), "--", "-D", "warnings"];
        process::stream(&mut guest::cargo(workspace, &lint))?;
    }
    Ok(Done::Passed)
}

pub(super) fn doc(workspace: &Workspace) -> Result<Done, StepError> {
    let mut doc = process::cargo(workspace);
    doc.args(["doc", "--workspace", "--no-deps", "--all-features"]).env("RUSTDOCFLAGS", "-D warnings");
    process::stream(&mut doc)?;
    Ok(Done::Passed)
}

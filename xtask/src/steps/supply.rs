//! The dependencies: licences, sources, advisories, by the rules of `deny.toml`.

use crate::{
    need::Need,
    process,
    step::{Done, StepError},
    workspace::Workspace,
};

/// Built by hand: it takes longer to compile than everything else here together.
pub(super) const CARGO_DENY: Need = Need::CargoProgram { program: "cargo-deny" };

pub(super) fn deny(workspace: &Workspace) -> Result<Done, StepError> {
    process::stream(process::cargo(workspace).args(["deny", "--all-features", "check"]))?;
    Ok(Done::Passed)
}

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
    let deny = |arguments: &[&str]| {
        process::stream(process::cargo(workspace).args(["deny", "--all-features"]).args(arguments))
    };
    deny(&["check", "--hide-inclusion-graph", "bans", "licenses", "sources"])?;
    // The advisories come from the network; that it cannot be reached is no fault of the dependencies.
    if deny(&["fetch", "db"]).is_err() {
        return Ok(Done::PassedWith("without advisories: their database cannot be fetched".to_owned()));
    }
    deny(&["check", "--hide-inclusion-graph", "--disable-fetch", "advisories"])?;
    Ok(Done::Passed)
}

//! The dependencies: licences, sources, advisories, by the rules of `deny.toml`.

use crate::{
    need::Need,
    process,
    step::{Done, StepError},
    workspace::Workspace,
};

/// Built by hand: it takes longer to compile than everything else here together.
pub(super) const CARGO_DENY: Need = Need::CargoProgram { program: "cargo-deny" };

/// The workspace, and what is apart from it with a lock file of its own.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "libafl/Cargo.toml", "kernel/Cargo.toml"];

pub(super) fn deny(workspace: &Workspace) -> Result<Done, StepError> {
    let rules = workspace.root.join("deny.toml");
    let deny = |manifest: &str, task: &str, arguments: &[&str]| {
        let mut deny = process::cargo(workspace);
        deny.args(["deny", "--all-features", "--manifest-path"]).arg(workspace.root.join(manifest));
        // Whatever is apart has no rules of its own.
        process::stream(deny.arg(task).arg("--config").arg(&rules).args(arguments))
    };
    for manifest in MANIFESTS {
        deny(manifest, "check", &["--hide-inclusion-graph", "bans", "licenses", "sources"])?;
    }
    // The advisories come from the network; that it cannot be reached is no fault of the dependencies.
    if deny(MANIFESTS[0], "fetch", &["db"]).is_err() {
        return Ok(Done::PassedWith("without advisories: their database cannot be fetched".to_owned()));
    }
    for manifest in MANIFESTS {
        deny(manifest, "check", &["--hide-inclusion-graph", "--disable-fetch", "advisories"])?;
    }
    Ok(Done::Passed)
}

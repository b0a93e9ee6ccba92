//! What a suite gets, and where it leaves its results.

use std::path::Path;
use std::process::Command;

use super::contestant::{Group, Samples};
use super::progress::Progress;
use super::record::{Entry, Skipped};
use super::request::{Effort, HELPER, Wanted};

/// See the module.
pub struct Context<'a> {
    /// How long to measure.
    pub effort: Effort,
    wanted: Wanted,
    program: Option<&'a Path>,
    progress: &'a dyn Progress,
    backing: Option<&'a str>,
    results: Vec<Entry>,
    skipped: Vec<Skipped>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        effort: Effort,
        wanted: Wanted,
        program: Option<&'a Path>,
        progress: &'a dyn Progress,
        backing: Option<&'a str>,
    ) -> Self {
        Self { effort, wanted, program, progress, backing, results: Vec::new(), skipped: Vec::new() }
    }

    /// Returns what was recorded and skipped.
    pub(super) fn into_results(self) -> (Vec<Entry>, Vec<Skipped>) {
        (self.results, self.skipped)
    }

    /// Whether to measure `group`.
    #[must_use]
    pub fn wants(&self, group: &Group) -> bool {
        self.wanted.group(group)
    }

    /// Returns those of `groups` that are to be measured.
    #[must_use]
    pub fn wanted(&self, groups: impl IntoIterator<Item = Group>) -> Vec<Group> {
        groups.into_iter().filter(|group| self.wants(group)).collect()
    }

    /// Reports what is being measured: an id, a shared beginning of ids, or a preparation.
    pub fn begin(&self, what: &str) {
        self.progress.begin(what);
    }

    /// Makes entries of the samples of `group`, which is then done.
    pub fn record(&mut self, group: &Group, samples: Samples) {
        let (entries, skipped) = group.evaluate(samples, self.backing);
        self.done(group, entries, skipped);
    }

    /// Leaves out all of `group`, which is then done.
    pub fn skip(&mut self, group: &Group, reason: &str) {
        let skipped = Skipped { id: format!("{}.*", group.id), reason: reason.to_owned() };
        self.done(group, Vec::new(), vec![skipped]);
    }

    fn done(&mut self, group: &Group, entries: Vec<Entry>, skipped: Vec<Skipped>) {
        self.progress.done(group, &entries, &skipped);
        self.results.extend(entries);
        self.skipped.extend(skipped);
    }

    /// Returns a command that starts this program as a helper of this name; see [`super::Request::program`].
    ///
    /// # Errors
    ///
    /// The reason why there is none, for [`Self::skip`].
    pub fn helper(&self, name: &str) -> Result<Command, String> {
        let mut command = self.program()?;
        command.arg(HELPER).arg(name);
        Ok(command)
    }

    /// Returns a command that starts the program whose name and arguments follow, with memory that is frozen at a fork.
    ///
    /// # Errors
    ///
    /// The reason why there is none, for [`Self::skip`].
    pub fn frozen(&self) -> Result<Command, String> {
        let mut command = self.program()?;
        command.arg("run");
        Ok(command)
    }

    /// Returns a command that starts the program whose name and arguments follow from huge pages on one node.
    ///
    /// # Errors
    ///
    /// The reason why there is none, for [`Self::skip`].
    pub fn local_text(&self) -> Result<Command, String> {
        let mut command = self.program()?;
        command.args(["run", "--local-text", "--no-freeze"]);
        Ok(command)
    }

    fn program(&self) -> Result<Command, String> {
        let missing = || "a process has to be started from this program's own file, which is not there".to_owned();
        self.program.map(Command::new).ok_or_else(missing)
    }
}

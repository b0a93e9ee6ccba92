//! Prints the table that closes a run, and the list of steps.

use std::{fmt::Write, fs, io, num::NonZero, path::PathBuf, thread};

use serde::{Deserialize, Serialize};

use crate::{
    runner,
    step::{Step, StepError},
    workspace::Workspace,
};

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

impl Outcome {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::Skipped => "skipped",
        }
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    /// Time from its start to its end, with other steps beside it.
    pub(crate) seconds: f64,
    /// Processor time of every process that it started.
    pub(crate) processor_seconds: f64,
    /// Why it failed or was skipped, or what it did not cover.
    pub(crate) remark: String,
}

/// Returns the table with its closing line, without a final line break.
pub(crate) fn render(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Row { name, outcome, seconds, processor_seconds, remark } in rows {
        let word = outcome.word();
        let line = format!("{name:width$}  {word:7}  {seconds:7.1} s  {processor_seconds:7.1} s of CPU  {remark}");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let (passed, failed, skipped) = (count(Outcome::Passed), count(Outcome::Failed), count(Outcome::Skipped));
    // Writing to a String cannot fail.
    let _ = write!(text, "steps: {passed} passed, {failed} failed, {skipped} skipped");
    text
}

/// Writes `rows` as JSON below the target folder, with the facts that their times depend on.
pub(crate) fn record(workspace: &Workspace, lanes: usize, rows: &[Row]) -> Result<PathBuf, StepError> {
    #[derive(Serialize)]
    struct Record<'a> {
        processors: usize,
        lanes: usize,
        load_at_end: String,
        steps: &'a [Row],
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let record = Record {
        processors: thread::available_parallelism().map_or(1, NonZero::get),
        lanes,
        load_at_end: load.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
        steps: rows,
    };
    let path = workspace.separate_target(runner::FOLDER).join("record.json");
    let failed = |source| StepError::File { action: "write", path: path.clone(), source };
    let text = serde_json::to_string_pretty(&record).map_err(io::Error::from).map_err(failed)?;
    fs::write(&path, text + "\n").map_err(failed)?;
    Ok(path)
}

/// Returns what a short run of `steps` leaves out, and why, a line each.
pub(crate) fn left_out(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        for left in step.left_out {
            let _ = writeln!(text, "left to --exhaustive: {}: {}: {}", step.name, left.what, left.reason);
        }
    }
    text
}

/// Prints each step with what it lacks on this machine, and what a short run leaves out.
pub(crate) fn list(workspace: &Workspace, steps: &[Step]) {
    let width = steps.iter().map(|step| step.name.len()).max().unwrap_or(0);
    for step in steps {
        println!("{:width$}  {}", step.name, step.about);
        for (word, needs) in [("missing", step.needs), ("covers more with", step.wants)] {
            let remedies = runner::remedies(workspace, needs);
            if !remedies.is_empty() {
                println!("{:width$}  {word}: {remedies}", "");
            }
        }
    }
    print!("{}", left_out(steps));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_counts_each_outcome() {
        let row = |name, outcome, remark: &str| Row {
            name,
            outcome,
            seconds: 1.25,
            processor_seconds: 2.25,
            remark: remark.to_owned(),
        };
        let rows = [
            row("fmt", Outcome::Passed, ""),
            row("clippy", Outcome::Failed, "ended with exit status: 1"),
            row("deny", Outcome::Skipped, "no cargo-deny"),
        ];
        let expected = "\
fmt     passed       1.2 s      2.2 s of CPU
clippy  FAILED       1.2 s      2.2 s of CPU  ended with exit status: 1
deny    skipped      1.2 s      2.2 s of CPU  no cargo-deny
steps: 1 passed, 1 failed, 1 skipped";
        assert_eq!(render(&rows), expected);
    }
}

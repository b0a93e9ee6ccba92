//! The table that closes a run, and the list of steps.

use std::fmt::Write;

use crate::{runner, step::Step, workspace::Workspace};

/// How a step ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

impl Outcome {
    fn word(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "FAILED",
            Outcome::Skipped => "skipped",
        }
    }
}

/// One line of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) seconds: f64,
    /// Why it failed or was skipped, or what it did not cover.
    pub(crate) remark: String,
}

/// The table with its closing line, without a final line break.
pub(crate) fn render(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Row { name, outcome, seconds, remark } in rows {
        let line = format!("{name:width$}  {:7}  {seconds:7.1} s  {remark}", outcome.word());
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let (passed, failed, skipped) = (count(Outcome::Passed), count(Outcome::Failed), count(Outcome::Skipped));
    // Writing to a String cannot fail.
    let _ = write!(text, "steps: {passed} passed, {failed} failed, {skipped} skipped");
    text
}

/// Prints each step with what it lacks on this machine.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_counts_each_outcome() {
        let row = |name, outcome, remark: &str| Row { name, outcome, seconds: 1.25, remark: remark.to_owned() };
        let rows = [
            row("fmt", Outcome::Passed, ""),
            row("clippy", Outcome::Failed, "ended with exit status: 1"),
            row("deny", Outcome::Skipped, "no cargo-deny"),
        ];
        let expected = "\
fmt     passed       1.2 s
clippy  FAILED       1.2 s  ended with exit status: 1
deny    skipped      1.2 s  no cargo-deny
steps: 1 passed, 1 failed, 1 skipped";
        assert_eq!(render(&rows), expected);
    }
}

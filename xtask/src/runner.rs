//! Chooses the steps, runs them in order and ends with the table.

use std::{fs, io, process::ExitCode, time::Instant};

use clap::ValueEnum;

use crate::{
    need::Need,
    step::{Done, Pace, Step, StepError, chain},
    table::{self, Outcome, Row},
    workspace::Workspace,
};

/// Which steps to run.
#[derive(Default)]
pub(crate) struct Selection {
    /// These alone, when there are any.
    pub(crate) only: Vec<String>,
    /// None that is slower than this.
    pub(crate) pace: Pace,
}

/// What becomes of the target folders that only one step builds in.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Leftovers {
    /// They stay, and the next run is quicker.
    #[default]
    Keep,
    /// They are removed, so that the disk holds one of them at a time.
    Remove,
}

/// The steps of `all` that `selection` names, in the order of `all`.
pub(crate) fn select(all: &[Step], selection: &Selection) -> Result<Vec<Step>, StepError> {
    if let Some(name) = selection.only.iter().find(|name| !all.iter().any(|step| step.name == name.as_str())) {
        let known = all.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
        return Err(StepError::UnknownStep { name: name.clone(), known });
    }
    let named = |step: &Step| selection.only.is_empty() || selection.only.iter().any(|name| name == step.name);
    let chosen: Vec<Step> = all.iter().filter(|step| named(step) && step.pace <= selection.pace).copied().collect();
    if chosen.is_empty() { Err(StepError::NothingSelected) } else { Ok(chosen) }
}

/// Runs `steps` and prints the table; fails when a step failed.
pub(crate) fn run(workspace: &Workspace, steps: &[Step], leftovers: Leftovers) -> ExitCode {
    let mut rows = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!("\n=== {}: {}{}", step.name, step.about, free_space(workspace));
        let start = Instant::now();
        let (outcome, remark) = outcome(workspace, step);
        if outcome == Outcome::Failed {
            println!("=== {} failed: {remark}", step.name);
        }
        let is_last = steps[index + 1..].iter().all(|later| later.scratch != step.scratch);
        if outcome != Outcome::Failed && is_last && leftovers == Leftovers::Remove {
            remove_scratch(workspace, step);
        }
        rows.push(Row { name: step.name, outcome, seconds: start.elapsed().as_secs_f64(), remark });
    }
    println!("\n{}", table::render(&rows));
    if rows.iter().any(|row| row.outcome == Outcome::Failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What the disk of the target folder has left: a full one fails a step with whatever message.
fn free_space(workspace: &Workspace) -> String {
    match rustix::fs::statvfs(&workspace.target).or_else(|_| rustix::fs::statvfs(&workspace.root)) {
        Ok(disk) => format!(" ({} MB of the disk are free)", disk.f_bavail.saturating_mul(disk.f_frsize) / 1_000_000),
        Err(_) => String::new(),
    }
}

fn remove_scratch(workspace: &Workspace, step: &Step) {
    let Some(folder) = step.scratch.map(|name| workspace.separate_target(name)) else { return };
    if let Err(error) = fs::remove_dir_all(&folder)
        && error.kind() != io::ErrorKind::NotFound
    {
        println!("leftovers: cannot remove {}: {error}", folder.display());
    }
}

fn outcome(workspace: &Workspace, step: &Step) -> (Outcome, String) {
    let missing = remedies(workspace, step.needs);
    if !missing.is_empty() {
        return (Outcome::Skipped, missing);
    }
    let lacking = remedies(workspace, step.wants);
    match (step.run)(workspace) {
        Ok(Done::Passed) if lacking.is_empty() => (Outcome::Passed, String::new()),
        Ok(Done::Passed) => (Outcome::Passed, format!("in part; {lacking}")),
        Ok(Done::PassedWith(remark)) if lacking.is_empty() => (Outcome::Passed, remark),
        Ok(Done::PassedWith(remark)) => (Outcome::Passed, format!("in part; {lacking}; {remark}")),
        Ok(Done::Skipped(reason)) => (Outcome::Skipped, reason),
        Err(error) => (Outcome::Failed, chain(&error)),
    }
}

/// What would bring those of `needs` that are missing.
pub(crate) fn remedies(workspace: &Workspace, needs: &[Need]) -> String {
    let missing = needs.iter().filter(|need| !need.is_met(workspace));
    missing.map(|need| need.remedy()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps;

    fn names(selection: &Selection) -> Vec<&'static str> {
        select(&steps::all(), selection).expect("a valid selection").iter().map(|step| step.name).collect()
    }

    #[test]
    fn every_step_runs_by_default_and_its_name_is_unique() {
        let mut all = names(&Selection::default());
        assert_eq!(all.len(), steps::all().len());
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), steps::all().len());
    }

    #[test]
    fn only_keeps_the_order_of_the_steps() {
        assert_eq!(names(&Selection { only: vec!["test".into(), "fmt".into()], pace: Pace::Slow }), ["fmt", "test"]);
    }

    #[test]
    fn quick_leaves_out_the_slow_steps() {
        let quick = names(&Selection { only: Vec::new(), pace: Pace::Quick });
        assert!(quick.contains(&"test") && !quick.contains(&"aarch64-system"), "{quick:?}");
    }

    #[test]
    fn a_step_that_passed_leaves_nothing_where_that_is_asked_for() {
        let passing = |_: &Workspace| Ok(Done::Passed);
        let failing = |_: &Workspace| Err(StepError::NothingSelected);
        let step = |run| Step { scratch: Some("apart"), needs: &[], wants: &[], run, ..steps::all()[0] };
        let folder = tempfile::tempdir().expect("a temporary folder");
        let workspace = Workspace { root: folder.path().into(), target: folder.path().join("target") };
        let apart = workspace.separate_target("apart");
        let stays = |step: Step, leftovers| {
            fs::create_dir_all(apart.join("debug")).expect("a folder");
            run(&workspace, &[step], leftovers);
            apart.exists()
        };
        assert!(stays(step(passing), Leftovers::Keep) && stays(step(failing), Leftovers::Remove));
        assert!(!stays(step(passing), Leftovers::Remove));
    }

    #[test]
    fn an_unknown_step_is_named() {
        let error = select(&steps::all(), &Selection { only: vec!["tset".into()], pace: Pace::Slow }).err();
        assert!(error.is_some_and(|error| error.to_string().starts_with("there is no step \"tset\"")));
    }
}

//! Chooses the steps, runs each in a process of its own and ends with the table.

use std::{
    error::Error,
    fs, io,
    path::Path,
    process::{Command, ExitCode, ExitStatus},
    time::{Duration, Instant},
};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    lanes,
    need::Need,
    process,
    step::{Depth, Done, Pace, Step, StepError, chain},
    table::{self, Outcome, Row},
    workspace::Workspace,
};

/// Which steps to run.
#[derive(Default)]
pub(crate) struct Selection {
    /// Only these steps, if there are any.
    pub(crate) only: Vec<String>,
    /// No step slower than this.
    pub(crate) pace: Pace,
}

/// What to do with target folders that only one step builds in.
#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Leftovers {
    /// Keep them: the next run is quicker.
    #[default]
    Keep,
    /// Remove them: the disk holds one of them at a time.
    Remove,
}

/// Returns the steps of `all` that `selection` names, in the order of `all`.
pub(crate) fn select(all: &[Step], selection: &Selection) -> Result<Vec<Step>, StepError> {
    if let Some(name) = selection.only.iter().find(|name| !all.iter().any(|step| step.name == name.as_str())) {
        let known = all.iter().map(|step| step.name).collect::<Vec<_>>().join(", ");
        return Err(StepError::UnknownStep { name: name.clone(), known });
    }
    let slow = |step: &&Step| step.pace > selection.pace && selection.only.iter().any(|name| name == step.name);
    if let Some(step) = all.iter().find(slow) {
        return Err(StepError::TooSlow { name: step.name });
    }
    let named = |step: &Step| selection.only.is_empty() || selection.only.iter().any(|name| name == step.name);
    let chosen: Vec<Step> = all.iter().filter(|step| named(step) && step.pace <= selection.pace).copied().collect();
    if chosen.is_empty() { Err(StepError::NothingSelected) } else { Ok(chosen) }
}

/// How to run the selected steps.
#[derive(Clone, Copy)]
pub(crate) struct Manner {
    pub(crate) depth: Depth,
    pub(crate) leftovers: Leftovers,
    /// How many steps run at a time.
    pub(crate) lanes: usize,
}

/// Runs `steps`, each in a process of its own, and prints the table; fails if a step failed.
pub(crate) fn run(workspace: &Workspace, steps: &[Step], manner: Manner) -> ExitCode {
    // The output of a single step is shown as it comes.
    let shown = if steps.len() == 1 || manner.lanes == 1 { Shown::AsItComes } else { Shown::AtItsEnd };
    let rows = lanes::run(steps, manner.lanes, |step, is_last| {
        println!("=== {}: {}{}", step.name, step.about, free_space(workspace));
        let row = isolated(workspace, step, manner.depth, shown);
        if row.outcome != Outcome::Failed && is_last && manner.leftovers == Leftovers::Remove {
            remove_scratch(workspace, step);
        }
        row
    });
    // Before the table: whoever sees only the end of a log needs what failed, and why.
    if manner.depth == Depth::Short {
        print!("\n{}", table::left_out(steps));
    }
    println!("\n{}", table::render(&rows));
    match table::record(workspace, manner.lanes, &rows) {
        Ok(path) => println!("record: {}", path.display()),
        Err(error) => println!("no record: {}", chain(&error)),
    }
    if rows.iter().any(|row| row.outcome == Outcome::Failed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// When to show the output of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    AsItComes,
    /// Written to a file first, so that the output of two steps is not mixed.
    AtItsEnd,
}

/// Runs `step` by this program in another process, which writes its [`Verdict`] to a file.
fn isolated(workspace: &Workspace, step: &Step, depth: Depth, shown: Shown) -> Row {
    let start = Instant::now();
    let (verdict, processor) = match isolated_verdict(workspace, step, depth, shown) {
        Ok((verdict, processor)) => (verdict, processor),
        Err(error) => (Verdict { outcome: Outcome::Failed, remark: chain(&error) }, Duration::ZERO),
    };
    let seconds = start.elapsed().as_secs_f64();
    println!("=== {}: {} after {seconds:.0} s {}", step.name, verdict.outcome.word(), verdict.remark);
    let Verdict { outcome, remark } = verdict;
    Row { name: step.name, outcome, seconds, processor_seconds: processor.as_secs_f64(), remark }
}

fn isolated_verdict(
    workspace: &Workspace,
    step: &Step,
    depth: Depth,
    shown: Shown,
) -> Result<(Verdict, Duration), StepError> {
    let folder = workspace.separate_target(FOLDER);
    let (log, verdict) = (folder.join(format!("{}.log", step.name)), folder.join(format!("{}.json", step.name)));
    let file = |action, path: &Path| {
        let path = path.to_owned();
        move |source| StepError::File { action, path, source }
    };
    fs::create_dir_all(&folder).map_err(file("make", &folder))?;
    remove_old(&verdict)?;
    // This name leads to the running program, even if a step has replaced its file.
    let mut itself = Command::new("/proc/self/exe");
    itself.arg("test").args(["--only", step.name, "--verdict"]).arg(&verdict);
    if depth == Depth::Exhaustive {
        itself.arg("--exhaustive");
    }
    if shown == Shown::AtItsEnd {
        let output = fs::File::create(&log).map_err(file("write", &log))?;
        itself.stderr(output.try_clone().map_err(file("write", &log))?).stdout(output);
    }
    let child = itself.spawn().map_err(|source| StepError::Itself { step: step.name, source })?;
    let ended = process::end_measured(&itself, child, LIMIT);
    if shown == Shown::AtItsEnd {
        let text = fs::read(&log).map_err(file("read", &log))?;
        // In one piece: print! keeps the lock of the standard output.
        print!("--- {}\n{}", step.name, String::from_utf8_lossy(&text));
    }
    let ended = ended?;
    Ok((left_verdict(&verdict, ended.status)?, ended.processor))
}

/// Removes the verdict of an earlier run, which is none of this one.
fn remove_old(verdict: &Path) -> Result<(), StepError> {
    match fs::remove_file(verdict) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StepError::File { action: "remove", path: verdict.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Reads the verdict that a step has left which ended with `status`.
fn left_verdict(path: &Path, status: ExitStatus) -> Result<Verdict, StepError> {
    let left = fs::read(path).ok().filter(|_| status.success());
    left.and_then(|bytes| serde_json::from_slice(&bytes).ok()).ok_or(StepError::NoVerdict { status })
}

/// Runs the only one of `steps` in this process, and writes its verdict to `path`.
pub(crate) fn leave_verdict(
    workspace: &Workspace,
    steps: &[Step],
    depth: Depth,
    path: &Path,
) -> Result<ExitCode, Box<dyn Error>> {
    for step in steps {
        fs::write(path, serde_json::to_vec(&verdict(workspace, step, depth))?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Name below the target folder: holds the output of steps, their verdicts, and the record.
pub(crate) const FOLDER: &str = "steps";
/// Time limit for one step; those that can hang have limits of their own.
const LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Returns how much of the target folder's disk is free, for a message: a full disk fails a step with any message.
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

/// How a step ended, with a remark.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Verdict {
    outcome: Outcome,
    remark: String,
}

fn verdict(workspace: &Workspace, step: &Step, depth: Depth) -> Verdict {
    let missing = remedies(workspace, step.needs);
    if !missing.is_empty() && step.run.is_part_of(depth) {
        return Verdict { outcome: Outcome::Skipped, remark: missing };
    }
    let lacking = remedies(workspace, step.wants);
    let (outcome, remark) = match step.run.call(workspace, depth) {
        Ok(Done::Passed) if lacking.is_empty() => (Outcome::Passed, String::new()),
        Ok(Done::Passed) => (Outcome::Passed, format!("in part; {lacking}")),
        Ok(Done::PassedWith(remark)) if lacking.is_empty() => (Outcome::Passed, remark),
        Ok(Done::PassedWith(remark)) => (Outcome::Passed, format!("in part; {lacking}; {remark}")),
        Ok(Done::Skipped(reason)) => (Outcome::Skipped, reason),
        Err(error) => (Outcome::Failed, chain(&error)),
    };
    Verdict { outcome, remark }
}

/// Returns what would install those of `needs` that are missing.
pub(crate) fn remedies(workspace: &Workspace, needs: &[Need]) -> String {
    let missing = needs.iter().filter(|need| !need.is_met(workspace));
    missing.map(|need| need.remedy()).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::{iter, os::unix::process::ExitStatusExt, path::PathBuf};

    use super::*;
    use crate::{step::Check, steps};

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
    fn a_slow_step_that_is_named_is_not_dropped_by_quick() {
        let both = Selection { only: vec!["fmt".into(), "fuzz".into()], pace: Pace::Quick };
        let error = select(&steps::all(), &both).err().expect("fuzz is slow");
        assert!(error.to_string().contains("fuzz"), "{error}");
    }

    #[test]
    fn a_verdict_from_before_is_none_of_this_run() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let passed = Verdict { outcome: Outcome::Passed, remark: String::new() };
        let path = folder.path().join("a.json");
        fs::write(&path, serde_json::to_vec(&passed).expect("it can be written")).expect("it is written");
        assert_eq!(left_verdict(&path, ExitStatus::from_raw(0)).expect("it has ended well"), passed);
        assert!(matches!(left_verdict(&path, ExitStatus::from_raw(1 << 8)), Err(StepError::NoVerdict { .. })));
        assert!(remove_old(&path).is_ok() && !path.exists() && remove_old(&path).is_ok());
        // As one that another user has left: this one cannot be removed even by root.
        let workspace = Workspace { root: folder.path().into(), target: folder.path().join("target") };
        let step = steps::all()[0];
        let old = workspace.separate_target(FOLDER).join(format!("{}.json", step.name));
        fs::create_dir_all(old.join("full")).expect("a folder");
        let row = isolated(&workspace, &step, Depth::Short, Shown::AtItsEnd);
        assert_eq!(row.outcome, Outcome::Failed);
        assert!(row.remark.starts_with("cannot remove"), "{}", row.remark);
    }

    #[test]
    fn what_a_step_built_for_itself_can_be_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let workspace = Workspace { root: folder.path().into(), target: folder.path().join("target") };
        let apart = workspace.separate_target("apart");
        let remains = |scratch| {
            fs::create_dir_all(apart.join("debug")).expect("a folder");
            remove_scratch(&workspace, &Step { scratch, ..steps::all()[0] });
            apart.exists()
        };
        assert!(remains(None) && !remains(Some("apart")));
    }

    #[test]
    fn a_verdict_says_how_the_check_ended() {
        let workspace = Workspace::find();
        let step = |run| Step { needs: &[], wants: &[], run, ..steps::all()[0] };
        let verdict = |run| verdict(&workspace, &step(Check::ByDepth(run)), Depth::Exhaustive);
        let by_depth = |_: &Workspace, depth| match depth {
            Depth::Exhaustive => Ok(Done::PassedWith("all of it".to_owned())),
            Depth::Short => Err(StepError::NothingSelected),
        };
        assert_eq!(verdict(by_depth), Verdict { outcome: Outcome::Passed, remark: "all of it".to_owned() });
        assert_eq!(verdict(|_, _| Err(StepError::NothingSelected)).outcome, Outcome::Failed);
        assert_eq!(verdict(|_, _| Ok(Done::Skipped(String::new()))).outcome, Outcome::Skipped);
    }

    #[test]
    fn a_short_run_skips_what_is_left_to_exhaustive_ones_whatever_it_lacks() {
        const LACKING: Need = Need::Program { program: "no-such-program-here", package: "none" };
        let step =
            Step { needs: &[LACKING], run: Check::Exhaustive(&|_: &Workspace| Ok(Done::Passed)), ..steps::all()[0] };
        let remark = |depth| verdict(&Workspace::find(), &step, depth).remark;
        assert_eq!(remark(Depth::Short), "left to --exhaustive");
        assert_eq!(remark(Depth::Exhaustive), LACKING.remedy());
    }

    #[test]
    fn programs_and_tests_that_are_left_out_exist() {
        let workspace = Workspace::find();
        let left_out: Vec<&str> = steps::all().iter().flat_map(|step| step.left_out).map(|left| left.what).collect();
        for name in left_out.into_iter().filter(|what| what.contains('.') && !what.contains(' ')) {
            let (program, test) = name.split_once("::").unwrap_or((name, ""));
            let (package, program) = program.split_once('.').expect("package.program");
            let krate = workspace.root.join("crates").join(package);
            let base = if program == "lib" {
                krate.join("src")
            } else {
                assert!(workspace.integration_tests(package).iter().any(|known| known == program), "no program {name}");
                krate.join("tests").join(program)
            };
            let (modules, function) = test.rsplit_once("::").unwrap_or(("", test));
            let has_it = |file: PathBuf| {
                fs::read_to_string(file).is_ok_and(|source| source.contains(&format!("fn {function}() {{")))
            };
            // The last modules may be in the file of the one around them.
            let mut folder = base.clone();
            let folders = modules.split("::").map(|module| {
                folder.push(module);
                folder.clone()
            });
            let mut files = iter::once(base.clone()).chain(folders).flat_map(|folder| {
                let tests = PathBuf::from(format!("{}_tests.rs", folder.display()));
                [folder.with_extension("rs"), tests, folder.join("main.rs"), folder.join("mod.rs")]
            });
            assert!(function.is_empty() || files.any(has_it), "no test {name}");
        }
    }

    #[test]
    fn an_unknown_step_is_named() {
        let error = select(&steps::all(), &Selection { only: vec!["tset".into()], pace: Pace::Slow }).err();
        assert!(error.is_some_and(|error| error.to_string().starts_with("there is no step \"tset\"")));
    }
}

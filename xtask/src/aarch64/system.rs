//! Boots a guest that runs every AArch64 test and powers itself off.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    panic::resume_unwind,
    path::Path,
    process::{ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use super::{build, initramfs, kernel};
use crate::{
    process,
    programs::TestProgram,
    step::{Depth, Done, LeftOut, StepError},
    workspace::Workspace,
};

/// Starts the lines of the console that are meant for us; `guests/init` prints them.
const MARK: &str = "palimpsest-guest:";
/// For the whole run; the guest stops a program that hangs well before.
const LIMIT: Duration = Duration::from_secs(2400);

/// Programs that rewrite code which other CPUs are running, or the part of one that does. With a thread for each CPU,
/// QEMU now and then goes on running what was replaced: 7.2 and 10.0 both fail a C program that does no more than the
/// sequence of the Arm ARM, and neither does where the CPUs take turns in one thread. (A block is translated while
/// another CPU stores to it: before the store, and after the old blocks were discarded.)
const TAKING_TURNS: [(&str, &str); 3] = [("text.keys", ""), ("text.poke", ""), ("text.hostile", "poking::")];

/// Test programs in which neither the architecture nor the guest's older kernel decides anything. What stays: code
/// under `arch/`, rewriting of running code, and every call whose answer differs between kernels.
pub(crate) const LEFT_OUT: &[LeftOut] = &[
    LeftOut { what: "fork.arena_collections", reason: PLAIN },
    LeftOut { what: "fork.arena_global", reason: PLAIN },
    LeftOut { what: "fork.arena_model", reason: PLAIN },
    LeftOut {
        what: "fork.oracle",
        reason: "random sequences of calls that `engine`, `guards` and `limits` make one by one",
    },
    LeftOut {
        what: "fork.sandbox",
        reason: "random sequences of what `authority`, `guards` and `limits` do one by one",
    },
    LeftOut { what: "text.observing", reason: PLAIN },
    LeftOut {
        what: "text.stress",
        reason: "QEMU on x86-64 orders stores as x86-64 does, so threads meet no other order",
    },
];

const PLAIN: &str = "plain Rust over calls that other programs here make";

/// Has the guest run only programs with this part in their names, for a quick look.
const ONLY: &str = "PALIMPSEST_GUEST_ONLY";

pub(crate) fn step(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let mut programs = build::test_programs(workspace)?;
    let all = programs.len();
    if let Ok(part) = env::var(ONLY) {
        programs.retain(|program| program.name.contains(&part));
    } else if depth == Depth::Short {
        programs.retain(|program| LEFT_OUT.iter().all(|left| left.what != program.name));
    }
    let init = build::guest_init(workspace)?;
    let total = programs.len();
    let (parallel, turns) = apart(programs);
    // Side by side: neither keeps two CPUs busy alone.
    let (parallel, turns) = thread::scope(|scope| {
        let parallel = scope.spawn(|| boot(workspace, &init, &parallel, &PARALLEL));
        let turns = boot(workspace, &init, &turns, &IN_TURNS);
        (parallel.join().unwrap_or_else(|panic| resume_unwind(panic)), turns)
    });
    let mut failed = parallel?;
    failed.extend(turns?);
    if failed.is_empty() {
        Ok(Done::PassedWith(format!("{total} of {all} test programs")))
    } else {
        Err(StepError::Programs { failed, total })
    }
}

/// A guest: its name, for people, and how QEMU emulates it.
struct Guest {
    name: &'static str,
    accel: &'static str,
}

/// Has a thread for each CPU.
const PARALLEL: Guest = Guest { name: "guest", accel: "tcg,thread=multi" };
/// Has one thread for all CPUs, which take turns.
const IN_TURNS: Guest = Guest { name: "turns", accel: "tcg,thread=single" };

/// What runs with a thread for each CPU, and what must not.
fn apart(programs: Vec<TestProgram>) -> (Vec<TestProgram>, Vec<TestProgram>) {
    let (mut parallel, mut turns) = (Vec::new(), Vec::new());
    for program in programs {
        match TAKING_TURNS.iter().find(|(name, _)| *name == program.name) {
            None => parallel.push(program),
            Some((_, "")) => turns.push(program),
            Some((_, part)) => {
                let with = |further: &[&'static str]| [further, &program.arguments].concat();
                parallel.push(TestProgram { arguments: with(&["--skip", part]), ..program.clone() });
                turns.push(TestProgram { arguments: with(&[part]), ..program.clone() });
            }
        }
    }
    (parallel, turns)
}

/// Runs `programs` in a guest of their own, and says which failed.
fn boot(workspace: &Workspace, init: &Path, programs: &[TestProgram], guest: &Guest) -> Result<Vec<String>, StepError> {
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    let initramfs = workspace.separate_target("guest").join(format!("{}.cpio", guest.name));
    fs::write(&initramfs, initramfs::build(init, programs)?).map_err(|source| StepError::File {
        action: "write",
        path: initramfs.clone(),
        source,
    })?;
    // cortex-a72: its caches need the explicit flushes that newer models of qemu do without, and it boots in two
    // seconds.
    let mut qemu = process::program("qemu-system-aarch64", workspace);
    qemu.args(["-machine", "virt,gic-version=3", "-cpu", "cortex-a72", "-accel", guest.accel, "-smp", "2", "-m", "2G"])
        .args(["-nographic", "-no-reboot", "-nic", "none", "-append", "console=ttyAMA0 quiet panic=-1"])
        .arg("-kernel")
        .arg(kernel::image(workspace))
        .arg("-initrd")
        .arg(&initramfs);
    let console = run(&mut qemu, guest.name)?;
    let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    Ok(failures(&console, &names))
}

/// Runs `qemu`, shows the guest's console and returns its marked lines.
fn run(qemu: &mut Command, name: &'static str) -> Result<Vec<String>, StepError> {
    process::announce(qemu);
    let spawned = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut child = spawned.map_err(|source| StepError::Start { command: "qemu-system-aarch64".to_owned(), source })?;
    let reader = child.stdout.take().map(|stdout| thread::spawn(move || show(stdout, name)));
    process::wait_within(qemu, child, LIMIT)?;
    Ok(reader.and_then(|reader| reader.join().ok()).unwrap_or_default())
}

fn show(console: ChildStdout, name: &str) -> Vec<String> {
    let mut marked = Vec::new();
    for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        println!("{name}| {line}");
        // A test may have left an unfinished line before the mark.
        if let Some((_, report)) = line.split_once(MARK) {
            marked.push(report.trim().to_owned());
        }
    }
    marked
}

/// Why each program of `names` did not pass, if it did not, by the guest's reports.
fn failures(reports: &[String], names: &[&str]) -> Vec<String> {
    let mut failed = Vec::new();
    for name in names {
        let outcome = reports.iter().find_map(|report| report.strip_prefix(name)?.strip_prefix(' '));
        match outcome {
            Some(outcome) if outcome.starts_with("passed") => {}
            Some(outcome) => failed.push(format!("{name} {outcome}")),
            None => failed.push(format!("{name} was not run to its end")),
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_exists() {
        let crates = Workspace::find().root.join("crates");
        for left in LEFT_OUT {
            let (package, test) = left.what.split_once('.').expect("package.test");
            let tests = crates.join(package).join("tests");
            let exists = tests.join(format!("{test}.rs")).is_file() || tests.join(test).join("main.rs").is_file();
            assert!(exists, "{} is no test program", left.what);
        }
    }

    #[test]
    fn a_program_can_run_in_parts() {
        let program = |name: &str| TestProgram::new(name.to_owned(), name.into(), "/".into());
        let (parallel, turns) = apart(["text.lib", "text.keys", "text.hostile"].map(program).to_vec());
        let shown = |programs: &[TestProgram]| -> Vec<String> {
            programs.iter().map(|program| format!("{} {}", program.name, program.arguments.join(" "))).collect()
        };
        let parts = |programs: &[String], part: &str| programs.iter().filter(|program| program.contains(part)).count();
        let (parallel, turns) = (shown(&parallel), shown(&turns));
        assert_eq!((parallel.len(), parts(&parallel, "text.hostile --skip poking::")), (2, 1), "{parallel:?}");
        assert_eq!((turns.len(), parts(&turns, "text.hostile poking::")), (2, 1), "{turns:?}");
    }

    #[test]
    fn a_program_passes_only_by_a_report_that_says_so() {
        let reports = ["text.lib passed after 1.0 s", "sys.lib failed exit 101 after 2.0 s", "end"].map(str::to_owned);
        let failed = failures(&reports, &["text.lib", "sys.lib", "text"]);
        assert_eq!(failed, ["sys.lib failed exit 101 after 2.0 s", "text was not run to its end"]);
    }
}

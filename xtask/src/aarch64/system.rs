//! Boots a guest that runs every AArch64 test and powers itself off.

use std::{env, panic::resume_unwind, path::Path, thread};

use super::{build, left_out};
use crate::{
    guest::Arch,
    linux::{self, Guest, HUGE_PAGES},
    programs::{self, TestProgram},
    step::{Depth, Done, StepError},
    workspace::Workspace,
};

/// Programs that rewrite code which other CPUs are running, or the part of a program that does. With a thread for each
/// CPU, QEMU sometimes goes on running the replaced code: 7.2 and 10.0 both fail a C program that does no more than the
/// sequence of the Arm ARM; neither fails if the CPUs take turns in one thread. (QEMU translates a block while another
/// CPU stores to it: before the store, and after the old blocks were discarded.)
const TAKING_TURNS: [(&str, &str); 3] = [("text.keys", ""), ("text.poke", ""), ("text.hostile", "poking::")];

/// One thread for all CPUs.
const TURNS: &str = "tcg,thread=single";

/// Makes the guest run only programs with this text in their names, for a quick look.
const ONLY: &str = "PALIMPSEST_GUEST_ONLY";

pub(crate) fn step(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let part = env::var(ONLY);
    let mut programs = build::test_programs(workspace, if part.is_ok() { Depth::Exhaustive } else { depth })?;
    let part = part.unwrap_or_default();
    programs.retain(|program| !build::needs_nodes(&program.name) && program.name.contains(&part));
    let is_short = depth == Depth::Short && part.is_empty();
    if is_short {
        programs::shorten(&mut programs, left_out::LEFT_OUT);
    }
    let cases = if is_short { left_out::CASES } else { &[] };
    let init = build::guest_init(workspace)?;
    let total = programs.len();
    let (parallel, turns) = apart(programs);
    // At the same time: neither keeps two CPUs busy alone.
    let (parallel, turns) = thread::scope(|scope| {
        let parallel = scope.spawn(|| boot(workspace, &init, &parallel, "guest", "tcg,thread=multi", cases));
        let turns = boot(workspace, &init, &turns, "turns", TURNS, cases);
        (parallel.join().unwrap_or_else(|panic| resume_unwind(panic)), turns)
    });
    let mut failed = parallel?;
    failed.extend(turns?);
    if failed.is_empty() {
        Ok(Done::PassedWith(format!("{total} test programs")))
    } else {
        Err(StepError::Programs { failed, total })
    }
}

/// Separates what runs with a thread for each CPU from what must not.
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

/// Runs `programs` in a guest whose two CPUs take turns.
pub(super) fn boot_turns(
    workspace: &Workspace,
    init: &Path,
    programs: &[TestProgram],
    name: &'static str,
) -> Result<Vec<String>, StepError> {
    boot(workspace, init, programs, name, TURNS, &[])
}

/// Runs `programs` in a guest with two CPUs.
fn boot(
    workspace: &Workspace,
    init: &Path,
    programs: &[TestProgram],
    name: &'static str,
    accel: &str,
    variables: &[(&str, &str)],
) -> Result<Vec<String>, StepError> {
    // cortex-a72: its caches need the explicit flushes that newer CPU models of QEMU do without, and it boots in two
    // seconds.
    let machine = ["-cpu", "cortex-a72", "-accel", accel, "-smp", "2", "-m", "2G"];
    let variables = [&[HUGE_PAGES], variables].concat();
    let guest = Guest { name, arch: Arch::Aarch64, kernel: None, machine: &machine, variables: &variables, files: &[] };
    linux::boot(workspace, init, programs, &guest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_can_run_in_parts() {
        // Short runs have the others match names exactly.
        let in_parts = |name: &str| TAKING_TURNS.iter().any(|(program, part)| *program == name && !part.is_empty());
        let tests = left_out::LEFT_OUT.iter().filter_map(|left| left.what.split_once("::"));
        assert_eq!(tests.filter(|(program, _)| in_parts(program)).count(), 0);
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
}

//! The processes that a process has started, and ending all of them.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Passes in a row that find nobody new, and the time between them.
const PASSES: usize = 2;
const BETWEEN: Duration = Duration::from_millis(10);

/// Ends `root`, which the caller has not waited for yet, with all that it and its descendants have started, in whatever
/// process groups. Those whose parents have ended before belong to others already, and are not found.
pub(crate) fn end(root: Pid) {
    let mut found = vec![root];
    // A process that is stopped starts nothing more. One that was in the middle of it when it was stopped is asked
    // again, after all others.
    let mut passes_without_any = 0;
    while passes_without_any < PASSES {
        let before = found.len();
        let mut next = 0;
        while let Some(&process) = found.get(next) {
            // It may have ended meanwhile, here and below.
            let _ended = kill_process(process, Signal::STOP);
            let new: Vec<Pid> = children(process).into_iter().filter(|child| !found.contains(child)).collect();
            found.extend(new);
            next += 1;
        }
        passes_without_any = if found.len() == before { passes_without_any + 1 } else { 0 };
        thread::sleep(BETWEEN);
    }
    for process in found {
        let _ended = kill_process(process, Signal::KILL);
    }
}

/// Returns the children of all threads of `process`.
pub(crate) fn children(process: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    let lists = threads.into_iter().flatten().filter_map(Result::ok);
    let lists = lists.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let numbers: Vec<i32> =
        lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect();
    numbers.into_iter().filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Child, Command, Stdio},
    };

    use super::*;

    /// Starts a shell with a shell that waits for a program in a process group and a session of its own; returns the
    /// first, and the program.
    pub(crate) fn family() -> (Child, Pid) {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sh -c 'setsid sh -c \"echo \\$\\$; exec sleep 100000\" & wait'; exit 1"]);
        let mut child = shell.stdout(Stdio::piped()).spawn().expect("sh starts");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("a number");
        (child, said.trim().parse().ok().and_then(Pid::from_raw).expect("a number"))
    }

    /// Waits until `process` has ended, whether or not somebody waits for it.
    pub(crate) fn wait_for_end(process: Pid) {
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_process_ends_with_all_that_descend_from_it() {
        let (mut child, program) = family();
        assert_ne!(rustix::process::getpgid(Some(program)), rustix::process::getpgid(None));
        end(Pid::from_child(&child));
        assert!(!child.wait().expect("it ends").success());
        wait_for_end(program);
    }
}

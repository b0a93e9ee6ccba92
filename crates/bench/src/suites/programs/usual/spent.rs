//! What a program has spent: processor time and page faults.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, getpid};

use crate::suites::programs::{ProgramError, doing};

/// What processes have spent together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Spent {
    pub(super) processor: Duration,
    /// Page faults for which nothing was read from a disk.
    pub(super) faults: u64,
}

impl Spent {
    /// Returns what this process has spent, with the children that it has waited for. The kernel tells hundredths of a
    /// second.
    pub(super) fn by(process: Pid) -> Result<Self, ProgramError> {
        let [own, children] = told(process)?;
        Ok(own.and(children))
    }

    /// Returns what the children have spent that this process has waited for.
    pub(super) fn by_children() -> Result<Self, ProgramError> {
        let [_, children] = told(getpid())?;
        Ok(children)
    }

    /// Returns what both have spent together.
    pub(super) fn and(self, other: Self) -> Self {
        Self { processor: self.processor + other.processor, faults: self.faults + other.faults }
    }

    /// Returns what was spent since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(before.processor),
            faults: self.faults.saturating_sub(before.faults),
        }
    }
}

fn told(process: Pid) -> Result<[Spent; 2], ProgramError> {
    let file = format!("/proc/{}/stat", process.as_raw_nonzero());
    let read = fs::read_to_string(&file);
    let told = read.and_then(|line| of(&line, clock_ticks_per_second()).ok_or_else(|| io::Error::other(line)));
    told.map_err(doing(format!("read {file}")))
}

/// Reads a line of `/proc/PID/stat` (`proc_pid_stat(5)`): what the process has spent, and its children.
fn of(line: &str, ticks_per_second: u64) -> Option<[Spent; 2]> {
    // The second field is a name, which may hold anything; the third is the first behind it.
    let fields: Vec<&str> = line.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let spent = |faults: usize, user: usize| {
        let ticks = field(user)? + field(user + 1)?;
        let processor = Duration::from_secs_f64(ticks as f64 / ticks_per_second as f64);
        Some(Spent { processor, faults: field(faults)? })
    };
    Some([spent(10, 14)?, spent(11, 16)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_behind_any_name() {
        let line = "7 (a) b) S 1 7 7 0 -1 4194560 120 3400 0 0 50 25 300 200 20 0 1 0 99";
        let [own, children] = of(line, 100).expect("whole");
        assert_eq!(own, Spent { processor: Duration::from_millis(750), faults: 120 });
        assert_eq!(children, Spent { processor: Duration::from_secs(5), faults: 3400 });
        assert_eq!(own.and(children).since(own), children);
        assert_eq!(of("7 (a) S 1", 100), None);
    }

    #[test]
    fn children_count_once_they_were_waited_for() {
        let before = Spent::by_children().expect("/proc");
        let status = std::process::Command::new("true").status();
        assert!(status.is_ok_and(|status| status.success()));
        assert!(Spent::by_children().expect("/proc").since(before).faults > 0);
    }
}

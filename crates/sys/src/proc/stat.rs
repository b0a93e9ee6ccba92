//! When a process was started: `/proc/PID/stat`.
//!
//! Source: `proc_pid_stat(5)`; `do_task_stat` in `fs/proc/array.c`.

use std::fmt;
use std::io;
use std::str::FromStr;

/// A process, distinguished from a later one with the same number. Executing another program does not change it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Incarnation {
    /// Its number.
    pub process: u32,
    /// When it was started, in clock ticks since the system was started; 0 without `/proc`.
    pub started: u64,
}

impl Incarnation {
    /// Returns the incarnation of a process. Waits for nobody.
    ///
    /// # Errors
    ///
    /// There is no process with this number, or no `/proc`.
    pub fn of(process: u32) -> io::Result<Self> {
        let stat = std::fs::read(format!("/proc/{process}/stat"))?;
        Ok(Self { process, started: started(&stat).ok_or(io::ErrorKind::InvalidData)? })
    }

    /// Returns the incarnation of this process.
    pub fn of_this_process() -> Self {
        let stat = std::fs::read("/proc/self/stat").unwrap_or_default();
        Self { process: std::process::id(), started: started(&stat).unwrap_or(0) }
    }
}

/// `PROCESS-STARTED`.
impl fmt::Display for Incarnation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-{}", self.process, self.started)
    }
}

/// A text not of the form `PROCESS-STARTED`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not of the form PROCESS-STARTED, two numbers")]
pub struct NoIncarnation;

impl FromStr for Incarnation {
    type Err = NoIncarnation;

    fn from_str(text: &str) -> Result<Self, NoIncarnation> {
        let (process, started) = text.split_once('-').ok_or(NoIncarnation)?;
        let process = process.parse().map_err(|_| NoIncarnation)?;
        Ok(Self { process, started: started.parse().map_err(|_| NoIncarnation)? })
    }
}

/// Returns field 22; the name, field 2, is in parentheses and may contain any byte.
fn started(stat: &[u8]) -> Option<u64> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let fields = str::from_utf8(stat.get(after_name..)?).ok()?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_any_name() {
        let fields = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21";
        for name in ["sh", "a b", ") S 1 (", ""] {
            assert_eq!(started(format!("77 ({name}) {fields}\n").as_bytes()), Some(4711), "{name}");
        }
        for other in ["", "77 (sh", "77 (sh) S 1", "77 (sh)"] {
            assert_eq!(started(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn a_process_is_told_as_it_is_read() {
        let own = Incarnation::of_this_process();
        assert_eq!((own.process, own.started > 0), (std::process::id(), true));
        assert_eq!(own.to_string().parse(), Ok(own));
        assert_eq!(Incarnation::of(own.process).ok(), Some(own));
        assert!(Incarnation::of(u32::MAX).is_err());
        for wrong in ["", "7", "7-", "-7", "7-x", "7-8-9"] {
            assert_eq!(wrong.parse::<Incarnation>(), Err(NoIncarnation), "{wrong}");
        }
    }
}

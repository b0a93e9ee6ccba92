//! `/proc/…/status`: signals, threads, name spaces and seccomp of a process or thread.
//!
//! Format: `proc_pid_status(5)`, written by `fs/proc/array.c`. Every field is optional: kernels are built without
//! some, and gVisor leaves out others.

use super::node::parse_list;
use super::{ParseError, ProcError, number, read_with};

/// Whether system calls are filtered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SeccompMode {
    /// No filter.
    Disabled,
    /// Only `read`, `write`, `_exit` and `sigreturn`.
    Strict,
    /// One or more BPF filters.
    Filter,
}

/// A set of signals: bit `n - 1` stands for signal `n`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SignalSet(pub u64);

impl SignalSet {
    /// Returns whether `signal` is in the set.
    pub fn contains(self, signal: i32) -> bool {
        let bit = u32::try_from(signal).ok().and_then(|signal| signal.checked_sub(1));
        bit.and_then(|bit| 1_u64.checked_shl(bit)).is_some_and(|bit| self.0 & bit != 0)
    }
}

/// The fields of a status file that Palimpsest needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// The letter of `State`: `R` running, `S` sleeping, `D`, `T` stopped, `t` traced, `Z` zombie, ….
    pub state: Option<char>,
    /// Number of threads of the process.
    pub threads: Option<u64>,
    /// Process id in each pid name space, the outermost first.
    pub ns_pid: Vec<u32>,
    /// Signals that the thread blocks.
    pub blocked: Option<SignalSet>,
    /// Signals with a handler.
    pub caught: Option<SignalSet>,
    /// Whether system calls are filtered.
    pub seccomp: Option<SeccompMode>,
    /// Number of seccomp filters (Linux 5.9).
    pub seccomp_filters: Option<u64>,
    /// Numbers of the nodes from which it may have memory (`cpuset(7)`), as the kernel lists them.
    pub mems_allowed: Option<Vec<u32>>,
}

impl Status {
    /// Reads `/proc/self/status`. Its signal mask and seccomp mode are those of the main thread.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted, or a line has an unknown form.
    pub fn of_process() -> Result<Self, ProcError> {
        read_with("/proc/self/status", |text| parse(text))
    }

    /// Reads the status of the calling thread.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted, or a line has an unknown form.
    pub fn of_this_thread() -> Result<Self, ProcError> {
        read_with("/proc/thread-self/status", |text| parse(text))
    }

    /// Reads the status of the thread `tid` of this process.
    ///
    /// # Errors
    ///
    /// There is no such thread (any more), `/proc` is not mounted, or a line has an unknown form.
    pub fn of_thread(tid: u32) -> Result<Self, ProcError> {
        read_with(format!("/proc/self/task/{tid}/status"), |text| parse(text))
    }

    /// Returns how many seccomp filters there are; `None` if the kernel does not tell. That there are none it tells
    /// even where it does not count them.
    pub fn filters(&self) -> Option<u64> {
        if self.seccomp == Some(SeccompMode::Disabled) { Some(0) } else { self.seccomp_filters }
    }
}

/// Parses the text of a status file.
///
/// # Errors
///
/// The first known field with a value of an unknown form.
pub fn parse(text: impl AsRef<[u8]>) -> Result<Status, ParseError> {
    let mut status = Status::default();
    for (index, text) in text.as_ref().split(|byte| *byte == b'\n').enumerate() {
        let lacks = |expected| ParseError::new(index + 1, text, expected);
        let Some(colon) = text.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let value = text[colon + 1..].trim_ascii();
        let decimal = || number(value, 10).ok_or_else(|| lacks("decimal number"));
        let signals = || number(value, 16).map(SignalSet).ok_or_else(|| lacks("signal set in hexadecimal"));
        match &text[..colon] {
            b"State" => {
                let letter = value.first().filter(|letter| letter.is_ascii_alphabetic());
                status.state = Some(char::from(*letter.ok_or_else(|| lacks("state letter"))?));
            }
            b"Threads" => status.threads = Some(decimal()?),
            b"SigBlk" => status.blocked = Some(signals()?),
            b"SigCgt" => status.caught = Some(signals()?),
            b"NSpid" => {
                let pids = value.split(u8::is_ascii_whitespace).filter(|pid| !pid.is_empty());
                let pids = pids.map(|pid| number(pid, 10).and_then(|pid| u32::try_from(pid).ok()));
                status.ns_pid = pids.collect::<Option<_>>().ok_or_else(|| lacks("process ids"))?;
            }
            b"Seccomp" => {
                status.seccomp = Some(match decimal()? {
                    0 => SeccompMode::Disabled,
                    1 => SeccompMode::Strict,
                    2 => SeccompMode::Filter,
                    _ => return Err(lacks("seccomp mode from 0 to 2")),
                });
            }
            b"Seccomp_filters" => status.seccomp_filters = Some(decimal()?),
            b"Mems_allowed_list" => {
                status.mems_allowed = Some(parse_list(value).map_err(|_| lacks("list of nodes such as 0-1,4"))?);
            }
            _ => {}
        }
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_are_read() {
        let text = "Name:\tSeccomp: 9\nState:\tS (sleeping)\nNSpid:\t4951\t12\nThreads:\t3\n\
                    SigBlk:\t0000000000000010\nSigCgt:\t0000000180000440\nSeccomp:\t2\nSeccomp_filters:\t1\n\
                    Mems_allowed:\t00000000,00000013\nMems_allowed_list:\t0-1,4\n";
        let status = parse(text).expect("a valid text");
        assert_eq!((status.state, status.threads), (Some('S'), Some(3)));
        assert_eq!(status.ns_pid, [4951, 12]);
        assert!(status.blocked.is_some_and(|set| set.contains(5) && !set.contains(6)));
        assert!(status.caught.is_some_and(|set| set.contains(11) && !set.contains(0) && !set.contains(65)));
        assert_eq!((status.seccomp, status.seccomp_filters), (Some(SeccompMode::Filter), Some(1)));
        assert_eq!(status.mems_allowed, Some(vec![0, 1, 4]));
    }

    /// Fails on: no filters that count as unknown in Linux before 5.9, or some that count as none.
    #[test]
    fn no_filters_are_told_by_kernels_that_count_none() {
        for (text, filters) in [
            ("Seccomp:\t0\nSpeculation_Store_Bypass:\tvulnerable\n", Some(0)),
            ("Seccomp:\t0\nSeccomp_filters:\t0\n", Some(0)),
            ("Seccomp:\t2\nSpeculation_Store_Bypass:\tvulnerable\n", None),
            ("Seccomp:\t2\nSeccomp_filters:\t3\n", Some(3)),
            ("NoNewPrivs:\t0\n", None),
        ] {
            assert_eq!(parse(text).expect("a valid text").filters(), filters, "{text}");
        }
    }

    #[test]
    fn a_bad_value_is_named() {
        let error = parse("Threads:\t3\nSeccomp:\t7\n").expect_err("mode 7");
        assert_eq!(error.to_string(), "line 2 is \"Seccomp:\\t7\", which has no seccomp mode from 0 to 2");
    }

    #[test]
    fn this_thread_is_read() {
        let of_thread = Status::of_this_thread().expect("/proc is mounted");
        assert_eq!(of_thread.state, Some('R'));
        assert!(Status::of_process().expect("/proc is mounted").threads >= Some(1));
        assert!(Status::of_thread(u32::MAX).expect_err("no such thread").is_absent());
    }

    proptest! {
        #[test]
        fn numbers_are_read_back(threads: u64, blocked: u64, pids in proptest::collection::vec(any::<u32>(), 0..4)) {
            let pids_text: String = pids.iter().map(|pid| format!("\t{pid}")).collect();
            let text = format!("Threads:\t{threads}\nSigBlk:\t{blocked:016x}\nNSpid:{pids_text}\n");
            let status = parse(text).expect("a valid text");
            let read = (status.threads, status.blocked, status.ns_pid);
            prop_assert_eq!(read, (Some(threads), Some(SignalSet(blocked)), pids));
        }

        #[test]
        fn no_input_panics(text: Vec<u8>, lines in "((State|Threads|SigBlk|NSpid|Seccomp):[\t 0-9a-f]{0,20}\n){0,5}") {
            let _: Result<_, _> = parse(text);
            let _: Result<_, _> = parse(lines);
        }
    }
}

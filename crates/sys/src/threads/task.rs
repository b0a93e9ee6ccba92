//! Reads `/proc/self/task/TID`, without the heap.

use std::ffi::CStr;
use std::fmt;
use std::io::Write;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, readlinkat_raw};
use rustix::io::Errno;

use super::own::{own_process, own_thread};
use crate::arch::PAUSE;
use crate::proc::status::SignalSet;

/// A thread and its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ThreadName {
    tid: i32,
    /// 15 bytes at most (`TASK_COMM_LEN` in `include/linux/sched.h`).
    name: [u8; 16],
}

impl ThreadName {
    /// Reads the thread's name; empty if the thread is gone.
    pub(super) fn of(tid: i32) -> Self {
        let mut name = [0_u8; 16];
        let _ = read_of_thread(tid, "comm", &mut name);
        Self { tid, name }
    }

    /// Returns the thread's id.
    pub fn tid(&self) -> i32 {
        self.tid
    }
}

impl fmt::Display for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.name.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or_default();
        write!(f, "thread {} ({})", self.tid, str::from_utf8(text).unwrap_or("?"))
    }
}

impl fmt::Debug for ThreadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The contents of a `stat` file.
pub(crate) struct TaskStat {
    /// The thread's number where `/proc` belongs.
    pub(crate) number: i32,
    pub(super) state: u8,
    flags: u64,
    /// Threads of the process.
    pub(crate) threads: usize,
    /// When it was started, in ticks since the machine was started.
    pub(crate) started: u64,
}

/// `PF_IO_WORKER` and `PF_USER_WORKER` of `include/linux/sched.h`. Before Linux 5.12 the first marked a thread that
/// runs a virtual CPU (`PF_VCPU`).
const WORKER: u64 = 0x10 | 0x4000;
/// The signals that the kernel's workers block: all except SIGKILL and SIGSTOP (`copy_process` in `kernel/fork.c`).
const BLOCKED_BY_WORKERS: u64 = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
/// `PF_EXITING`, set before an ending thread wakes threads that join it (`do_exit` in `kernel/exit.c`).
const EXITING: u64 = 0x4;

impl TaskStat {
    /// Returns whether `tid`, whose stat this is, belongs to the kernel, such as a worker of io_uring: it executes
    /// nothing in user mode, and takes no signal.
    pub(crate) fn is_kernel_worker(&self, tid: i32) -> bool {
        self.flags & WORKER != 0 && status_field(tid, b"SigBlk", 16) == Some(BLOCKED_BY_WORKERS)
    }

    /// Returns whether the thread executes no more instructions of the program: it is ending or has ended.
    pub(super) fn is_ending(&self) -> bool {
        self.flags & EXITING != 0
    }

    /// Returns whether the thread has ended, and only waits to be forgotten by the kernel.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }
}

/// Reads `/proc/self/task/TID/stat`; `None` if the thread is gone.
pub(crate) fn task_stat(tid: i32) -> Option<TaskStat> {
    parse_stat(read_of_thread(tid, "stat", &mut [0_u8; 512])?)
}

/// Reads the calling thread's `stat`, whatever its number is where `/proc` belongs.
pub(crate) fn own_stat() -> Option<TaskStat> {
    let mut text = [0_u8; 512];
    let len = read(&open(c"/proc/thread-self/stat")?, &mut text)?;
    parse_stat(text.get(..len)?)
}

/// Returns whether `/proc` is known to give the calling thread other numbers than system calls do: it was mounted in
/// another pid namespace (`pid_namespaces(7)`, "/proc and PID namespaces"). Its numbers then mean other threads here,
/// or none.
pub(super) fn is_numbered_elsewhere() -> bool {
    let mut link = [0_u8; 64];
    let Ok(len) = readlinkat_raw(CWD, c"/proc/thread-self", &mut link[..]) else { return false };
    link.get(..len).and_then(parse_thread_self).is_some_and(|numbers| numbers != (own_process(), own_thread()))
}

/// Returns the process and the thread that `PID/task/TID` names (`proc_thread_self_get_link` in
/// `fs/proc/thread_self.c`).
fn parse_thread_self(link: &[u8]) -> Option<(i32, i32)> {
    let (process, thread) = str::from_utf8(link).ok()?.split_once("/task/")?;
    Some((process.parse().ok()?, thread.parse().ok()?))
}

/// Returns whether a thread has ended.
pub(super) fn has_ended(tid: i32) -> bool {
    task_stat(tid).is_none_or(|stat| stat.has_ended())
}

/// Parses the fields behind the name, which may contain anything (`proc_pid_stat(5)`).
pub(crate) fn parse_stat(text: &[u8]) -> Option<TaskStat> {
    let number = text.split(|byte| *byte == b' ').next()?;
    let number = str::from_utf8(number).ok()?.parse().ok()?;
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let flags = str::from_utf8(fields.nth(5)?).ok()?.parse().ok()?;
    let threads = str::from_utf8(fields.nth(10)?).ok()?.parse().ok()?;
    let started = str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
    Some(TaskStat { number, state, flags, threads, started })
}

/// Returns whether a thread is known to block a signal.
pub(super) fn blocks(tid: i32, signal: i32) -> bool {
    status_field(tid, b"SigBlk", 16).is_some_and(|blocked| SignalSet(blocked).contains(signal))
}

/// Returns whether a signal that was sent to a thread is known to be pending.
pub(crate) fn is_pending(tid: i32, signal: i32) -> bool {
    status_field(tid, b"SigPnd", 16).is_some_and(|pending| SignalSet(pending).contains(signal))
}

/// Returns the process that traces a thread.
pub(super) fn tracer_of(tid: i32) -> Option<i32> {
    let tracer = status_field(tid, b"TracerPid", 10)?;
    i32::try_from(tracer).ok().filter(|tracer| *tracer != 0)
}

/// Returns whether a thread is in a system call that waits for nothing but a signal. One in `sigwait` could be waiting
/// for the very signal that it would be sent; while it waits, its mask does not show that it blocks that signal. One in
/// `pause` or `sigsuspend` would take any signal with a handler for the one that it waits for.
pub(super) fn awaits_signal(tid: i32) -> bool {
    let mut text = [0_u8; 192];
    read_of_thread(tid, "syscall", &mut text).is_some_and(is_wait_for_signal)
}

/// Parses a call's number and arguments (`proc_pid_syscall(5)`).
fn is_wait_for_signal(call: &[u8]) -> bool {
    let mut words = call.split(|byte| *byte == b' ').map_while(|word| str::from_utf8(word).ok());
    let Some(number) = words.next().and_then(|number| number.parse::<libc::c_long>().ok()) else { return false };
    match number {
        libc::SYS_rt_sigtimedwait | libc::SYS_rt_sigsuspend => true,
        // The C library's `pause` where the kernel has none: no descriptors and no time limit.
        libc::SYS_ppoll => words.skip(1).take(2).eq(["0x0", "0x0"]),
        _ => Some(number) == PAUSE,
    }
}

/// Returns how many seccomp filters the calling thread has; `None` if that is unknown, as where the kernel does not
/// count them (before Linux 5.9) and there are some.
pub(crate) fn own_filters() -> Option<u64> {
    filters_in(&open(c"/proc/thread-self/status")?)
}

/// Returns the same from a `status` file. Reads it once: what opens a file twice may get only the first.
fn filters_in(file: &OwnedFd) -> Option<u64> {
    match fields_of(file, [b"Seccomp", b"Seccomp_filters"], 10)? {
        [Some(0), _] => Some(0),
        [Some(_), count] => count.map(|count| count.max(1)),
        [None, _] => None,
    }
}

/// Returns a number from `/proc/self/task/TID/status` (`proc_pid_status(5)`).
fn status_field(tid: i32, name: &[u8], radix: u32) -> Option<u64> {
    let [value] = fields_of(&open_of_thread(tid, "status")?, [name], radix)?;
    value
}

/// Returns those numbers of a `status` file that are there, however long the lines before them are; `None` if it cannot
/// be read to the last of them.
fn fields_of<const N: usize>(file: &OwnedFd, names: [&[u8]; N], radix: u32) -> Option<[Option<u64>; N]> {
    // The longest line that callers look for.
    const LINE: usize = 64;
    let mut text = [0_u8; 2048];
    let (mut len, mut values) = (0, [None; N]);
    loop {
        let read = read(file, text.get_mut(len..)?)?;
        len += read;
        let whole = text.get(..len)?;
        for (value, name) in values.iter_mut().zip(names) {
            *value = value.or_else(|| parse_field(whole, name, radix));
        }
        if read == 0 || values.iter().all(Option::is_some) {
            return Some(values);
        }
        let kept = len.min(LINE);
        text.copy_within(len - kept..len, 0);
        len = kept;
    }
}

/// Returns the value of the first whole line that begins with `name` and a colon.
fn parse_field(text: &[u8], name: &[u8], radix: u32) -> Option<u64> {
    let whole = text.get(..text.iter().rposition(|byte| *byte == b'\n')?)?;
    let value = |line: &[u8]| line.strip_prefix(name).and_then(|rest| rest.strip_prefix(b":")).map(<[u8]>::len);
    let line = whole.split(|byte| *byte == b'\n').find(|line| value(line).is_some())?;
    let value = line.get(line.len() - value(line)?..)?.trim_ascii();
    u64::from_str_radix(str::from_utf8(value).ok()?, radix).ok()
}

fn open_of_thread(tid: i32, file: &str) -> Option<OwnedFd> {
    let mut path = [0_u8; 64];
    // The final zero is there already.
    write!(&mut path[..63], "/proc/self/task/{tid}/{file}").ok()?;
    open(CStr::from_bytes_until_nul(&path).ok()?)
}

fn open(path: &CStr) -> Option<OwnedFd> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

fn read(file: &OwnedFd, text: &mut [u8]) -> Option<usize> {
    loop {
        match rustix::io::read(file, &mut *text) {
            Err(Errno::INTR) => {}
            other => return other.ok(),
        }
    }
}

/// Returns as much of `/proc/self/task/TID/FILE` as fits; `None` if the thread is gone.
fn read_of_thread<'a>(tid: i32, file: &str, text: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = read(&open_of_thread(tid, file)?, text)?;
    text.get(..len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let line = b"12 (a) S) R 1 12 12 0 -1 4194368 100 0 0 0 1 2 0 0 20 0 17 0 99 1000 2";
        let stat = parse_stat(line).expect("understood");
        assert_eq!((stat.state, stat.flags, stat.threads, stat.started), (b'R', 4_194_368, 17, 99));
        assert!(parse_stat(b"12 (cut").is_none() && parse_stat(b"").is_none());
        let own = task_stat(rustix::thread::gettid().as_raw_nonzero().get()).expect("alive");
        assert!(own.threads >= 2 && !own.has_ended());
        // Whatever its flags, since it does not block all signals.
        assert!(!TaskStat { flags: WORKER, ..own }.is_kernel_worker(rustix::thread::gettid().as_raw_nonzero().get()));
    }

    #[test]
    fn fields_are_read_from_whole_lines() {
        let text = b"Name:\tSigBlk:\nSigPnd:\t00\nSigBlk:\t8000000000000001\nSeccomp:\t2\nSeccomp_filters:\t3\nSig";
        assert_eq!(parse_field(text, b"SigBlk", 16), Some(0x8000_0000_0000_0001));
        assert_eq!(parse_field(text, b"Seccomp", 10), Some(2));
        assert_eq!(parse_field(text, b"Seccomp_filters", 10), Some(3));
        assert_eq!(parse_field(b"SigBlk:\t8000", b"SigBlk", 16), None, "the line may be longer");
        assert_eq!(parse_field(b"", b"SigBlk", 16), None);
    }

    /// Returns the filters that a `status` file with this text tells.
    fn filters_told(text: &str) -> Option<u64> {
        let (reader, writer) = rustix::pipe::pipe().expect("two descriptors");
        assert_eq!(rustix::io::write(&writer, text.as_bytes()), Ok(text.len()));
        drop(writer);
        filters_in(&reader)
    }

    /// Fails on: filters that nobody has counted, and count as one.
    #[test]
    fn filters_that_the_kernel_does_not_count_are_unknown() {
        let before = format!("Name:\tx\nGroups:\t{}\n", "1000 ".repeat(600));
        for (lines, filters) in [
            ("Seccomp:\t0\nSpeculation_Store_Bypass:\tvulnerable\n", Some(0)),
            ("Seccomp:\t0\nSeccomp_filters:\t0\n", Some(0)),
            ("Seccomp:\t2\nSpeculation_Store_Bypass:\tvulnerable\n", None),
            ("Seccomp:\t2\nSeccomp_filters:\t3\n", Some(3)),
            ("Seccomp:\t2\nSeccomp_filters:", None),
            ("NoNewPrivs:\t0\n", None),
        ] {
            assert_eq!(filters_told(lines), filters, "{lines}");
            // In a later part of the text.
            assert_eq!(filters_told(&format!("{before}{lines}")), filters, "{lines}");
        }
    }

    #[test]
    fn the_numbers_of_a_link_are_read() {
        assert_eq!(parse_thread_self(b"12/task/3456"), Some((12, 3456)));
        assert!(
            [&b""[..], b"12", b"12/task/", b"12/fd/3", b"/task/3"].iter().all(|link| parse_thread_self(link).is_none())
        );
        assert!(!is_numbered_elsewhere());
    }

    #[test]
    fn waits_for_signals_are_told_from_others() {
        let is_wait = |number: libc::c_long, arguments: &str| {
            is_wait_for_signal(format!("{number} {arguments} 0x7ffc5ca3ef10 0x7f1be7ae5a84\n").as_bytes())
        };
        let none = "0x0 0x0 0x0 0x0 0x8 0x0";
        assert!(is_wait(libc::SYS_rt_sigtimedwait, none) && is_wait(libc::SYS_rt_sigsuspend, none));
        assert!(is_wait(libc::SYS_ppoll, none) && is_wait(libc::SYS_ppoll, "0x7f00 0x0 0x0 0x7f10 0x8 0x0"));
        assert!(PAUSE.is_none_or(|number| is_wait(number, "0x1 0x7f00 0x0 0x3 0x4 0x5")));
        // With a limit, and with a descriptor.
        assert!(!is_wait(libc::SYS_ppoll, "0x0 0x0 0x7f00 0x0 0x8 0x0"));
        assert!(!is_wait(libc::SYS_ppoll, "0x7f00 0x1 0x0 0x0 0x8 0x0"));
        assert!(!is_wait(libc::SYS_futex, none) && !is_wait(libc::SYS_nanosleep, none));
        assert!(
            ["running\n", "-1 0x7ffc5ca3ef10 0x7f1be7ae5a84\n", ""]
                .iter()
                .all(|call| !is_wait_for_signal(call.as_bytes()))
        );
    }

    #[test]
    fn this_thread_is_told() {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        assert!(!has_ended(own) && has_ended(i32::MAX) && !awaits_signal(own));
        assert!(!is_pending(own, libc::SIGHUP));
        assert_eq!(tracer_of(i32::MAX), None);
        let status = crate::proc::status::Status::of_this_thread().expect("/proc is mounted");
        assert_eq!(status_field(own, b"SigBlk", 16).map(SignalSet), status.blocked);
        assert_eq!(own_filters(), status.seccomp_filters.or(Some(0)));
        let started = |stat: Option<TaskStat>| stat.map(|stat| stat.started);
        assert_eq!(started(own_stat()), started(task_stat(own)));
    }
}

//! A fuzzer's side: the target is a closure, and lives in its own server process.
//!
//! A fuzzer that forks *itself* for each run pays for its own corpus and its own dirty pages. So [`Host::start`] forks
//! once: the child calls a closure that sets up the target, freezes, and then serves runs as [`Server`](crate::Server)
//! does. Inputs and the coverage map lie in memory that both share.
//!
//! The server dies with its fuzzer, and each run with its server.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use palimpsest_sys::{Causes, Mapping, Pages, Protection, SharedMemory, Source};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, WaitStatus};

use crate::coverage;
use crate::error::HostError;
use crate::input::{HEADER, TestCase, place};
use crate::protocol::Words;
use crate::serve::{self, Mode};
use crate::wire::{self, Wire};
use palimpsest_sys::memory::sysv::SharedBytes;

/// The word by which a server reports that it is ready.
const READY: u32 = 0;
/// The word by which a server reports that it will not serve. The reason is in the memory for inputs, as always when a
/// server exits by itself.
const FAILED: u32 = 1;

/// What happens to the target's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// It goes to the fuzzer's own output.
    Inherit,
    /// It is discarded.
    Discard,
}

/// How a target is run.
#[derive(Clone, Debug)]
#[must_use = "it is for `Host::start`"]
pub struct HostOptions {
    mode: Mode,
    map_len: usize,
    longest_input: usize,
    output: Output,
}

impl HostOptions {
    /// Creates options for a map of 64 KiB, inputs up to 1 MiB, and discarded output.
    pub fn new(mode: Mode) -> Self {
        Self { mode, map_len: 1 << 16, longest_input: 1 << 20, output: Output::Discard }
    }

    /// Sets the length of the coverage map. It is made of whole pages, of which the fuzzer sees this many bytes.
    pub fn map_len(mut self, bytes: usize) -> Self {
        self.map_len = bytes;
        self
    }

    /// Sets the maximum length of inputs, which is never more than 1 GiB.
    pub fn longest_input(mut self, bytes: usize) -> Self {
        self.longest_input = bytes.min(1 << 30);
        self
    }

    /// Sets what happens to the target's output.
    pub fn output(mut self, output: Output) -> Self {
        self.output = output;
        self
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// The target returned.
    Returned,
    /// The target exited by itself.
    Exited {
        /// Its exit code.
        code: i32,
    },
    /// A signal ended it: a crash.
    Signalled {
        /// The signal's number.
        signal: i32,
    },
    /// It ran longer than the limit, and was killed.
    TimedOut,
    /// Somebody else killed it by SIGKILL; the kernel does that when memory runs out.
    Killed,
}

/// A child of this process. Once it has ended and somebody has waited for it (the kernel, where SIGCHLD is ignored),
/// its number may be another process's.
#[derive(Debug)]
struct Child {
    number: Pid,
    /// The process itself, whatever becomes of its number; `None` where the kernel hands out none (before Linux 5.3, or
    /// without a free descriptor).
    process: Option<OwnedFd>,
}

impl Child {
    /// Opens a child that was just made; `None` if it has ended and was waited for.
    fn new(number: Pid) -> Option<Self> {
        match rustix::process::pidfd_open(number, PidfdFlags::empty()) {
            Ok(process) => Some(Self { number, process: Some(process) }),
            Err(Errno::SRCH) => None,
            Err(_) => Some(Self { number, process: None }),
        }
    }

    /// Ends it, and waits for that.
    fn end(self) {
        let sent = match &self.process {
            Some(process) => rustix::process::pidfd_send_signal(process, Signal::KILL),
            None => rustix::process::kill_process(self.number, Signal::KILL),
        };
        // To one that was waited for nothing can be sent.
        if sent.is_ok() {
            self.wait();
        }
    }

    /// Waits for its end; `None` if somebody else has.
    fn wait(self) -> Option<WaitStatus> {
        if let Some(process) = &self.process {
            // Asks only whether it is still this process's to wait for, which is done by the number below. Before Linux
            // 5.4 the kernel knows no such question (EINVAL).
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let ended = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::PidFd(process.as_fd()), options));
            if ended.is_err_and(|errno| errno == Errno::CHILD) {
                return None;
            }
        }
        let waited = rustix::io::retry_on_intr(|| rustix::process::waitpid(Some(self.number), WaitOptions::empty()));
        waited.ok()?.map(|(_, status)| status)
    }
}

/// A target in a server process. Dropping it ends the server.
#[derive(Debug)]
pub struct Host {
    control: OwnedFd,
    status: OwnedFd,
    /// `None` once its end is known.
    server: Option<Child>,
    mode: Mode,
    input: Mapping,
    longest_input: usize,
    map: Map,
    /// The next request's word: 1 if the last run was killed for its time.
    killed: u32,
}

/// The fuzzer's mapping of the coverage map.
#[derive(Debug)]
struct Map {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

// SAFETY: the mapping lives as long as the process, and `Host` uses it only through `&mut self`, and not at all once
// `Owner` is `Fuzzer`.
unsafe impl Send for Map {}

/// Who reads and clears the coverage map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Host,
    Fuzzer,
}

impl Host {
    /// Forks the server. There `set_up` makes the target, which is then called once per run, with the input.
    ///
    /// Counts of [`coverage`] in the target go to this host's map. A panic of the target is a crash by SIGABRT.
    ///
    /// # Errors
    ///
    /// See [`HostError`]; a panic in `set_up` and a refusal to freeze are [`HostError::SetUp`].
    ///
    /// # Safety
    ///
    /// 1. In the server, once `set_up` has run, the contract of [`freeze`](palimpsest_fork::freeze) or of
    ///    [`take_and_enter`](palimpsest_fork::snapshot::take_and_enter) holds, as far as the mode uses them.
    /// 2. The target has no other thread than the one it is called on.
    /// 3. Nobody uses the slice from [`Host::take_map`] while [`Host::run`] runs.
    pub unsafe fn start<T, S>(options: HostOptions, set_up: S) -> Result<Self, HostError>
    where
        S: FnOnce() -> T,
        T: FnMut(&[u8]),
    {
        let threads = std::fs::read_dir("/proc/self/task").map_err(HostError::CountThreads)?.count();
        if threads != 1 {
            return Err(HostError::Threads { threads });
        }
        let input = share("inputs", options.longest_input.saturating_add(HEADER))?;
        let map = share("coverage map", options.map_len.max(1))?;
        let start_error = |action| move |errno: Errno| HostError::Start { action, source: errno.into() };
        let (hear_requests, control) = pipe_with(PipeFlags::CLOEXEC).map_err(start_error("make a pipe"))?;
        let (status, tell_status) = pipe_with(PipeFlags::CLOEXEC).map_err(start_error("make a pipe"))?;
        let fuzzer = rustix::process::getpid();
        // SAFETY: this is the only thread, so the child has all that it needs.
        let server = match unsafe { libc::fork() } {
            0 => {
                drop((control, status));
                let segments = (segment(&input), SharedBytes { len: options.map_len.max(1), ..segment(&map) });
                // Both mappings belong to this process until it ends.
                std::mem::forget((input, map));
                // SAFETY: (1, 2).
                unsafe { serve_here(Wire::new(hear_requests, tell_status), segments, &options, fuzzer, set_up) }
            }
            pid => Pid::from_raw(pid.max(0))
                .ok_or_else(|| HostError::Start { action: "fork", source: io::Error::last_os_error() })?,
        };
        drop((hear_requests, tell_status));
        let start = segment(&map).start;
        // A fuzzer may keep the slice from `take_map` longer than the host: the map is never unmapped.
        std::mem::forget(map);
        let mut host = Self {
            control,
            status,
            server: Child::new(server),
            mode: options.mode,
            input,
            longest_input: options.longest_input,
            map: Map { start, len: options.map_len, owner: Owner::Host },
            killed: 0,
        };
        match wire::receive(host.status.as_fd()).map_err(HostError::Pipe)? {
            Some(READY) => Ok(host),
            Some(_) => Err(HostError::SetUp { message: host.message() }),
            None => {
                let message = host.end_of_server().map_or_else(
                    || "it is gone".to_owned(),
                    |status| format!("it ended with wait status {:#x}", status.as_raw()),
                );
                Err(HostError::SetUp { message })
            }
        }
    }

    /// Creates a host whose server is another child of this process, for fuzz targets.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn of(server: Pid, control: OwnedFd, status: OwnedFd) -> Result<Self, HostError> {
        let (input, map) = (share("inputs", 4096)?, share("coverage map", 4096)?);
        let start = segment(&map).start;
        // As in `start`.
        std::mem::forget(map);
        let map = Map { start, len: 4096, owner: Owner::Host };
        let server = Child::new(server);
        Ok(Self { control, status, server, mode: Mode::Plain, input, longest_input: 1024, map, killed: 0 })
    }

    /// Returns how the target gets a clean state.
    pub fn mode(&self) -> &Mode {
        &self.mode
    }

    /// Returns the longest input in bytes.
    pub fn longest_input(&self) -> usize {
        self.longest_input
    }

    /// Runs the target on `input`, for at most `limit`. Clears the coverage map first, unless it was taken.
    ///
    /// # Errors
    ///
    /// [`HostError::InputTooLong`], and after [`HostError::ServerGone`] or [`HostError::Pipe`] this host cannot be used
    /// any more.
    pub fn run(&mut self, input: &[u8], limit: Duration) -> Result<Run, HostError> {
        if input.len() > self.longest_input {
            return Err(HostError::InputTooLong { len: input.len(), longest: self.longest_input });
        }
        // SAFETY: (1) the memory belongs to this host, and the server reads it only during runs; its length was checked
        // above.
        unsafe { place(segment(&self.input), input) };
        self.map.clear();
        wire::send(self.control.as_fd(), &self.killed.to_ne_bytes()).map_err(gone)?;
        let worker = self.hear()?;
        self.killed = 0;
        let is_over = readable_within(&self.status, limit).map_err(HostError::Pipe)?;
        if !is_over {
            self.kill(worker)?;
        }
        let status = self.hear()?;
        Ok(if is_over { classify(status.cast_signed()) } else { Run::TimedOut })
    }

    /// Kills the worker of this run, unless the run ends just now: then the server reports how, but it still took too
    /// long.
    ///
    /// The server frees the worker's number only after it has reported its end. So if nothing is reported *after* the
    /// process was opened by its number, it was the worker, whatever happens to the number later.
    fn kill(&mut self, worker: u32) -> Result<(), HostError> {
        let Some(worker) = i32::try_from(worker).ok().and_then(Pid::from_raw) else { return Ok(()) };
        let process = rustix::process::pidfd_open(worker, PidfdFlags::empty());
        if readable_within(&self.status, Duration::ZERO).map_err(HostError::Pipe)? {
            return Ok(());
        }
        self.killed = 1;
        // A worker that is gone by now need not be killed.
        let _ = match process {
            Ok(process) => rustix::process::pidfd_send_signal(process, Signal::KILL),
            // Before Linux 5.3, or without a free descriptor; the worker existed a moment ago.
            Err(_) => rustix::process::kill_process(worker, Signal::KILL),
        };
        Ok(())
    }

    /// Hands out the coverage map to the fuzzer, once: from then on the fuzzer reads it after each run and clears it
    /// before.
    pub fn take_map(&mut self) -> Option<&'static mut [u8]> {
        if self.map.owner == Owner::Fuzzer {
            return None;
        }
        self.map.owner = Owner::Fuzzer;
        // SAFETY: the mapping lives as long as the process, and this host does not use it any more. The server writes
        // it only during runs, when nobody uses the reference by point 3 of the contract of `start`.
        Some(unsafe { std::slice::from_raw_parts_mut(self.map.start.as_ptr(), self.map.len) })
    }

    /// Returns the counts of the last run; `None` after [`Host::take_map`].
    pub fn counts(&mut self) -> Option<&[u8]> {
        if self.map.owner == Owner::Fuzzer {
            return None;
        }
        // SAFETY: the mapping lives as long as the process, and the server writes it only in `run`, which needs `&mut
        // self`.
        Some(unsafe { std::slice::from_raw_parts(self.map.start.as_ptr(), self.map.len) })
    }

    /// Receives a word of the server, or the reason why there will be none.
    fn hear(&mut self) -> Result<u32, HostError> {
        if let Some(word) = wire::receive(self.status.as_fd()).map_err(HostError::Pipe)? {
            return Ok(word);
        }
        // A server that exited by itself has left its reason; one that was killed has not.
        match self.end_of_server() {
            Some(status) if status.exited() => Err(HostError::SetUp { message: self.message() }),
            _ => Err(HostError::ServerGone),
        }
    }

    /// Waits for the end of the server, once; `None` if somebody else has waited for it.
    fn end_of_server(&mut self) -> Option<WaitStatus> {
        self.server.take()?.wait()
    }

    /// Returns the message of a failed server, in the memory for inputs.
    fn message(&self) -> String {
        let test_case = TestCase::Shared(segment(&self.input));
        let mut message = String::new();
        test_case.give_to(&mut |bytes| message = String::from_utf8_lossy(bytes).into_owned());
        message
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Its only child may be a worker, which dies with it.
        if let Some(server) = self.server.take() {
            server.end();
        }
    }
}

impl Map {
    fn clear(&mut self) {
        if self.owner == Owner::Host {
            // SAFETY: the mapping lives as long as the process, no run is under way, and references of `counts` have
            // ended.
            unsafe { self.start.as_ptr().write_bytes(0, self.len) };
        }
    }
}

/// Runs the server's process. Never returns.
///
/// # Safety
///
/// 1. As points 1 and 2 of [`Host::start`].
unsafe fn serve_here<T, S>(
    mut wire: Wire,
    (input, map): (SharedBytes, SharedBytes),
    options: &HostOptions,
    fuzzer: Pid,
    set_up: S,
) -> !
where
    S: FnOnce() -> T,
    T: FnMut(&[u8]),
{
    serve::stay_with(fuzzer);
    if options.output == Output::Discard {
        discard_output();
    }
    coverage::set_map(map);
    let target = catch_unwind(AssertUnwindSafe(set_up));
    let ready = target.map_err(|panic| panic_message(&*panic)).and_then(|target| {
        // SAFETY: (1).
        let way = unsafe { options.mode.prepare() };
        way.map(|way| (way, target)).map_err(|error| Causes(&error).to_string())
    });
    let (way, mut target) = match ready {
        Ok(ready) => ready,
        Err(message) => {
            leave_message(input, &message);
            let _ = wire.send(&FAILED.to_ne_bytes());
            serve::exit()
        }
    };
    if wire.send(&READY.to_ne_bytes()).is_ok() {
        // SAFETY: (1).
        let served = unsafe { serve::serve(wire, None, &way, TestCase::Shared(input), &mut target) };
        if let Err(error) = served {
            // A fuzzer that finds the end of its pipe reads this.
            leave_message(input, &Causes(&error).to_string());
        }
    }
    serve::exit()
}

/// Leaves as much of `message` for the fuzzer as fits.
fn leave_message(input: SharedBytes, message: &str) {
    // SAFETY: (1) the fuzzer waits for a word of this server, or for its end.
    unsafe { place(input, message.as_bytes()) };
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the set-up panicked: {}", text.unwrap_or("no message"))
}

/// Sends standard output and error to /dev/null, if that can be opened.
fn discard_output() {
    let Ok(null) = std::fs::File::options().write(true).open("/dev/null") else { return };
    for number in [libc::STDOUT_FILENO, libc::STDERR_FILENO] {
        // SAFETY: both are descriptors of this process, which replaces what it had there.
        unsafe { libc::dup2(null.as_raw_fd(), number) };
    }
}

fn segment(mapping: &Mapping) -> SharedBytes {
    // A mapping never begins at address 0.
    let start = NonNull::new(mapping.as_ptr()).unwrap_or(NonNull::dangling());
    SharedBytes { start, len: mapping.len() }
}

fn share(what: &'static str, len: usize) -> Result<Mapping, HostError> {
    let page = rustix::param::page_size();
    let len = len.checked_next_multiple_of(page).unwrap_or(len);
    let memory = SharedMemory::create("palimpsest-fuzz", len, Pages::Base).map_err(|source| HostError::Memory {
        what,
        len,
        source: Box::new(source),
    })?;
    Mapping::new(Source::Shared(&memory), len, Protection::ReadWrite, page).map_err(|source| HostError::Memory {
        what,
        len,
        source: Box::new(source),
    })
}

fn gone(error: io::Error) -> HostError {
    if error.kind() == io::ErrorKind::BrokenPipe { HostError::ServerGone } else { HostError::Pipe(error) }
}

/// Returns whether `fd` becomes readable, or ends, within `limit`.
fn readable_within(fd: &OwnedFd, limit: Duration) -> io::Result<bool> {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        let time = libc::timespec {
            tv_sec: libc::time_t::try_from(left.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut wanted = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one record and one time, both live, and no signal mask.
        match unsafe { libc::ppoll(&raw mut wanted, 1, &raw const time, std::ptr::null()) } {
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
            ready => return Ok(ready != 0),
        }
    }
}

fn classify(status: i32) -> Run {
    if libc::WIFSIGNALED(status) {
        return match libc::WTERMSIG(status) {
            libc::SIGKILL => Run::Killed,
            signal => Run::Signalled { signal },
        };
    }
    // A worker that resets itself stops at the end of a run.
    match libc::WEXITSTATUS(status) {
        code if libc::WIFEXITED(status) && code != 0 => Run::Exited { code },
        _ => Run::Returned,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    fn number(child: &std::process::Child) -> Pid {
        Pid::from_raw(child.id().cast_signed()).expect("a process has a number")
    }

    /// Fails on: a stranger that is killed, or waited for, since it has the number of a server that is gone.
    #[test]
    fn the_number_of_a_server_that_is_gone_may_be_another_process() {
        let mut gone = Command::new("true").spawn().expect("coreutils are there");
        let server = Child::new(number(&gone)).expect("nobody has waited for it");
        gone.wait().expect("a child of this test's");
        if server.process.is_none() {
            return println!("skipped: this kernel tells processes apart by their numbers only");
        }
        let mut stranger = Command::new("sleep").arg("1000000").spawn().expect("coreutils are there");
        let process = server.process.as_ref().map(|process| process.try_clone().expect("a descriptor"));
        let waited = Child { number: number(&stranger), process }.wait();
        assert!(waited.is_none(), "somebody else has waited for it");
        Child { number: number(&stranger), ..server }.end();
        rustix::process::kill_process(number(&stranger), Signal::TERM).expect("this test's own, and still there");
        let status = stranger.wait().expect("nobody else has waited for it");
        assert_eq!(status.signal(), Some(libc::SIGTERM), "and not SIGKILL");
    }
}

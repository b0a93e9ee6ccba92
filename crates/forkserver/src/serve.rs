//! The server's loop: a request, a run, its status.
//!
//! In the modes with a fork, each request makes a child that runs the target once. With a reset, the child stays: it
//! restores its memory and stops itself by SIGSTOP, which tells the server, and through it the fuzzer, that the run is
//! over; the next request wakes it. When a child has crashed, exited, or was killed because it took too long, the
//! server makes a new one.
//!
//! The server writes nothing to the heap between two forks, but only to its stack, which is never frozen.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use palimpsest_fork::snapshot::{EnterError, Round, Scope, SignalMask, SnapshotOptions, abandon, take_and_enter};
use palimpsest_fork::{ForkError, Forked, Options};
use palimpsest_sys::{Causes, last_errno};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};

use crate::error::ServeError;
use crate::input::TestCase;
use crate::protocol::Words;
use crate::sigchld::Waiting;
use crate::wire::{self, Wire};

/// How a run gets a state that no earlier run has changed.
#[derive(Clone, Debug)]
pub enum Mode {
    /// A child of fork(2) for each run.
    Plain,
    /// Freezes the process first, so that a fork costs the same with any size of the heap.
    Frozen(Options),
    /// One child makes all runs, and restores its memory after each as [`take_and_enter`] does.
    Reset(SnapshotOptions),
}

/// How to make workers, once the process is prepared.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Plain,
    Frozen,
    Reset(SnapshotOptions),
}

impl Mode {
    /// [`Mode::Frozen`] with the default options.
    #[must_use]
    pub fn frozen() -> Self {
        Self::Frozen(Options::new())
    }

    /// [`Mode::Reset`] of all memory, with the default options.
    #[must_use]
    pub const fn reset() -> Self {
        Self::Reset(SnapshotOptions::new(Scope::Whole))
    }

    /// Freezes the process in [`Mode::Frozen`].
    ///
    /// # Safety
    ///
    /// 1. The contract of [`palimpsest_fork::freeze`], if the mode is [`Mode::Frozen`].
    pub(crate) unsafe fn prepare(&self) -> Result<Way, ServeError> {
        match self {
            Self::Plain => Ok(Way::Plain),
            Self::Reset(options) => Ok(Way::Reset(options.clone())),
            Self::Frozen(options) => {
                // SAFETY: (1).
                let report = unsafe { palimpsest_fork::freeze(options) }.map_err(ServeError::Freeze)?;
                tracing::debug!(%report, "frozen");
                Ok(Way::Frozen)
            }
        }
    }
}

/// Serves until the fuzzer is gone. `request` is one that was received already.
///
/// # Safety
///
/// 1. The process may be forked, and the target is sound in the child: there is no other thread whose locks the target
///    could need.
/// 2. The contract of [`take_and_enter`], if the way is [`Way::Reset`].
pub(crate) unsafe fn serve(
    mut wire: Wire,
    mut request: Option<u32>,
    way: &Way,
    test_case: TestCase,
    target: &mut dyn FnMut(&[u8]),
) -> Result<(), ServeError> {
    let mut stopped: Option<Pid> = None;
    let waiting = Waiting::new();
    let complaints = Complaints::new(way)?;
    loop {
        let killed = match request.take() {
            Some(word) => word != 0,
            None => match wire.request()? {
                Some(word) => word != 0,
                None => break,
            },
        };
        // The fuzzer killed a worker that ran too long, but had just stopped by itself.
        if let Some(worker) = stopped.take_if(|_| killed) {
            wait(worker, WaitOptions::empty())?;
        }
        let worker = if let Some(worker) = stopped {
            act(worker, "woken", |worker| rustix::process::kill_process(worker, Signal::CONT))?;
            worker
        } else {
            let server = rustix::process::getpid();
            // SAFETY: (1).
            match unsafe { fork(way) }.map_err(ServeError::Fork)? {
                Forked::Parent(worker) => worker,
                Forked::Child => {
                    drop(wire);
                    stay_with(server);
                    waiting.give_back();
                    // SAFETY: (2).
                    unsafe { work(way, test_case, target, &complaints) }
                }
            }
        };
        wire.send(&worker.as_raw_nonzero().get().to_ne_bytes())?;
        let status = ended(worker, way.waits_for())?;
        if !libc::WIFSTOPPED(status) {
            complaints.hear()?;
        }
        // Sent before its number becomes free for another process: a fuzzer that has not read the status may still kill
        // by that number.
        wire.send(&status.to_ne_bytes())?;
        let status = wait(worker, way.waits_for())?;
        stopped = status.stopped().then_some(worker);
    }
    if let Some(worker) = stopped {
        act(worker, "killed", |worker| rustix::process::kill_process(worker, Signal::KILL))?;
        wait(worker, WaitOptions::empty())?;
    }
    Ok(())
}

/// The pipe through which a worker reports that it cannot reset itself, which is no finding about the target.
struct Complaints(Option<(OwnedFd, OwnedFd)>);

impl Complaints {
    /// Creates a pipe, if workers may have something to report.
    fn new(way: &Way) -> Result<Self, ServeError> {
        match way {
            Way::Plain | Way::Frozen => Ok(Self(None)),
            Way::Reset(_) => pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
                .map(|ends| Self(Some(ends)))
                .map_err(|errno| ServeError::Pipe { action: "make a pipe for workers", source: errno.into() }),
        }
    }

    fn make(&self, error: &EnterError) {
        let Some((_, tell)) = &self.0 else { return };
        // The server at least sees that the worker has exited; more cannot be reported.
        let _ = wire::send(tell.as_fd(), Causes(error).to_string().as_bytes());
    }

    /// Fails with the complaint of a worker that has ended, if it had one.
    fn hear(&self) -> Result<(), ServeError> {
        let Some((hear, _)) = &self.0 else { return Ok(()) };
        let mut message = [0; 512];
        match rustix::io::read(hear, &mut message) {
            Ok(len @ 1..) => {
                Err(ServeError::Snapshot { message: String::from_utf8_lossy(&message[..len]).into_owned() })
            }
            // EAGAIN: no complaint.
            _ => Ok(()),
        }
    }
}

impl Way {
    /// Returns which changes of state end a run: stopping only with a reset, since a target may stop itself.
    fn waits_for(&self) -> WaitOptions {
        match self {
            Self::Plain | Self::Frozen => WaitOptions::empty(),
            Self::Reset(_) => WaitOptions::UNTRACED,
        }
    }
}

/// Forks a worker.
///
/// # Safety
///
/// 1. As for [`serve`].
unsafe fn fork(way: &Way) -> Result<Forked, ForkError> {
    match way {
        Way::Frozen => {
            // SAFETY: (1).
            unsafe { palimpsest_fork::fork() }
        }
        Way::Plain | Way::Reset(_) => {
            // SAFETY: (1).
            match unsafe { libc::fork() } {
                0 => Ok(Forked::Child),
                pid => Pid::from_raw(pid.max(0)).map(Forked::Parent).ok_or_else(|| ForkError(last_errno())),
            }
        }
    }
}

/// Makes a worker die with its server: nobody else would kill it.
pub(crate) fn stay_with(server: Pid) {
    // Without this, a killed fuzzer leaves a stopped process behind, which is no reason not to run.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != Some(server) {
        exit();
    }
}

/// Is the worker: runs the target once, or for ever with a reset after each run.
///
/// # Safety
///
/// 1. The contract of [`take_and_enter`], if the way is [`Way::Reset`].
unsafe fn work(way: &Way, test_case: TestCase, target: &mut dyn FnMut(&[u8]), complaints: &Complaints) -> ! {
    let mut run = || {
        // A panic is a finding, and fuzzers recognise findings by their signal.
        if catch_unwind(AssertUnwindSafe(|| test_case.give_to(target))).is_err() {
            std::process::abort();
        }
    };
    let options = match way {
        Way::Plain | Way::Frozen => {
            run();
            exit()
        }
        Way::Reset(options) => options,
    };
    let body = |round: Round| -> Infallible {
        if round.number != 0 {
            end_of_run();
        }
        run();
        leave()
    };
    // The closure's captures may lie in any frame, so the stack is restored too. SAFETY: (1); an exit from `body`
    // passes only frames that are restored.
    let ended = unsafe { take_and_enter(options, SignalMask::Restore, body) };
    let Err(error) = ended;
    complaints.make(&error);
    exit()
}

/// Stops this worker, which tells the server that a run is over and the memory is restored. Returns when the next run
/// begins.
fn end_of_run() {
    // SAFETY: a signal that nothing handles.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Ends a run: restores everything.
fn leave() -> Infallible {
    // SAFETY: 1. called inside `take_and_enter`, by the thread that entered; 2. the frames above it hold a returned
    // target.
    unsafe { abandon(0) }
}

/// Ends the process as fuzzers expect after a run without findings: without destructors, and without flushing what the
/// parent had buffered.
pub(crate) fn exit() -> ! {
    // SAFETY: ends the process; nothing runs after it.
    unsafe { libc::_exit(0) }
}

/// Waits for the end of a run, like [`wait`]. Returns the status that `waitpid` would return, but leaves the worker to
/// be waited for.
fn ended(worker: Pid, options: WaitOptions) -> Result<i32, ServeError> {
    let stops = if options.contains(WaitOptions::UNTRACED) { libc::WSTOPPED } else { 0 };
    let pid = worker.as_raw_nonzero().get();
    loop {
        // SAFETY: all-zero is a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let what = libc::WEXITED | libc::WNOWAIT | stops;
        // SAFETY: `info` is a valid place for the answer.
        if unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &raw mut info, what) } == 0 {
            // SAFETY: `waitid` has succeeded, and so filled in the fields of a SIGCHLD.
            let value = unsafe { info.si_status() };
            // `<sys/wait.h>`: what `WIFEXITED` and the others take apart.
            return Ok(match info.si_code {
                libc::CLD_EXITED => value << 8,
                libc::CLD_STOPPED | libc::CLD_TRAPPED => value << 8 | 0x7f,
                libc::CLD_DUMPED => value | 0x80,
                _ => value,
            });
        }
        match last_errno() {
            Errno::INTR => {}
            errno => return Err(ServeError::Worker { pid, action: "waited for", source: errno.into() }),
        }
    }
}

fn wait(worker: Pid, options: WaitOptions) -> Result<WaitStatus, ServeError> {
    loop {
        match rustix::process::waitpid(Some(worker), options) {
            Ok(Some((_, status))) => return Ok(status),
            Ok(None) | Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(ServeError::Worker {
                    pid: worker.as_raw_nonzero().get(),
                    action: "waited for",
                    source: errno.into(),
                });
            }
        }
    }
}

fn act(worker: Pid, action: &'static str, act: impl FnOnce(Pid) -> rustix::io::Result<()>) -> Result<(), ServeError> {
    act(worker).map_err(|errno| ServeError::Worker { pid: worker.as_raw_nonzero().get(), action, source: errno.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks a child that ends by `end`, and compares both ways to wait for it.
    fn assert_told(end: fn()) {
        // SAFETY: the child makes system calls only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            end();
            exit();
        }
        let child = Pid::from_raw(child).expect("forked");
        let told = ended(child, WaitOptions::UNTRACED).expect("a child");
        // It remains until it is waited for: nobody else can have its number.
        rustix::process::test_kill_process(child).expect("not reaped");
        assert_eq!(wait(child, WaitOptions::UNTRACED).expect("a child").as_raw(), told);
        if libc::WIFSTOPPED(told) {
            rustix::process::kill_process(child, Signal::KILL).expect("stopped");
            wait(child, WaitOptions::empty()).expect("killed");
        }
    }

    #[test]
    fn a_worker_is_told_before_its_number_is_free() {
        fn raise(signal: i32) {
            // SAFETY: ends or stops the child.
            unsafe { libc::raise(signal) };
        }
        assert_told(|| {});
        assert_told(|| raise(libc::SIGKILL));
        assert_told(|| raise(libc::SIGSTOP));
        assert_told(|| std::process::abort());
        // SAFETY: ends the child.
        assert_told(|| unsafe { libc::_exit(3) });
    }
}

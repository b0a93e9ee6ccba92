//! A process that holds threads of its parent by `ptrace`.
//!
//! A thread cannot trace another thread of its own process, so a child does it. The child borrows the parent's memory
//! (`CLONE_VM`): making it copies no page table, however large the parent is. It has its own stack, beside the [`Desk`]
//! through which it gets work. It also borrows the parent's thread-local storage, so it runs only atomics and bare
//! system calls. It has no exit signal: a SIGCHLD handler and `waitpid(-1, …)` do not see it.
//!
//! # Who may access the desk
//!
//! | `turn` | the calls belong to |
//! |---|---|
//! | [`PARENTS`] | the parent, which fills in requests and reads answers |
//! | [`CHILDS`] | the child, which makes the calls |
//! | [`END`] | neither; the child exits |
//!
//! The parent sets `CHILDS` and `END`, the child `PARENTS`.
//!
//! # What happens if one of them dies
//!
//! - The thread that has made the tracer dies: the kernel kills the tracer (`PR_SET_PDEATHSIG`). After the tracer has
//!   asked for that, it checks once whether its parent still exists.
//! - The tracer is killed: the kernel lets the threads continue. That must not happen while memory moves, so each
//!   thread gets `PTRACE_O_EXITKILL` once it is held: then the kernel kills the process with its tracer, before a held
//!   thread can execute an instruction.
//! - Somebody stops the tracer (SIGSTOP): the parent waits until it is continued.
//!
//! Sources: `ptrace(2)`, `kernel/ptrace.c` (`exit_ptrace`, `__ptrace_unlink`), `clone(2)`, `security/yama/yama_lsm.c`.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicIsize, AtomicU32, AtomicUsize, Ordering};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::child::{self, NoChild, Stack, answered, are_near};
use super::futex::{sleep, wake};
use super::own::Blocked;
use crate::arch::system_call;
use crate::last_errno;
use crate::seccomp::{self, Probe, Untried, Verdict};

/// Maximum number of calls that the tracer gets at once.
pub(crate) const BATCH: usize = 64;

/// More than twenty times what the tracer uses in an unoptimised build.
const STACK: usize = 32 << 10;

/// Values of `turn`; see the module.
const PARENTS: u32 = 0;
const CHILDS: u32 = 1;
const END: u32 = 2;

/// How often the parent checks whether a silent tracer is still alive, in nanoseconds.
const LOOK: i64 = 5_000_000;

/// The request that means `wait4` without blocking; no `ptrace` request has this number.
const WAIT: u32 = u32::MAX;

/// The memory through which parent and tracer communicate, with the tracer's stack. Zeroed memory is valid. It must not
/// move while there is a tracer.
pub(crate) struct Desk {
    /// The futex.
    turn: AtomicU32,
    /// The parent's process id.
    parent: AtomicI32,
    /// The number of calls that the tracer makes.
    count: AtomicUsize,
    calls: [Call; BATCH],
    stack: Stack<STACK>,
}

/// One call: the parent's request and the child's answers. Each writes in its turn; see the module.
struct Call {
    request: AtomicU32,
    tid: AtomicI32,
    data: AtomicUsize,
    answer: AtomicIsize,
    status: AtomicI32,
}

/// What the tracer does to a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// Begins to trace it, which it does not notice.
    Seize,
    /// Makes it stop.
    Interrupt,
    /// Asks whether it has stopped.
    Wait,
    /// Makes the kernel kill it if the tracer ends. Only for a stopped thread.
    KillOnExit,
    /// Lets a stopped thread continue, with this signal if it has stopped to take one, or 0.
    Detach(i32),
}

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// The call's result.
    pub(crate) result: Result<isize, Errno>,
    /// The status from [`Request::Wait`].
    pub(crate) status: i32,
}

/// Why a thread cannot be traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No tracer could be made.
    #[error("no child process could be made to trace it ({0}); raise RLIMIT_NPROC, or pids.max of the cgroup")]
    NoChild(Errno),
    /// Children of this process do not see its threads.
    #[error(
        "new children are in another pid namespace (unshare(CLONE_NEWPID)) and do not see it; freeze before unshare"
    )]
    PidNamespace,
    /// A seccomp filter forbids it.
    #[error(
        "ptrace, and getppid, prctl and prlimit64 of the process that calls it, were tried first, since there is a \
         seccomp filter: {0}; allow them in the filter"
    )]
    Filtered(Verdict),
    /// A debugger traces it already.
    #[error("process {by} traces it already; detach that debugger or strace first")]
    Traced {
        /// The debugger's process id.
        by: i32,
    },
    /// The process may not be inspected.
    #[error(
        "the process is not dumpable, because it has changed its user or asked for that; call \
         prctl(PR_SET_DUMPABLE, 1) first"
    )]
    Undumpable,
    /// Yama forbids it.
    #[error("kernel.yama.ptrace_scope is {scope}, which forbids to trace it; set 1 or less, or have CAP_SYS_PTRACE")]
    Yama {
        /// The setting's value.
        scope: u8,
    },
    /// The kernel gives no reason.
    #[error("ptrace is refused ({0}) by a security module or because real, effective and saved user ids differ")]
    Denied(Errno),
    /// The tracer was killed.
    #[error("the tracing process has ended before its time, with status {status:#x}; try again")]
    Ended {
        /// Its wait status; zero if somebody else has waited for it.
        status: i32,
    },
}

/// The process id of this process's tracer; 0 if there is none. A child that was forked while there was one keeps its
/// id, until it makes its own.
static OWN: AtomicI32 = AtomicI32::new(0);

/// Returns the process id of this process's tracer; 0 if there is none.
pub(crate) fn own() -> i32 {
    // Acquire, partner: the Release stores below. Forbids, with the kernel's locks, that a thread that sees itself
    // traced by it does not see which process that is.
    OWN.load(Ordering::Acquire)
}

/// A tracer. Threads that it has seized continue when this is dropped; detach stopped ones before, which says with
/// which signal.
#[derive(Debug)]
pub(crate) struct Tracer<'a> {
    desk: &'a Desk,
    pid: i32,
    /// Whether nobody has waited for it yet.
    is_there: bool,
    is_allowed: bool,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("turn", &self.turn).finish_non_exhaustive()
    }
}

/// Finds out whether this thread, which has `filters` seccomp filters, and so its children may make a tracer's calls: a
/// filter may kill a caller. Does not use the heap. The first trial by a thread costs a fork; without a filter it costs
/// nothing.
///
/// # Errors
///
/// [`Refusal::Filtered`], [`Refusal::PidNamespace`].
pub(crate) fn is_possible(filters: Option<u64>) -> Result<(), Refusal> {
    if filters == Some(0) {
        return Ok(());
    }
    match seccomp::probe(Probe::Ptrace) {
        Verdict::Allowed => Ok(()),
        // What keeps a trial from its child keeps a tracer from being one.
        Verdict::Unknown(Untried::NoChild(NoChild::PidNamespace)) => Err(Refusal::PidNamespace),
        verdict => Err(Refusal::Filtered(verdict)),
    }
}

/// Finds out why a thread cannot be traced, although no debugger traces it.
pub(crate) fn diagnose(errno: Errno) -> Refusal {
    // SAFETY: takes and returns numbers.
    let dumpable = unsafe { system_call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize, 0, 0, 0]) };
    match (errno, dumpable, yama_scope()) {
        (Errno::PERM, 0 | 2, _) => Refusal::Undumpable,
        (Errno::PERM, _, Some(scope @ 1..)) => Refusal::Yama { scope },
        _ => Refusal::Denied(errno),
    }
}

/// `kernel.yama.ptrace_scope`.
fn yama_scope() -> Option<u8> {
    let path = c"/proc/sys/kernel/yama/ptrace_scope";
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut digit = [0_u8; 1];
    rustix::io::read(&file, &mut digit).ok()?;
    digit[0].checked_sub(b'0')
}

impl<'a> Tracer<'a> {
    /// Makes a tracer. Does not use the heap. The desk must not have another one, and `ptrace` must be possible.
    ///
    /// # Errors
    ///
    /// [`Refusal::PidNamespace`], [`Refusal::NoChild`].
    pub(crate) fn start(desk: &'a Desk) -> Result<Self, Refusal> {
        if !are_near() {
            return Err(Refusal::PidNamespace);
        }
        // Relaxed: the child is made after these stores.
        desk.turn.store(PARENTS, Ordering::Relaxed);
        desk.parent.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
        // It shares our memory, and also our descriptors and directories, so that it keeps none open itself. Debuggers
        // do not follow it.
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_UNTRACED;
        // The tracer must not run a handler of the program.
        let blocked = Blocked::all();
        let arg = ptr::from_ref(desk).cast_mut().cast::<c_void>();
        // SAFETY: the child runs `serve` on a stack that nobody else uses; `serve` touches only the desk, which
        // outlives the child, as `end` waits for it.
        let pid = unsafe { libc::clone(serve, desk.stack.top(), flags, arg) };
        let errno = last_errno();
        drop(blocked);
        if pid < 0 {
            return Err(Refusal::NoChild(errno));
        }
        // Release, partner: the Acquire load in `own`. It traces nobody before it is asked to.
        OWN.store(pid, Ordering::Release);
        Ok(Self { desk, pid, is_there: true, is_allowed: false })
    }

    /// Tells Yama that this process's tracer may trace it (`PR_SET_PTRACER`). Without Yama nothing happens.
    pub(crate) fn allow(&mut self) {
        self.is_allowed = true;
        // SAFETY: takes numbers and changes no memory.
        unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_PTRACER as usize, self.pid as usize, 0, 0]) };
    }

    /// Returns whether Yama was told.
    pub(crate) fn is_allowed(&self) -> bool {
        self.is_allowed
    }

    /// Sends a request for each of some threads and waits for the answers.
    ///
    /// # Errors
    ///
    /// [`Refusal::Ended`]; the answers until then are unknown.
    pub(crate) fn ask(
        &mut self,
        requests: &[(i32, Request)],
    ) -> Result<impl Iterator<Item = Answer> + use<'a>, Refusal> {
        let Desk { turn, count, calls, .. } = self.desk;
        // Relaxed, here and below: `turn` orders.
        count.store(requests.len(), Ordering::Relaxed);
        for (call, (tid, request)) in calls.iter().zip(requests) {
            let (number, data) = match *request {
                Request::Seize => (libc::PTRACE_SEIZE, 0),
                Request::Interrupt => (libc::PTRACE_INTERRUPT, 0),
                Request::Wait => (WAIT, 0),
                Request::KillOnExit => (libc::PTRACE_SETOPTIONS, libc::PTRACE_O_EXITKILL as usize),
                Request::Detach(signal) => (libc::PTRACE_DETACH, signal.unsigned_abs() as usize),
            };
            call.request.store(number, Ordering::Relaxed);
            call.tid.store(*tid, Ordering::Relaxed);
            call.data.store(data, Ordering::Relaxed);
        }
        // Release, partner: the Acquire load in `serve`. Forbids that the tracer sees the turn but not the requests.
        turn.store(CHILDS, Ordering::Release);
        wake(turn);
        // Acquire, partner: the Release store in `serve`. Forbids reading answers before they are there.
        while turn.load(Ordering::Acquire) == CHILDS {
            let limit = libc::timespec { tv_sec: 0, tv_nsec: LOOK };
            sleep(turn, CHILDS, &raw const limit);
            if turn.load(Ordering::Relaxed) == CHILDS
                && let Some(status) = self.wait(libc::WNOHANG)
            {
                return Err(Refusal::Ended { status });
            }
        }
        Ok(calls.iter().take(requests.len()).map(|call| Answer {
            result: answered(call.answer.load(Ordering::Relaxed)),
            status: call.status.load(Ordering::Relaxed),
        }))
    }

    /// Waits for its end. Returns the status, if it has ended.
    fn wait(&mut self, flags: i32) -> Option<i32> {
        let mut status = 0_i32;
        while self.is_there {
            let flags = flags | libc::__WALL;
            // SAFETY: `status` outlives the call, and the kernel writes no more than an int to it.
            match answered(unsafe {
                system_call(libc::SYS_wait4, [self.pid as usize, (&raw mut status).addr(), flags as usize, 0])
            }) {
                Ok(0) => return None,
                Err(Errno::INTR) => {}
                // Somebody else has waited for a child that is unknown.
                Ok(_) | Err(_) => self.is_there = false,
            }
        }
        Some(status)
    }
}

impl Drop for Tracer<'_> {
    fn drop(&mut self) {
        // Relaxed: it publishes nothing.
        self.desk.turn.store(END, Ordering::Relaxed);
        wake(&self.desk.turn);
        self.wait(0);
        // Release, partner: the Acquire load in `own`. It traces nobody any more.
        OWN.store(0, Ordering::Release);
    }
}

/// Is the tracer: makes the calls that it gets. Runs on the parent's thread-local storage, so without the C library and
/// without panics.
extern "C" fn serve(desk: *mut c_void) -> c_int {
    // SAFETY: the parent passes its desk, and waits for this process before the desk could end.
    let desk = unsafe { &*desk.cast::<Desk>() };
    child::dump_no_core();
    // SAFETY: takes numbers.
    unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0]) };
    // SAFETY: takes nothing.
    let parent = unsafe { system_call(libc::SYS_getppid, [0; 4]) };
    // Renames itself, so that a search for processes by name does not take it for the program. SAFETY: a C string that
    // lives for ever.
    unsafe { system_call(libc::SYS_prctl, [libc::PR_SET_NAME as usize, c"palimpsest-hold".as_ptr().addr(), 0, 0]) };
    // Relaxed: stored before this process was made.
    while parent == desk.parent.load(Ordering::Relaxed) as isize {
        // Acquire, partner: the Release store in `Tracer::ask`.
        match desk.turn.load(Ordering::Acquire) {
            CHILDS => {
                for call in desk.calls.iter().take(desk.count.load(Ordering::Relaxed)) {
                    call.answer.store(perform(call), Ordering::Relaxed);
                }
                // Release, partner: the Acquire load in `Tracer::ask`. Only from CHILDS: END is final.
                let _ = desk.turn.compare_exchange(CHILDS, PARENTS, Ordering::Release, Ordering::Relaxed);
                wake(&desk.turn);
            }
            PARENTS => sleep(&desk.turn, PARENTS, ptr::null()),
            _ => break,
        }
    }
    loop {
        // SAFETY: ends this process; nothing of it is used afterwards.
        unsafe { system_call(libc::SYS_exit_group, [0; 4]) };
    }
}

/// Makes one call, in the tracer.
fn perform(call: &Call) -> isize {
    let tid = call.tid.load(Ordering::Relaxed) as usize;
    match call.request.load(Ordering::Relaxed) {
        WAIT => {
            let flags = (libc::WNOHANG | libc::__WALL) as usize;
            // SAFETY: the kernel writes an int that lives as long as the desk.
            unsafe { system_call(libc::SYS_wait4, [tid, call.status.as_ptr().addr(), flags, 0]) }
        }
        request => {
            let data = call.data.load(Ordering::Relaxed);
            // SAFETY: none of the requests writes to the tracer's memory or changes the other thread's.
            unsafe { system_call(libc::SYS_ptrace, [request as usize, tid, 0, data]) }
        }
    }
}

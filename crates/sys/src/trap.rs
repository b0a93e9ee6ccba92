//! SIGTRAP: one handler for the traps that code patching puts into running code, in front of other handlers of the
//! signal.
//!
//! # Who gets a trap
//!
//! The handler asks its [`Claim`] first. What that calls foreign goes to the action that was there before ours, with
//! the same arguments, or to the default action, which ends the process with SIGTRAP.
//!
//! An action that is installed later replaces ours; the kernel has no other notion. [`install`] notices and puts ours
//! in front of it again, so call it each time before traps may occur. If the later one has kept ours as
//! *its* previous action and calls it, a foreign trap comes back to us while we are passing it on; a `Passing` slot
//! holds the frame of each such signal and how far back it has gone, and the next older action gets it.
//!
//! # Debuggers
//!
//! A debugger that traces the process gets each SIGTRAP before we do. gdb knows its own breakpoints; it stops at ours
//! ("Program received signal SIGTRAP") and, continued, does not deliver the signal, so that the thread goes on behind
//! the trap. Give it `handle SIGTRAP nostop noprint pass` once our handler is installed. From its own
//! breakpoints it then has to be continued by `signal 0`: `continue` delivers their SIGTRAP too, with the program
//! counter set back, and arrives at the breakpoint again. A claim has to let such a signal pass; if it comes here as
//! one that was sent, nobody else handles it, and a debugger traces, it is ignored.
//!
//! # Reentrancy
//!
//! The handler allocates nothing, takes no lock and uses no thread-local storage. `SA_NODEFER`: an action that we call
//! may run into traps itself. `SA_ONSTACK`: code that traps may run on a stack of its own size; one signal frame and 4
//! KiB must fit the alternate stack. One frame, since every signal that can wait does so while the handler runs:
//! alternate stacks are often of 8 KiB, of which a second frame would not leave enough. The actions behind ours run
//! under the mask that the kernel would have given them.
//!
//! # Memory
//!
//! Actions are kept in a list that only grows, once for each *different* action that somebody installs later.

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::arch::TRAP_CODE;
pub use crate::arch::TrapFrame;

/// What a [`Claim`] says of a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It was ours; the thread goes on as the frame says.
    Ours,
    /// Somebody else's.
    Foreign,
}

/// Where a SIGTRAP comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The CPU has executed the trap.
    Cpu,
    /// Somebody has sent it: for some other reason, or a debugger that took the CPU's and now passes it on (the kernel
    /// then forgets what it was for, `ptrace_signal` in `kernel/signal.c`).
    Sent,
}

/// Decides about the trap at [`TrapFrame::trap_address`]. Runs in a signal handler, possibly several times at once and
/// nested: it must be async-signal-safe.
pub type Claim = fn(&mut TrapFrame, Origin) -> Claimed;

/// Why SIGTRAP cannot be handled.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refused a handler for SIGTRAP")]
pub struct TrapError(#[source] io::Error);

/// What [`install`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// Our handler was in place already.
    Before,
    /// It was put in place now, in front of another action.
    Now,
}

/// An action that was in place before ours, or replaced ours and lies behind it now.
struct Action {
    action: libc::sigaction,
    /// The one that gets what this one passes on to us.
    older: *const Action,
    /// The next of all that there have ever been.
    known: *const Action,
}

/// The youngest action behind ours.
static BEHIND: AtomicPtr<Action> = AtomicPtr::new(ptr::null_mut());

/// All actions that have ever been behind ours.
static KNOWN: AtomicPtr<Action> = AtomicPtr::new(ptr::null_mut());

/// The claim, as a number, zero before the first installation. Written by who installs, read by handlers.
static CLAIM: AtomicUsize = AtomicUsize::new(0);

/// A signal that is being passed on: the address of its frame, and the action that it was last passed to.
struct Passing {
    /// 0 for a free slot. The thread that has put its frame here owns the slot until it stores 0.
    frame: AtomicUsize,
    to: AtomicPtr<Action>,
}

/// Signals that can be passed on at once, over all threads. One that finds no slot is passed to the oldest action.
static PASSING: [Passing; 64] =
    [const { Passing { frame: AtomicUsize::new(0), to: AtomicPtr::new(ptr::null_mut()) } }; 64];

/// Puts the handler in front of SIGTRAP's present action, if it is not there.
///
/// Calls must not overlap in time, and `claim` must be the same each time: one part of the program has the traps.
///
/// # Errors
///
/// [`TrapError`].
pub fn install(claim: Claim) -> Result<Installed, TrapError> {
    let present = sigaction(None)?;
    if present.sa_sigaction == handler_address() {
        return Ok(Installed::Before);
    }
    // Relaxed: the handler that reads it is installed below, by a system call.
    CLAIM.store(claim as usize, Ordering::Relaxed);
    put_behind(present);
    // SAFETY: all-zero is a valid `sigaction`.
    let mut ours: libc::sigaction = unsafe { mem::zeroed() };
    ours.sa_sigaction = handler_address();
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER;
    ours.sa_mask = every_signal_that_can_wait();
    sigaction(Some(&ours))?;
    Ok(Installed::Now)
}

/// All signals but those that the interrupted instruction causes itself (blocked, those would end the process), and
/// SIGABRT.
fn every_signal_that_can_wait() -> libc::sigset_t {
    const IMMEDIATE: [i32; 7] =
        [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGSYS, libc::SIGABRT];
    // SAFETY: all-zero is a valid set.
    let mut set: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: a valid set.
    unsafe { libc::sigfillset(&mut set) };
    for signal in IMMEDIATE {
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    set
}

fn handler_address() -> usize {
    on_trap as extern "C" fn(_, _, _) as usize
}

/// Sets SIGTRAP's action, or only asks; the one before is the answer.
fn sigaction(new: Option<&libc::sigaction>) -> Result<libc::sigaction, TrapError> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: `new` is null or a valid action, whose handler is async-signal-safe; `old` is a valid place for the
    // answer.
    let answer = unsafe { libc::sigaction(libc::SIGTRAP, new.map_or(ptr::null(), ptr::from_ref), &mut old) };
    if answer == 0 { Ok(old) } else { Err(TrapError(io::Error::last_os_error())) }
}

/// Makes an action the first that gets foreign signals.
fn put_behind(present: libc::sigaction) {
    // Relaxed: only `install` changes both lists, and its calls do not overlap.
    let youngest: *const Action = BEHIND.load(Ordering::Relaxed);
    let known: *const Action = KNOWN.load(Ordering::Relaxed);
    // An action that was restored, so that later ones are out of use; or one installed in the same place again.
    let restored = successors(youngest, |action| action.older).find(|action| action.is(&present));
    let same_again =
        || successors(known, |action| action.known).find(|action| action.older == youngest && action.is(&present));
    let behind = restored.or_else(same_again).unwrap_or_else(|| {
        let action = Box::leak(Box::new(Action { action: present, older: youngest, known }));
        KNOWN.store(action, Ordering::Relaxed);
        action
    });
    // Release, partner: the Acquire load in `pass_on`. Forbids a handler that sees the action without its fields.
    BEHIND.store(ptr::from_ref(behind).cast_mut(), Ordering::Release);
}

fn successors(first: *const Action, next: impl Fn(&Action) -> *const Action) -> impl Iterator<Item = &'static Action> {
    // SAFETY: null, or an action that is never freed.
    let live = |action: *const Action| unsafe { action.as_ref() };
    std::iter::successors(live(first), move |action| live(next(action)))
}

impl Action {
    fn is(&self, other: &libc::sigaction) -> bool {
        self.action.sa_sigaction == other.sa_sigaction && self.action.sa_flags == other.sa_flags
    }
}

/// Async-signal-safe: lock-free atomics, the claim, system calls; keeps `errno`.
extern "C" fn on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler, and whoever calls us as their previous
    // action does too.
    let code = unsafe { (*info).si_code };
    let origin = if code == TRAP_CODE { Origin::Cpu } else { Origin::Sent };
    // SAFETY: as above for the context, which is a `ucontext_t` that nobody else refers to while the handler runs.
    let frame = unsafe { &mut *context.cast::<TrapFrame>() };
    if claim_of(frame, origin) == Claimed::Foreign {
        pass_on(signal, info, context);
    }
}

fn claim_of(frame: &mut TrapFrame, origin: Origin) -> Claimed {
    // Relaxed: stored before the handler was installed.
    let claim = CLAIM.load(Ordering::Relaxed);
    // SAFETY: not zero once the handler is installed, and only ever stored from a `Claim`.
    let claim = unsafe { mem::transmute::<usize, Claim>(claim) };
    claim(frame, origin)
}

/// Gives the signal to the action behind ours that has not had it yet.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let frame = context.addr();
    // Relaxed: frames are compared by the thread that stored them alone; no two live frames have one address.
    let passing = PASSING.iter().find(|slot| slot.frame.load(Ordering::Relaxed) == frame);
    if let Some(slot) = passing {
        // SAFETY: stored here or below: null, or an action that is never freed.
        let last = unsafe { slot.to.load(Ordering::Relaxed).as_ref() };
        let older = last.map_or(ptr::null(), |last| last.older);
        slot.to.store(older.cast_mut(), Ordering::Relaxed);
        return call(older, signal, info, context);
    }
    // Acquire, partner: the Release store in `put_behind`.
    let youngest: *const Action = BEHIND.load(Ordering::Acquire);
    // Relaxed, both ways: a slot holds nothing for other threads.
    let take = |slot: &&Passing| slot.frame.compare_exchange(0, frame, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let Some(slot) = PASSING.iter().find(take) else {
        let oldest = successors(youngest, |action| action.older).last();
        return call(oldest.map_or(ptr::null(), ptr::from_ref), signal, info, context);
    };
    slot.to.store(youngest.cast_mut(), Ordering::Relaxed);
    call(youngest, signal, info, context);
    slot.frame.store(0, Ordering::Relaxed);
}

fn call(action: *const Action, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: null (the signal has come back from all of them), or an action that is never freed.
    let handler = unsafe { action.as_ref() }.map_or(libc::SIG_DFL, |action| action.action.sa_sigaction);
    match handler {
        libc::SIG_DFL => {
            // gdb, told to pass SIGTRAP, also sends what was its own breakpoint's.
            // SAFETY: valid as in `on_trap`.
            let executed = unsafe { (*info).si_code } == TRAP_CODE;
            if executed || !is_traced() {
                end_process(info);
            }
        }
        libc::SIG_IGN => {
            // The kernel does not let a trap be ignored (`force_sig_info_to_task`); a signal that was sent, it does.
            // SAFETY: valid as in `on_trap`.
            if unsafe { (*info).si_code } > 0 {
                end_process(info);
            }
        }
        handler => {
            // SAFETY: not null, since the handler is not the default; never freed.
            let action = unsafe { &(*action).action };
            // SAFETY: valid as in `on_trap`.
            let interrupted = unsafe { (*context.cast::<libc::ucontext_t>()).uc_sigmask };
            let masked = Masked::as_for(action, &interrupted);
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: installed with SA_SIGINFO, so that it has this type.
                let handler = unsafe {
                    mem::transmute::<usize, extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void)>(handler)
                };
                handler(signal, info, context);
            } else {
                // SAFETY: installed without SA_SIGINFO, so that it has this type.
                let handler = unsafe { mem::transmute::<usize, extern "C" fn(i32)>(handler) };
                handler(signal);
            }
            drop(masked);
        }
    }
}

/// The calling thread's signal mask is another until this is dropped. Async-signal-safe.
struct Masked {
    before: libc::sigset_t,
}

impl Masked {
    /// The mask under which the kernel would run the handler of `action` in a thread that had the mask `interrupted`
    /// (`signal_delivered` in `kernel/signal.c`).
    fn as_for(action: &libc::sigaction, interrupted: &libc::sigset_t) -> Self {
        let mut mask = *interrupted;
        for signal in 1..=libc::SIGRTMAX() {
            // SAFETY: a valid set and a valid signal.
            let added = unsafe { libc::sigismember(&action.sa_mask, signal) } == 1;
            let own = signal == libc::SIGTRAP && action.sa_flags & libc::SA_NODEFER == 0;
            if added || own {
                // SAFETY: a valid set and a valid signal.
                unsafe { libc::sigaddset(&mut mask, signal) };
            }
        }
        // SAFETY: all-zero is a valid set.
        let mut before: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: valid sets.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &mask, &mut before) };
        Self { before }
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: a valid set; nothing is asked for.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

/// Whether a debugger traces this process. Async-signal-safe.
pub fn is_traced() -> bool {
    const FIELD: &[u8] = b"TracerPid:\t";
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/self/status", flags, rustix::fs::Mode::empty()) else { return false };
    // The field is among the first eight lines.
    let mut text = [0; 512];
    let Ok(len) = rustix::io::read(&file, &mut text) else { return false };
    let at = text[..len].windows(FIELD.len()).position(|window| window == FIELD);
    at.and_then(|at| text[..len].get(at + FIELD.len())).is_some_and(|&digit| digit != b'0')
}

/// Lets the default action happen, with the signal's own information for the core dump and the parent.
fn end_process(info: *mut libc::siginfo_t) {
    // SAFETY: all-zero is a valid `sigaction`, and means the default.
    let default: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a valid action; no answer is asked for.
    unsafe { libc::sigaction(libc::SIGTRAP, &default, ptr::null_mut()) };
    let (pid, tid) = (rustix::process::getpid(), rustix::thread::gettid());
    let (pid, tid) = (pid.as_raw_nonzero().get(), tid.as_raw_nonzero().get());
    // A thread may send itself any code. Not blocked here (SA_NODEFER), so that it ends the process before the call
    // returns. SAFETY: `info` is valid as in `on_trap`.
    let sent = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGTRAP, info) };
    if sent != 0 {
        // SAFETY: ends the process; the signal that was to do it could not be sent.
        unsafe { libc::abort() };
    }
}

//! SIGTRAP: one handler for the traps that code patching puts into running code, in front of other handlers of the
//! signal.
//!
//! # Who gets a trap
//!
//! The handler asks its [`Claim`] first. Foreign traps go to the action that was there before ours, with the same
//! arguments, or to the default action, which ends the process with SIGTRAP.
//!
//! An action that is installed later replaces ours; the kernel has only one per signal. [`install`] notices that and
//! puts ours in front of it again, so call it each time before traps may occur. If the later handler has kept ours as
//! *its* previous action and calls it, a foreign trap comes back to us while we pass it on; a `Passing` slot records
//! the frame of each such signal and how far back it has gone, and the next older action gets it.
//!
//! # Debuggers
//!
//! A debugger that traces the process gets each SIGTRAP before we do. gdb knows its own breakpoints; it stops at ours
//! ("Program received signal SIGTRAP") and, continued, does not deliver the signal, so that the thread continues behind
//! the trap. Give it `handle SIGTRAP nostop noprint pass` once our handler is installed. Then its own breakpoints must
//! be continued by `signal 0`: `continue` also delivers their SIGTRAP, with the program counter set back, and arrives
//! at the breakpoint again. A claim must let such a signal pass; if it arrives here as a sent one, no other handler
//! takes it, and a debugger traces, it is ignored.
//!
//! Other tracers pass each signal on with the thread where it is, behind the trap: strace, and the process that
//! [holds](crate::threads::hold) threads for us. Both make a thread come to the handler late, when its trap may be
//! gone. So a claim must know where it has ever put traps: only elsewhere may a thread have been set back
//! ([`is_debugged`] tells the process that holds threads from a debugger).
//!
//! # Reentrancy
//!
//! The handler allocates nothing, takes no lock and uses no thread-local storage. `SA_NODEFER`: an action that we call
//! may run into traps itself. `SA_ONSTACK`: code that traps may run on a small stack; one signal frame and 4 KiB must
//! fit the alternate stack. Only one frame, since every signal that can wait does so while the handler runs: alternate
//! stacks often have 8 KiB, of which a second frame would leave too little. The actions behind ours run with the mask
//! that the kernel would have given them.
//!
//! # Memory
//!
//! A list that only grows keeps each *different* action that somebody installs later, once.

use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use crate::arch::TRAP_CODE;
pub use crate::arch::TrapFrame;
use crate::signals::IMMEDIATE;
use crate::threads::tracer;

/// A [`Claim`]'s decision about a trap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// It was ours; the thread continues as the frame says.
    Ours,
    /// It belongs to somebody else.
    Foreign,
}

/// Where a SIGTRAP comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The CPU has executed the trap.
    Cpu,
    /// Somebody has sent it: for another reason, or a debugger that took the CPU's trap and now passes it on (the
    /// kernel then forgets its cause, `ptrace_signal` in `kernel/signal.c`).
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
    /// It was installed now, in front of another action.
    Now,
}

/// An action that was in place before ours, or replaced ours and is behind it again.
struct Action {
    action: libc::sigaction,
    /// Whether it was called, if it is called once (`SA_RESETHAND`).
    is_spent: AtomicBool,
    /// The next action behind this one.
    older: *const Action,
    /// The next in the list of all actions ever seen.
    known: *const Action,
}

/// The youngest action behind ours.
static BEHIND: AtomicPtr<Action> = AtomicPtr::new(ptr::null_mut());

/// All actions that were ever behind ours.
static KNOWN: AtomicPtr<Action> = AtomicPtr::new(ptr::null_mut());

/// The claim, as a number; zero before the first installation. Written by the installer, read by handlers.
static CLAIM: AtomicUsize = AtomicUsize::new(0);

/// A signal that is being passed on: the address of its frame, and the action that got it last.
///
/// An action may never return (`siglongjmp`): then its slot stays, until another signal has its frame at the same
/// address, or until none is free.
struct Passing {
    /// 0 for a free slot. The thread that stores its frame here owns the slot until it stores 0.
    frame: AtomicUsize,
    /// Where the stack was when our handler got the signal: a signal that comes back is deeper.
    stack: AtomicUsize,
    thread: AtomicU32,
    to: AtomicPtr<Action>,
}

/// Slots for signals that are passed on at the same time, over all threads. A signal without a slot goes to the oldest
/// action.
static PASSING: [Passing; 64] = [const { Passing::free() }; 64];

impl Passing {
    const fn free() -> Self {
        let (stack, thread) = (AtomicUsize::new(0), AtomicU32::new(0));
        Self { frame: AtomicUsize::new(0), stack, thread, to: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Takes the place of one that holds `frame`: 0, or a frame of this thread.
    fn take(&self, held: usize, frame: usize) -> bool {
        // Acquire, partner: the Release in `free_it`. Forbids that the last owner's `thread` is seen behind it.
        self.frame.compare_exchange(held, frame, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives the place back.
    fn free_it(&self) {
        self.thread.store(0, Ordering::Relaxed);
        // Release, partner: the Acquire in `take`.
        self.frame.store(0, Ordering::Release);
    }
}

/// Puts the handler in front of SIGTRAP's present action, if it is not there.
///
/// Calls must not overlap in time, and `claim` must be the same each time: only one part of the program owns the traps.
/// A library that could be unloaded must stay loaded from then on: its installer first calls
/// [`stay_loaded`](crate::stay_loaded), without a lock.
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

/// Returns all signals except those that the interrupted instruction itself causes (blocked, they would end the
/// process), and except SIGABRT.
fn every_signal_that_can_wait() -> libc::sigset_t {
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

/// Sets SIGTRAP's action, or only reads it. Returns the previous action.
fn sigaction(new: Option<&libc::sigaction>) -> Result<libc::sigaction, TrapError> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: `new` is null or a valid action, whose handler is async-signal-safe; `old` is a valid place for the
    // answer.
    let answer = unsafe { libc::sigaction(libc::SIGTRAP, new.map_or(ptr::null(), ptr::from_ref), &mut old) };
    if answer == 0 { Ok(old) } else { Err(TrapError(io::Error::last_os_error())) }
}

/// Makes an action the first to get foreign signals.
fn put_behind(present: libc::sigaction) {
    // Relaxed: only `install` changes both lists, and its calls do not overlap.
    let youngest: *const Action = BEHIND.load(Ordering::Relaxed);
    let known: *const Action = KNOWN.load(Ordering::Relaxed);
    // An action that was restored, so that later ones are out of use; or one that was installed again in the same
    // place.
    let restored = successors(youngest, |action| action.older).find(|action| action.is(&present));
    let same_again =
        || successors(known, |action| action.known).find(|action| action.older == youngest && action.is(&present));
    let behind = restored.or_else(same_again).unwrap_or_else(|| {
        let action =
            Box::leak(Box::new(Action { action: present, is_spent: AtomicBool::new(false), older: youngest, known }));
        KNOWN.store(action, Ordering::Relaxed);
        action
    });
    // It was installed anew. Relaxed: published below.
    behind.is_spent.store(false, Ordering::Relaxed);
    // Release, partner: the Acquire load in `pass_on`. Forbids that a handler sees the action without its fields.
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

    /// Returns what to call now: the default action behind a handler that is called once.
    fn handler(&self) -> usize {
        // Relaxed: nothing is published.
        let is_once = self.action.sa_flags & libc::SA_RESETHAND != 0 && self.action.sa_sigaction != libc::SIG_IGN;
        if is_once && self.is_spent.swap(true, Ordering::Relaxed) { libc::SIG_DFL } else { self.action.sa_sigaction }
    }
}

/// Handles SIGTRAP. Async-signal-safe: lock-free atomics, the claim, system calls; keeps `errno`.
extern "C" fn on_trap(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler, and so do handlers that call us as their
    // previous action.
    let code = unsafe { (*info).si_code };
    let origin = if code == TRAP_CODE { Origin::Cpu } else { Origin::Sent };
    // SAFETY: as above for the context, which is a `ucontext_t` that nobody else refers to while the handler runs.
    let frame = unsafe { &mut *context.cast::<TrapFrame>() };
    if claim_of(frame, origin) == Claimed::Foreign {
        let place = 0_u8;
        pass_on(signal, info, context, (&raw const place).addr());
    }
}

fn claim_of(frame: &mut TrapFrame, origin: Origin) -> Claimed {
    // Relaxed: stored before the handler was installed.
    let claim = CLAIM.load(Ordering::Relaxed);
    // SAFETY: not zero once the handler is installed, and only ever stored from a `Claim`.
    let claim = unsafe { mem::transmute::<usize, Claim>(claim) };
    claim(frame, origin)
}

/// Passes the signal to the next action behind ours that has not had it yet. `stack` is where the stack was when our
/// handler got it.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, stack: usize) {
    let frame = context.addr();
    // Relaxed, here and below: only the thread that stored a frame compares it; no two live frames have the same
    // address.
    let passing = PASSING.iter().find(|slot| slot.frame.load(Ordering::Relaxed) == frame);
    // At the same place of the stack it is another signal, and the action that got the last one has never returned.
    let is_deeper = |slot: &&Passing| slot.stack.load(Ordering::Relaxed) != stack;
    if let Some(slot) = passing.filter(is_deeper) {
        // SAFETY: stored here or below: null, or an action that is never freed.
        let last = unsafe { slot.to.load(Ordering::Relaxed).as_ref() };
        let older = last.map_or(ptr::null(), |last| last.older);
        slot.to.store(older.cast_mut(), Ordering::Relaxed);
        return call(older, signal, info, context);
    }
    // Acquire, partner: the Release store in `put_behind`.
    let youngest: *const Action = BEHIND.load(Ordering::Acquire);
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    // A signal of this thread that was passed on deeper in the stack is over.
    let is_left =
        |slot: &Passing| slot.thread.load(Ordering::Relaxed) == thread && slot.stack.load(Ordering::Relaxed) < stack;
    let free = || PASSING.iter().find(|slot| slot.take(0, frame));
    let left = || PASSING.iter().find(|slot| is_left(slot) && slot.take(slot.frame.load(Ordering::Relaxed), frame));
    let Some(slot) = passing.or_else(free).or_else(left) else {
        let oldest = successors(youngest, |action| action.older).last();
        return call(oldest.map_or(ptr::null(), ptr::from_ref), signal, info, context);
    };
    slot.stack.store(stack, Ordering::Relaxed);
    slot.thread.store(thread, Ordering::Relaxed);
    slot.to.store(youngest.cast_mut(), Ordering::Relaxed);
    call(youngest, signal, info, context);
    slot.free_it();
}

fn call(action: *const Action, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: null (the signal has come back from all actions), or an action that is never freed.
    let handler = unsafe { action.as_ref() }.map_or(libc::SIG_DFL, Action::handler);
    match handler {
        libc::SIG_DFL => {
            // gdb, told to pass SIGTRAP, also sends those of its own breakpoints. SAFETY: valid as in `on_trap`.
            let executed = unsafe { (*info).si_code } == TRAP_CODE;
            if executed || !is_debugged() {
                end_process(info, context);
            }
        }
        libc::SIG_IGN => {
            // The kernel does not allow ignoring a trap (`force_sig_info_to_task`), but does for a sent signal. SAFETY:
            // valid as in `on_trap`.
            if unsafe { (*info).si_code } > 0 {
                end_process(info, context);
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

/// Replaces the calling thread's signal mask while it lives. Async-signal-safe.
struct Masked {
    before: libc::sigset_t,
}

impl Masked {
    /// Sets the mask with which the kernel would run the handler of `action` in a thread with the mask `interrupted`
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
        // SAFETY: a valid set; the old one is not requested.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

/// Returns whether a debugger traces this thread. A process that [holds](crate::threads::hold) it is none: that lets a
/// thread continue where it is. Async-signal-safe.
pub fn is_debugged() -> bool {
    loop {
        let holder = tracer::own();
        let tracer = own_tracer();
        // If a hold has begun or ended meanwhile, the tracer may be either's.
        if tracer::own() == holder {
            return tracer != 0 && tracer != holder;
        }
    }
}

/// Returns the process that traces this thread; 0 if none does, or if it is not known.
fn own_tracer() -> i32 {
    const FIELD: &[u8] = b"TracerPid:\t";
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/thread-self/status", flags, rustix::fs::Mode::empty()) else { return 0 };
    // The field is among the first eight lines. The stack may be a small one.
    let mut text = [0; 512];
    let Ok(len) = rustix::io::read(&file, &mut text) else { return 0 };
    let at = text[..len].windows(FIELD.len()).position(|window| window == FIELD);
    let digits = at.and_then(|at| text[..len].get(at + FIELD.len()..)).unwrap_or_default();
    let digits = digits.iter().take_while(|digit| digit.is_ascii_digit());
    digits.fold(0_i32, |number, digit| number.wrapping_mul(10).wrapping_add(i32::from(digit - b'0')))
}

/// Makes the default action happen, with the signal's own information for the core dump and the parent: now or, if it
/// must be, when the handler returns.
fn end_process(info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: all-zero is a valid `sigaction`, and means the default.
    let default: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a valid action; the old one is not requested.
    unsafe { libc::sigaction(libc::SIGTRAP, &default, ptr::null_mut()) };
    let (pid, tid) = (rustix::process::getpid(), rustix::thread::gettid());
    let (pid, tid) = (pid.as_raw_nonzero().get(), tid.as_raw_nonzero().get());
    // A thread may send itself any code. The signal is not blocked here (SA_NODEFER), so that it ends the process
    // before the call returns. SAFETY: `info` is valid as in `on_trap`.
    unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, libc::SIGTRAP, info) };
    // It could not be sent; or this is the first process of a pid namespace, which the kernel spares what is sent
    // (`sig_task_ignored` in kernel/signal.c). It does not spare it the CPU's own trap. SAFETY: valid as in `on_trap`.
    let executed = unsafe { (*info).si_code } == TRAP_CODE;
    // SAFETY: as in `on_trap`.
    let frame = unsafe { &mut *context.cast::<TrapFrame>() };
    if !executed || !frame.trap_again() {
        // SAFETY: ends the process, by an instruction if the kernel ignores the signal.
        unsafe { libc::abort() };
    }
}

//! SIGSEGV and SIGBUS: one handler for faults of code that says where to continue after them, in front of other
//! handlers.
//!
//! The handler asks its [`Claim`] first. Foreign faults go to the action that was there before ours, with the same
//! arguments, or to the default action, which ends the process. The handler is installed once: a handler that replaces
//! it later must call it for foreign faults, or faults that were ours end the process.
//!
//! It allocates nothing, takes no lock and uses no thread-local storage. It runs with the mask of the action behind it,
//! and on the alternate stack if the thread has one.

use std::io;
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub use crate::arch::TrapFrame;
use crate::objects::{NotLoaded, stay_loaded};
pub use crate::trap::Claimed;

/// Decides about a fault of the instruction at [`TrapFrame::program_counter`]. Runs in a signal handler, possibly in
/// several threads at once: it must be async-signal-safe.
pub type Claim = fn(&mut TrapFrame) -> Claimed;

/// Why faults cannot be handled.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultHandlerError {
    /// The kernel refuses.
    #[error("the kernel refused a handler for signal {signal} with error {errno}")]
    Refused {
        /// The signal.
        signal: i32,
        /// The kernel's answer.
        errno: i32,
    },
    /// The handler, which nobody can take back, could be unloaded.
    #[error(transparent)]
    Unloadable(#[from] NotLoaded),
}

const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// The actions that were in place before ours. Written once, by the thread that installs ours; read by handlers.
static BEHIND: [OnceLock<libc::sigaction>; 2] = [const { OnceLock::new() }; 2];

/// Whether they were called, for those that are called once (`SA_RESETHAND`).
static IS_SPENT: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// The claim, as a number; zero before the first installation. Written by the installer, read by handlers.
static CLAIM: AtomicUsize = AtomicUsize::new(0);

/// Puts the handler in front of the present actions, on the first call. `claim` must be the same in each call: only one
/// part of the program owns the faults.
///
/// The library that holds this code stays loaded from then on. Callers must take the same care as with
/// [`stay_loaded`].
///
/// # Errors
///
/// [`FaultHandlerError`].
pub fn install(claim: Claim) -> Result<(), FaultHandlerError> {
    static INSTALLED: OnceLock<Result<(), FaultHandlerError>> = OnceLock::new();
    // Before others wait for this call: a constructor that does has the dynamic linker's lock.
    stay_loaded()?;
    *INSTALLED.get_or_init(|| {
        // Relaxed: the handler that reads it is installed below, by a system call.
        CLAIM.store(claim as usize, Ordering::Relaxed);
        for (signal, behind) in SIGNALS.into_iter().zip(&BEHIND) {
            let present = behind.get_or_init(|| sigaction(signal, None).unwrap_or(default_action()));
            let mut ours = *present;
            ours.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | present.sa_flags & libc::SA_NODEFER;
            sigaction(signal, Some(&ours))?;
        }
        Ok(())
    })
}

fn default_action() -> libc::sigaction {
    // SAFETY: all-zero is a valid `sigaction`, and means the default.
    unsafe { mem::zeroed() }
}

/// Sets a signal's action, or only reads it. Returns the previous action.
fn sigaction(signal: i32, new: Option<&libc::sigaction>) -> Result<libc::sigaction, FaultHandlerError> {
    let mut old = default_action();
    // SAFETY: `new` is null or a valid action, whose handler is async-signal-safe; `old` is a valid place for the
    // answer.
    let answer = unsafe { libc::sigaction(signal, new.map_or(ptr::null(), ptr::from_ref), &mut old) };
    if answer == 0 {
        return Ok(old);
    }
    Err(FaultHandlerError::Refused { signal, errno: io::Error::last_os_error().raw_os_error().unwrap_or(0) })
}

/// Handles a fault. Async-signal-safe: atomics, the claim, system calls.
extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler.
    let code = unsafe { (*info).si_code };
    // Sent signals are no faults.
    if code > 0 && claim_of(context) == Claimed::Ours {
        return;
    }
    let place = SIGNALS.iter().position(|known| *known == signal);
    let behind = place.and_then(|place| Some((BEHIND[place].get()?, &IS_SPENT[place])));
    // A handler that was to be called once, then the default action. Relaxed: nothing is published.
    let is_spent = |(action, is_spent): (&libc::sigaction, &AtomicBool)| {
        let is_once = action.sa_flags & libc::SA_RESETHAND != 0 && action.sa_sigaction != libc::SIG_IGN;
        is_once && is_spent.swap(true, Ordering::Relaxed)
    };
    let behind = behind.filter(|behind| !is_spent(*behind)).map(|(action, _)| action);
    match behind.map_or(libc::SIG_DFL, |action| action.sa_sigaction) {
        libc::SIG_IGN if code <= 0 => {}
        // The kernel does not allow ignoring a fault (`force_sig_info_to_task`).
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction faults again, or the signal is sent again: now the default action follows.
            let _ = sigaction(signal, Some(&default_action()));
            if code <= 0 {
                // SAFETY: sends a signal to this thread, which is delivered when this handler returns.
                unsafe { libc::raise(signal) };
            }
        }
        handler if behind.is_some_and(|action| action.sa_flags & libc::SA_SIGINFO != 0) => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: installed with SA_SIGINFO, so that it has this type.
            let handler = unsafe { mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: installed without SA_SIGINFO, so that it has this type.
            let handler = unsafe { mem::transmute::<usize, extern "C" fn(i32)>(handler) };
            handler(signal);
        }
    }
}

fn claim_of(context: *mut libc::c_void) -> Claimed {
    // SAFETY: the kernel passes a valid `ucontext_t`, which nobody else refers to while the handler runs.
    let frame = unsafe { &mut *context.cast::<TrapFrame>() };
    // Relaxed: stored before the handler was installed.
    let claim = CLAIM.load(Ordering::Relaxed);
    // SAFETY: not zero once the handler is installed, and only ever stored from a `Claim`.
    let claim = unsafe { mem::transmute::<usize, Claim>(claim) };
    claim(frame)
}

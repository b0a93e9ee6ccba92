//! What a wait needs of the thread that waits: its signals, and its stack.

use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, sigset_t};
use rustix::process::Resource;

use crate::arch::system_call;

/// A set of signals, as the kernel has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Set(u64);

impl Set {
    const ALL: Self = Self(u64::MAX);

    /// The C library's, of which the kernel knows the first 64 bits; nothing for null.
    ///
    /// # Safety
    ///
    /// 1. `set` is null, or a set.
    pub(crate) unsafe fn read(set: *const sigset_t) -> Option<Self> {
        // SAFETY: (1); a set is longer, and aligned to words.
        unsafe { set.cast::<u64>().as_ref() }.copied().map(Self)
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    fn signals(self) -> impl Iterator<Item = c_int> {
        (1..=64).filter(move |signal| self.0 & 1 << (signal - 1) != 0)
    }
}

/// The thread's signals while those are blocked that would do something. What is ignored stays open: it never comes,
/// and would end a wait by `EINTR` if it were blocked until then. Not undone by itself: a thread that is cancelled has
/// no use for that.
pub(crate) struct Signals {
    before: Set,
    blocked: Set,
}

fn exchange(set: Set) -> Set {
    let mut before = Set(0);
    let arguments = [
        libc::SIG_SETMASK as usize,
        (&raw const set).expose_provenance(),
        (&raw mut before).expose_provenance(),
        size_of::<Set>(),
        0,
        0,
    ];
    // SAFETY: both sets outlive the call, and are as long as it says.
    unsafe { system_call(libc::SYS_rt_sigprocmask, arguments) };
    before
}

impl Signals {
    /// Blocks them.
    pub(crate) fn block() -> Self {
        let before = exchange(Set::ALL);
        let ignored = Set::ALL.signals().filter(|&signal| is_ignored(signal));
        let ignored = Set(ignored.fold(0, |all, signal| all | 1 << (signal - 1)));
        let blocked = Set(Set::ALL.without(ignored).0 | before.0);
        exchange(blocked);
        Self { before, blocked }
    }

    /// What is blocked.
    pub(crate) const fn blocked(&self) -> Set {
        self.blocked
    }

    /// What was blocked before.
    pub(crate) const fn before(&self) -> Set {
        self.before
    }

    /// Blocks what was blocked before.
    pub(crate) fn restore(self) {
        exchange(self.before);
    }

    /// Whether a signal waits that is not in `mask`.
    pub(crate) fn is_any_pending(&self, mask: Set) -> bool {
        let mut pending = Set(0);
        let arguments = [(&raw mut pending).expose_provenance(), size_of::<Set>(), 0, 0, 0, 0];
        // SAFETY: the set outlives the call, and is as long as it says.
        unsafe { system_call(libc::SYS_rt_sigpending, arguments) };
        pending.without(mask) != Set(0)
    }
}

/// `struct sigaction` of the kernel, as x86-64 and AArch64 have it; of which only the handler counts here.
#[repr(C)]
#[derive(Default)]
struct Action {
    handler: usize,
    rest: [u64; 3],
}

fn is_ignored(signal: c_int) -> bool {
    let mut action = Action::default();
    let arguments = [signal as usize, 0, (&raw mut action).expose_provenance(), size_of::<Set>(), 0, 0];
    // SAFETY: the action outlives the call, and nothing is set.
    if unsafe { system_call(libc::SYS_rt_sigaction, arguments) } != 0 {
        return false;
    }
    let by_default = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH, libc::SIGCONT];
    action.handler == libc::SIG_IGN || action.handler == libc::SIG_DFL && by_default.contains(&signal)
}

/// An address near the top of the main thread's stack; 0 before the start. `Relaxed`: a number.
static TOP: AtomicUsize = AtomicUsize::new(0);

/// What a slice and a handler of the kernel may need.
const ROOM: usize = 512 << 10;
/// No stack is taken to be longer.
const LONGEST: usize = 8 << 20;

fn here() -> usize {
    let here = [0_u8; 1];
    std::hint::black_box(here.as_ptr()).addr()
}

/// Notes where the main thread's stack is. It is the one that starts the program.
pub(crate) fn note_stack() {
    TOP.store(here(), Ordering::Relaxed);
}

/// Whether the caller is the main thread, on its own stack and not on one for signals or of a coroutine, and has room.
pub(crate) fn on_main_stack() -> bool {
    let top = TOP.load(Ordering::Relaxed);
    if top == 0 || rustix::thread::gettid() != rustix::process::getpid() {
        return false;
    }
    let limit = rustix::process::getrlimit(Resource::Stack).current.unwrap_or(u64::MAX);
    let longest = usize::try_from(limit).unwrap_or(usize::MAX).min(LONGEST);
    // `main` may be called from somewhat above where this object was started.
    let used = (top + (64 << 10)).saturating_sub(here());
    used > 0 && used + ROOM < longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_never_comes_and_what_is_handled_waits() {
        extern "C" fn handle(_signal: c_int) {}
        // SAFETY: a handler that does nothing.
        unsafe { libc::signal(libc::SIGUSR2, handle as extern "C" fn(c_int) as usize) };
        let signals = Signals::block();
        let raise = |signal: c_int| {
            // SAFETY: blocked, so that it waits.
            assert_eq!(unsafe { libc::raise(signal) }, 0);
        };
        assert!(!signals.is_any_pending(Set(0)));
        raise(libc::SIGWINCH);
        raise(libc::SIGURG);
        assert!(!signals.is_any_pending(Set(0)), "nobody would have noticed");
        raise(libc::SIGUSR2);
        assert!(signals.is_any_pending(Set(0)));
        assert!(!signals.is_any_pending(Set(1 << (libc::SIGUSR2 - 1))), "the program blocks it");
        assert!(signals.is_any_pending(Set(0)), "it is still there");
        signals.restore();
        let signals = Signals::block();
        assert!(!signals.is_any_pending(Set(0)), "its handler has run");
        signals.restore();
    }
}

//! What a wait needs of its thread: its signals and its stack.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use libc::{c_int, sigset_t};
use palimpsest_sys::arch::thread_pointer;

use crate::arch::system_call;

/// A set of signals, in the kernel's form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub(crate) struct Set(u64);

impl Set {
    pub(crate) const ALL: Self = Self(u64::MAX);

    /// Reads a set of the C library, of which the kernel knows the first 64 bits; `None` for null.
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

/// The thread's signals while all are blocked. Not restored by itself: a cancelled thread has no use for that.
pub(crate) struct Signals {
    before: Set,
}

/// Changes the mask; `how` as for `sigprocmask`. Returns what was blocked before.
fn change(how: c_int, set: Set) -> Set {
    let mut before = Set(0);
    let arguments = [
        how as usize,
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
    /// Blocks all signals.
    pub(crate) fn block() -> Self {
        Self { before: change(libc::SIG_SETMASK, Set::ALL) }
    }

    /// Returns what was blocked before.
    pub(crate) const fn before(&self) -> Set {
        self.before
    }

    /// Unblocks what was unblocked before, and nothing else: a handler may have unblocked more for the time after it,
    /// through its `uc_sigmask`.
    pub(crate) fn restore(self) {
        change(libc::SIG_UNBLOCK, Set::ALL.without(self.before));
    }

    /// Whether a signal is pending that is not in `mask` and does something.
    pub(crate) fn is_any_pending(&self, mask: Set) -> bool {
        let Pending { all, ignored } = self.pending(mask);
        all != ignored
    }

    /// Drops ignored ones that are not in `mask`: they would never be delivered, but, having been blocked, would end a
    /// wait with `EINTR`. Returns whether others are pending. If another thread has just given one a handler, that runs
    /// here: not for callers on a stack of the object's own.
    pub(crate) fn drop_ignored(&self, mask: Set) -> bool {
        let Pending { all, ignored } = self.pending(mask);
        if ignored != Set(0) {
            // The kernel forgets them when it looks whether to handle them.
            change(libc::SIG_UNBLOCK, ignored);
            change(libc::SIG_BLOCK, ignored);
        }
        all != ignored
    }

    fn pending(&self, mask: Set) -> Pending {
        let mut pending = Set(0);
        let arguments = [(&raw mut pending).expose_provenance(), size_of::<Set>(), 0, 0, 0, 0];
        // SAFETY: the set outlives the call, and is as long as it says.
        unsafe { system_call(libc::SYS_rt_sigpending, arguments) };
        let all = pending.without(mask);
        let ignored = all.signals().filter(|&signal| is_ignored(signal));
        Pending { all, ignored: Set(ignored.fold(0, |all, signal| all | 1 << (signal - 1))) }
    }
}

/// Pending signals, and those of them that are ignored.
struct Pending {
    all: Set,
    ignored: Set,
}

/// What is tried once: 0 before that, [`Self::WORKS`] or [`Self::FAILS`]. `Relaxed`: each thread may try, and finds the
/// same.
struct Tried(AtomicU8);

impl Tried {
    const WORKS: u8 = 1;
    const FAILS: u8 = 2;

    const fn not_yet() -> Self {
        Self(AtomicU8::new(0))
    }

    fn works(&self, works: impl FnOnce() -> bool) -> bool {
        match self.0.load(Ordering::Relaxed) {
            0 => {
                let works = works();
                self.0.store(if works { Self::WORKS } else { Self::FAILS }, Ordering::Relaxed);
                works
            }
            known => known == Self::WORKS,
        }
    }
}

/// Whether the calls that take the place of a wait work here. A filter that only refuses some of them, as those of
/// containers do, is no reason not to freeze, but the program would be told of a refusal that does not concern it.
pub(crate) fn can_be_split() -> bool {
    static SPLITTING: Tried = Tried::not_yet();
    SPLITTING.works(are_answered)
}

/// Whether the kernel would write what `select` answers: a filter may refuse it, and allow that it reads.
pub(crate) fn can_be_given() -> bool {
    static GIVING: Tried = Tried::not_yet();
    GIVING.works(|| {
        let process = rustix::process::getpid().as_raw_nonzero().get() as usize;
        // SAFETY: writes nothing.
        unsafe { system_call(libc::SYS_process_vm_writev, [process, 0, 0, 0, 0, 0]) == 0 }
    })
}

/// Makes calls that wait for nothing and change nothing.
fn are_answered() -> bool {
    const NO_FILE: usize = usize::MAX;
    let (moment, mut set) = ([0_usize; 2], Set(0));
    let moment = (&raw const moment).expose_provenance();
    let len = size_of::<Set>();
    let expected = [
        (libc::SYS_ppoll, [0, 0, moment, 0, len, 0], 0),
        (libc::SYS_pselect6, [0, 0, 0, 0, moment, 0], 0),
        (libc::SYS_epoll_pwait, [NO_FILE, 0, 1, 0, 0, len], -(libc::EBADF as isize)),
        (libc::SYS_rt_sigpending, [(&raw mut set).expose_provenance(), len, 0, 0, 0, 0], 0),
    ];
    // SAFETY: the time and the set outlive the calls; no other memory and no descriptor is named.
    expected.into_iter().all(|(call, arguments, answer)| unsafe { system_call(call, arguments) } == answer)
}

/// `struct sigaction` of the kernel, as x86-64 and AArch64 have it; only the handler counts here.
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

/// The main thread, by its thread pointer; 0 before the start. `Relaxed`: a number.
static MAIN: AtomicUsize = AtomicUsize::new(0);

/// Notes which thread is the main one: that which starts the program.
pub(crate) fn note_main_thread() {
    MAIN.store(thread_pointer(), Ordering::Relaxed);
}

/// Whether the caller is the main thread, on whatever stack. Makes no system call.
pub(crate) fn is_main_thread() -> bool {
    MAIN.load(Ordering::Relaxed) == thread_pointer()
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
        assert_eq!(change(libc::SIG_BLOCK, Set(0)), Set(Set::ALL.0 & !(1 << 8 | 1 << 18)), "but SIGKILL and SIGSTOP");
        let raise = |signal: c_int| {
            // SAFETY: blocked, so that it waits.
            assert_eq!(unsafe { libc::raise(signal) }, 0);
        };
        assert!(!signals.is_any_pending(Set(0)));
        raise(libc::SIGWINCH);
        raise(libc::SIGURG);
        assert!(!signals.is_any_pending(Set(0)), "nobody would have noticed");
        // SAFETY: a handler that does nothing.
        unsafe { libc::signal(libc::SIGURG, handle as extern "C" fn(c_int) as usize) };
        assert!(signals.is_any_pending(Set(0)), "a look drops nothing, or the handler would have run");
        // SAFETY: ignored by default; what is pending and ignored goes.
        unsafe { libc::signal(libc::SIGURG, libc::SIG_DFL) };
        raise(libc::SIGURG);
        assert!(!signals.drop_ignored(Set(0)) && signals.pending(Set(0)).all == Set(0));
        raise(libc::SIGUSR2);
        assert!(signals.is_any_pending(Set(0)));
        assert!(!signals.is_any_pending(Set(1 << (libc::SIGUSR2 - 1))), "the program blocks it");
        assert!(signals.is_any_pending(Set(0)), "it is still there");
        let before = signals.before();
        signals.restore();
        let signals = Signals::block();
        assert!(!signals.is_any_pending(Set(0)), "its handler has run");
        // A handler unblocks what was unblocked before.
        let opened = Set(1 << (libc::SIGUSR2 - 1));
        change(libc::SIG_UNBLOCK, opened);
        signals.restore();
        assert_eq!(change(libc::SIG_BLOCK, Set(0)), before);
        change(libc::SIG_BLOCK, opened);
        let signals = Signals::block();
        change(libc::SIG_UNBLOCK, opened);
        signals.restore();
        assert_eq!(change(libc::SIG_BLOCK, Set(0)), before, "it stays open, as the handler wants it");
    }
}

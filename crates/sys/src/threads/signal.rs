//! The signal that calls threads, for the broadcast and for holding.
//!
//! The program owns its signals: it may reset them all (a daemon), ignore them all, or want the very one that was free.
//! A call to a thread without our handler would end the process, be lost, or run a handler of the program. So the
//! action is checked before each broadcast ([`Hook::ready`]), and another signal is taken if it is no longer ours.
//! Between that check and the signal another thread could still change it.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;

use super::own::own_process;
use crate::last_errno;

/// A handler with SA_SIGINFO.
pub(super) type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Which signals wait while the handler runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Its own.
    Own,
    /// All: another handler would write to memory that is being moved.
    All,
}

/// A handler and its signal.
pub(super) struct Hook {
    handler: Handler,
    waiting: Waiting,
    /// Zero before the first use. Children inherit it with the handler. Relaxed throughout: each use checks it again,
    /// and its users exclude each other.
    signal: AtomicI32,
}

impl Hook {
    /// Creates a hook of an async-signal-safe handler.
    pub(super) const fn new(handler: Handler, waiting: Waiting) -> Self {
        Self { handler, waiting, signal: AtomicI32::new(0) }
    }

    /// Returns the signal that has the handler at present. Takes a free one if the last one is no longer ours; `None`
    /// if none is free. Makes one system call, if nothing has changed.
    pub(super) fn ready(&self) -> Option<i32> {
        let known = self.signal.load(Ordering::Relaxed);
        if known != 0 && action_of(known).is_some_and(|action| self.is_ours(&action)) {
            return Some(known);
        }
        // From the highest down: libraries that take one usually begin at the lowest.
        let taken = (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| self.take(signal));
        self.signal.store(taken.unwrap_or(0), Ordering::Relaxed);
        taken
    }

    /// Gives `signal` the handler if it has the default action.
    fn take(&self, signal: i32) -> bool {
        let is_free = |action: &libc::sigaction| action.sa_sigaction == libc::SIG_DFL || self.is_ours(action);
        if !action_of(signal).is_some_and(|action| is_free(&action)) {
            return false;
        }
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = self.handler as usize;
        // On the alternate stack if a thread has one (its own may be tiny), and without EINTR for restartable calls.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        if self.waiting == Waiting::All {
            // Not by `sigfillset`, which leaves out the signals of the C library: a thread that is cancelled, or told
            // by `setuid`, would run on while it is held. SAFETY: a set is bits.
            unsafe { ptr::write_bytes(&raw mut action.sa_mask, 0xff, 1) };
        }
        match exchange(signal, &action) {
            Some(before) if is_free(&before) => true,
            // Another thread has taken it since the check.
            Some(before) => {
                exchange(signal, &before);
                false
            }
            None => false,
        }
    }

    fn is_ours(&self, action: &libc::sigaction) -> bool {
        action.sa_sigaction == self.handler as usize && action.sa_flags & libc::SA_SIGINFO != 0
    }
}

fn action_of(signal: i32) -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: a null new action only reads; `action` is a valid place for the answer.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), &mut action) };
    (asked == 0).then_some(action)
}

/// Sets an action. Returns the previous one.
fn exchange(signal: i32, action: &libc::sigaction) -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut before: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: the handler is async-signal-safe and of the type that SA_SIGINFO requires (`Hook::new`), or the program's
    // own earlier one.
    let set = unsafe { libc::sigaction(signal, action, &mut before) };
    (set == 0).then_some(before)
}

/// The signal's value: which broadcast calls, and the seat where the thread answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Call {
    pub(super) generation: u32,
    pub(super) seat: u32,
}

const _: () = assert!(size_of::<libc::siginfo_t>() == 128 && cfg!(target_endian = "little"));

impl Call {
    /// Calls a thread of this process.
    ///
    /// # Errors
    ///
    /// `ESRCH` if it has ended, `EAGAIN` at RLIMIT_SIGPENDING.
    pub(super) fn send(self, signal: i32, tid: i32) -> Result<(), Errno> {
        let pid = own_process();
        let mut info = [0_u64; 16];
        // `siginfo_t` for SI_QUEUE (`include/uapi/asm-generic/siginfo.h`): signo, errno, code, padding; pid, uid;
        // value. The user is nobody: no one looks, and `getuid` is not tried under a filter.
        info[0] = u64::from(signal.cast_unsigned());
        info[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
        info[2] = u64::from(pid.cast_unsigned()) | u64::from(u32::MAX) << 32;
        info[3] = u64::from(self.generation) << 32 | u64::from(self.seat);
        // SAFETY: `info` is a filled `siginfo_t`; a process may queue signals to its own threads with a negative code.
        let answer = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info.as_ptr()) };
        if answer == 0 { Ok(()) } else { Err(last_errno()) }
    }

    /// Returns the call that a handler was run for; `None` if somebody else sent the signal. Async-signal-safe.
    ///
    /// # Safety
    ///
    /// 1. `info` points to a `siginfo_t` that the kernel filled.
    pub(super) unsafe fn received(info: *const libc::siginfo_t) -> Option<Self> {
        // SAFETY: 1.
        let info = unsafe { &*info };
        if info.si_code != libc::SI_QUEUE {
            return None;
        }
        // SAFETY: SI_QUEUE has a value.
        let value = unsafe { info.si_value() }.sival_ptr.addr() as u64;
        Some(Self { generation: (value >> 32) as u32, seat: value as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    extern "C" fn ours(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}
    extern "C" fn theirs(_: i32) {}

    /// Ends the child with zero if `tell` returns true.
    fn in_child(tell: impl FnOnce() -> bool) {
        // SAFETY: the child makes system calls and atomic accesses only.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!tell())) };
        }
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn set(signal: i32, handler: usize) {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        action.sa_sigaction = handler;
        exchange(signal, &action);
    }

    #[test]
    fn a_signal_that_is_no_longer_ours_is_given_up() {
        in_child(|| {
            let hook = Hook::new(ours, Waiting::All);
            let Some(first) = hook.ready() else { return false };
            let is_kept = hook.ready() == Some(first);
            set(first, theirs as extern "C" fn(i32) as usize);
            let second = hook.ready();
            let is_theirs = action_of(first).is_some_and(|action| action.sa_sigaction == theirs as *const () as usize);
            // After a reset the highest is free again.
            set(first, libc::SIG_DFL);
            second.into_iter().for_each(|second| set(second, libc::SIG_DFL));
            let is_back = hook.ready() == Some(first);
            // The signal is ignored.
            set(first, libc::SIG_IGN);
            let other = hook.ready();
            is_kept && is_theirs && is_back && second.is_some_and(|second| second < first) && other == second
        });
    }

    #[test]
    fn without_a_free_signal_there_is_none() {
        in_child(|| {
            let hook = Hook::new(ours, Waiting::Own);
            let was_there = hook.ready().is_some();
            (libc::SIGRTMIN()..=libc::SIGRTMAX()).for_each(|signal| set(signal, libc::SIG_IGN));
            was_there && hook.ready().is_none()
        });
    }
}

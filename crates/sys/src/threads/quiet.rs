//! Threads that do not take the process's signals.

use std::io;
use std::mem;
use std::ptr;
use std::thread::{Builder, JoinHandle};

use crate::signals::IMMEDIATE;

/// Blocks the standard signals in the calling thread until it is dropped, except those that the thread's own
/// instructions cause ([`IMMEDIATE`]). Leaves real-time signals alone: `threads::broadcast` must reach every thread by
/// one.
struct Blocked {
    before: libc::sigset_t,
}

impl Blocked {
    fn standard() -> Self {
        const STANDARD: std::ops::Range<i32> = 1..32;
        // SAFETY: all-zero is a valid set.
        let mut all: libc::sigset_t = unsafe { mem::zeroed() };
        for signal in STANDARD.filter(|signal| !IMMEDIATE.contains(signal)) {
            // SAFETY: a valid set and a valid signal.
            unsafe { libc::sigaddset(&mut all, signal) };
        }
        // SAFETY: all-zero is a valid set.
        let mut before: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: valid sets. The call fails only for an unknown mode.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before) };
        Self { before }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a valid set; null asks for nothing.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, ptr::null_mut()) };
    }
}

/// Starts a thread with this name and with the standard signals blocked: signals that are sent to the process interrupt
/// the program's own threads, as if this one did not exist. Faults of the thread itself still reach their handlers.
///
/// # Errors
///
/// The operating system's, if it cannot start a thread.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // A new thread inherits its starter's mask, so it never runs with these signals unblocked.
    let _blocked = Blocked::standard();
    Builder::new().name(name.to_owned()).spawn(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(signal: i32) -> bool {
        // SAFETY: all-zero is a valid set.
        let mut mask: libc::sigset_t = unsafe { mem::zeroed() };
        // SAFETY: a valid set; nothing is changed.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask) };
        // SAFETY: a valid set and a valid signal.
        unsafe { libc::sigismember(&mask, signal) == 1 }
    }

    #[test]
    fn a_quiet_thread_blocks_signals_and_its_maker_does_not() {
        let before = blocks(libc::SIGTERM);
        let thread = spawn("quiet", || {
            assert!(blocks(libc::SIGTERM) && blocks(libc::SIGALRM));
            assert!(!blocks(libc::SIGSEGV) && !blocks(libc::SIGRTMIN() + 1));
        });
        assert_eq!(blocks(libc::SIGTERM), before);
        thread.expect("a thread").join().expect("it blocks what it should");
    }
}

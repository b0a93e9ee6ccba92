//! Children that the program does not notice: made by a bare `clone` without exit signal, so that neither a SIGCHLD
//! handler nor `waitpid(-1, …)` sees them.
//!
//! None is made if children are in another pid namespace (`unshare(CLONE_NEWPID)`): the first child would be the first
//! process of that namespace, which ends with it, and `fork` then fails with ENOMEM for ever (`pid_namespaces(7)`, "The
//! namespace init process").
//!
//! Sources: `clone(2)` (exit signal 0), `wait(2)` (`__WALL`).

use std::time::{Duration, Instant};

use rustix::fs::{CWD, readlinkat_raw};
use rustix::io::Errno;

use super::own::Blocked;
use crate::last_errno;

/// Why no such child could be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoChild {
    /// The kernel refuses.
    #[error("no child process could be made ({0}); raise RLIMIT_NPROC, or pids.max of the cgroup")]
    Refused(Errno),
    /// It would be the first process of a pid namespace, which would end with it.
    #[error("new children are in another pid namespace (unshare(CLONE_NEWPID)), which would end with this one")]
    PidNamespace,
    /// It could not give up its rights, and does nothing with them.
    #[error("a child could not give up its rights ({0}); allow it close_range and PR_SET_SECCOMP")]
    Rights(Errno),
    /// It was not at work for some milliseconds, and was killed.
    #[error("a child was not at work for some milliseconds, since the machine is busy; try again later")]
    Late,
}

/// A child that the program does not know of. It remains until it is waited for, or this process ends.
#[derive(Debug)]
#[must_use]
pub struct Child(i64);

/// Makes a child that runs `errand` on a copy of this memory and stack, with all signals blocked except the `open`
/// ones. Uses neither the heap nor a lock.
///
/// # Safety
///
/// 1. `errand` makes system calls and atomic accesses only: other threads of the parent may hold any lock in the copy.
///
/// # Errors
///
/// See [`NoChild`].
pub unsafe fn spawn(open: &[i32], errand: impl FnOnce() -> i32) -> Result<Child, NoChild> {
    if !are_near() {
        return Err(NoChild::PidNamespace);
    }
    // A handler of the program must not run in the child.
    let _blocked = Blocked::all_but(open);
    // SAFETY: without CLONE_VM the child gets its own copy of the memory and continues here, on a copy of this stack.
    // It runs the errand, which keeps to system calls (1), and ends.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        let status = errand();
        loop {
            // SAFETY: ends the child; nothing of it is used afterwards.
            unsafe { libc::syscall(libc::SYS_exit_group, status) };
        }
    }
    if child < 0 { Err(NoChild::Refused(last_errno())) } else { Ok(Child(child)) }
}

impl Child {
    /// Waits for the child's end. Returns its wait status.
    ///
    /// # Errors
    ///
    /// The kernel's: somebody else has waited for it.
    pub fn wait(self) -> Result<i32, Errno> {
        let mut status = 0_i32;
        loop {
            // SAFETY: `status` outlives the call, and the kernel writes no more than an int to it.
            let waited = unsafe { libc::syscall(libc::SYS_wait4, self.0, &raw mut status, libc::__WALL, 0_usize) };
            if waited >= 0 {
                return Ok(status);
            }
            match last_errno() {
                Errno::INTR => {}
                errno => return Err(errno),
            }
        }
    }
}

/// Forks `count` children that end at once. Returns the shortest time that this process spent in the call.
///
/// # Errors
///
/// See [`NoChild`].
pub fn shortest_fork(count: usize) -> Result<Duration, NoChild> {
    let mut shortest = Duration::MAX;
    for _ in 0..count {
        let started = Instant::now();
        // SAFETY: 1. it does nothing.
        let child = unsafe { spawn(&[], || 0) }?;
        shortest = shortest.min(started.elapsed());
        // It has ended, even if another thread has waited for it.
        let _ = child.wait();
    }
    Ok(shortest)
}

/// Returns whether a child would be in this process's pid namespace.
pub(crate) fn are_near() -> bool {
    let (mut own, mut childrens) = ([0_u8; 64], [0_u8; 64]);
    let own_len = readlinkat_raw(CWD, c"/proc/thread-self/ns/pid", &mut own[..]);
    match (own_len, readlinkat_raw(CWD, c"/proc/thread-self/ns/pid_for_children", &mut childrens[..])) {
        (Ok(own_len), Ok(len)) => own.get(..own_len) == childrens.get(..len),
        // Kernels without pid namespaces, and processes without /proc.
        (Err(_), Err(_)) => true,
        // The namespace of the children has no process yet.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_children_leave_no_trace() {
        assert!(are_near());
        assert!(shortest_fork(3).expect("children can be made") < Duration::from_secs(600));
        // SAFETY: 1. gives a number.
        let child = unsafe { spawn(&[], || 7) }.expect("children can be made");
        assert_eq!(child.wait().map(|status| libc::WEXITSTATUS(status)), Ok(7));
    }
}

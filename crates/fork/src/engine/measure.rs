//! How long a fork takes.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::signals::Blocked;

/// Forks `count` children that end at once, and gives the shortest time that the parent spent in the call. The children have no exit signal, so that neither
/// a SIGCHLD handler nor `waitpid(-1, …)` sees them.
pub(crate) fn shortest_fork(count: usize) -> Result<Duration, Errno> {
    let mut shortest = Duration::MAX;
    for _ in 0..count {
        shortest = shortest.min(one_fork()?);
    }
    Ok(shortest)
}

fn one_fork() -> Result<Duration, Errno> {
    // A handler of the program must not run in the child.
    let _blocked = Blocked::all();
    let started = Instant::now();
    // SAFETY: without CLONE_VM the child gets its own copy of the memory and goes on at this very place, on a copy of this stack. It makes one
    // system call, which ends it.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        loop {
            // SAFETY: ends the child; nothing of it is used afterwards.
            unsafe { libc::syscall(libc::SYS_exit_group, 0) };
        }
    }
    let taken = started.elapsed();
    if child < 0 {
        return Err(last_errno());
    }
    loop {
        // SAFETY: no status is asked for; the call touches no memory.
        let waited = unsafe { libc::syscall(libc::SYS_wait4, child, 0_usize, libc::__WALL, 0_usize) };
        if waited >= 0 || last_errno() != Errno::INTR {
            return Ok(taken);
        }
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_children_leave_no_trace() {
        assert!(shortest_fork(3).expect("children can be made") < Duration::from_secs(60));
        // SAFETY: no status is asked for.
        let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
        assert_eq!((waited, last_errno()), (-1, Errno::CHILD));
    }
}

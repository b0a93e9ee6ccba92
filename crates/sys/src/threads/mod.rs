//! Other threads of this process: lists them, makes them drop what they fetched, and holds them still.

pub(crate) mod broadcast;
pub mod child;
pub(crate) mod core_sync;
mod cpu;
pub mod deputy;
mod futex;
pub mod hold;
pub(crate) mod list;
pub mod own;
pub mod quiet;
pub mod rseq;
mod signal;
pub mod stack;
pub(crate) mod sync_error;
pub(crate) mod task;
mod timeslice;
pub(crate) mod tracer;

pub use cpu::{current_cpu, possible_cpus};

/// Takes a lock for tests that call or hold every thread of this program: in a broadcast, a held thread does not
/// answer.
#[cfg(test)]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `scenario` as the first process of a pid namespace, with the `/proc` of the namespace outside and a single
/// thread. Returns its wait status, of 256 if it returned false, and a signal's number times 256 if that ended it;
/// `None`, having said why, if this user may make no namespace.
///
/// `scenario` may make system calls, start threads and allocate.
#[cfg(test)]
pub(crate) fn in_pid_namespace(scenario: impl FnOnce() -> bool) -> Option<i32> {
    /// The status of no scenario.
    const NOT_ALLOWED: i32 = 77;
    /// Seconds after which a hanging scenario is ended; nothing else depends on it.
    const PATIENCE_SECONDS: u32 = 600;
    let end = |status| {
        // SAFETY: ends the process, a child of the test.
        unsafe { libc::_exit(status) }
    };
    let wait = |child| {
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status
    };
    // SAFETY: the child makes system calls and ends.
    let outside = unsafe { libc::fork() };
    if outside == 0 {
        // SAFETY: takes a number. If the scenario hangs, this process ends, and the scenario with it.
        unsafe { libc::alarm(PATIENCE_SECONDS) };
        // SAFETY: takes a number; concerns children that are made later.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            end(NOT_ALLOWED);
        }
        // SAFETY: the child has one thread, so that it may do what its parent, also a child, may.
        let inside = unsafe { libc::fork() };
        if inside == 0 {
            // SAFETY: takes numbers.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            end(i32::from(!scenario()));
        }
        let status = wait(inside);
        end(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { libc::WTERMSIG(status) });
    }
    let status = wait(outside);
    if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == NOT_ALLOWED {
        println!("skipped: this user may not unshare pid namespaces");
        return None;
    }
    Some(status)
}

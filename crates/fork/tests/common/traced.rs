//! Follows a child from one of its system calls to the next.

use super::{skip, wait};

pub(crate) fn ptrace(request: libc::c_uint, pid: i32, data: usize) -> bool {
    // SAFETY: touches no memory of this process.
    unsafe { libc::ptrace(request, pid, std::ptr::null_mut::<u8>(), data) != -1 }
}

/// Waits for the next stop of a traced child. Returns its signal; `None` for a system call.
pub(crate) fn next_stop(child: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) }, child);
    assert!(libc::WIFSTOPPED(status), "it ends by itself: {status:#x}");
    (libc::WSTOPSIG(status) != libc::SIGTRAP | 0x80).then_some(libc::WSTOPSIG(status))
}

/// Whether a stopped child is in this system call.
pub(crate) fn is_in(child: i32, call: libc::c_long) -> bool {
    let told = std::fs::read_to_string(format!("/proc/{child}/syscall")).unwrap_or_default();
    told.split(' ').next() == Some(&call.to_string())
}

/// Ends the scenario if no child can be traced, or asked what it does.
pub(crate) fn needs_ptrace() {
    // SAFETY: one thread.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_traced = ptrace(libc::PTRACE_TRACEME, 0, 0);
        // SAFETY: stops the child for its tracer, if it has one.
        let _ = is_traced && unsafe { libc::raise(libc::SIGSTOP) } == 0;
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) }, child);
    if !libc::WIFSTOPPED(status) {
        skip("a child cannot be traced here");
    }
    let is_told = std::fs::read_to_string(format!("/proc/{child}/syscall")).is_ok();
    // SAFETY: a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(wait(child), 1000 + libc::SIGKILL);
    if !is_told {
        skip("the kernel does not tell of calls (/proc/PID/syscall)");
    }
}

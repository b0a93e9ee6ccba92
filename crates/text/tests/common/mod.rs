//! Small programs for tests.

#![allow(dead_code, reason = "each test file uses its own part")]

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod isa;

pub(crate) use isa::*;

use palimpsest_text::{Packs, Program};

/// Calls a program made by [`identity`].
pub(crate) fn call(program: &Program) -> u64 {
    // SAFETY: 1. the caller made it by `identity`; 2. it is borrowed for the call.
    let function = unsafe { program.function::<extern "C" fn() -> u64>() };
    function()
}

/// Reclaims until nothing waits for children. These may be another test's, or try a system call under a seccomp filter,
/// and end by themselves.
pub(crate) fn reclaim_after_children(packs: &Packs) {
    while packs.reclaim().unwrap().waiting_for_children > 0 {
        std::thread::yield_now();
    }
}

/// Takes a lock for tests that count what is reclaimed, and for all tests beside them that fork or open packs: a child
/// of another test would hold this one's programs. (Under a seccomp filter, opening packs tries calls in a child.)
pub(crate) fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `child` in a forked process. Returns its status, as `waitpid` does.
pub(crate) fn fork_and_wait(child: impl FnOnce() -> i32) -> i32 {
    let pid = fork(child);
    wait(pid)
}

/// Forks; the child leaves with `child`'s result as exit code.
pub(crate) fn fork(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs only `child` and leaves by `_exit`; glibc keeps its allocator usable in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(101);
        // SAFETY: ends the child without the harness's exit handlers.
        unsafe { libc::_exit(code) };
    }
    pid
}

/// Waits for a child.
pub(crate) fn wait(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(waited, pid);
    status
}

/// Returns the signal that ended a child, if one did.
pub(crate) fn killed_by(status: i32) -> Option<i32> {
    libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
}

/// Returns the exit code of a child, if it exited.
pub(crate) fn exit_code(status: i32) -> Option<i32> {
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

/// Asserts that no mapping of the process is writable and executable.
pub(crate) fn assert_never_writable_and_executable() {
    let maps = palimpsest_sys::pages::maps::Maps::read().unwrap();
    let bad: Vec<_> = maps.writable_and_executable().collect();
    assert!(bad.is_empty(), "writable and executable: {bad:?}");
}

/// A generator of pseudo-random numbers without a seed from outside: failures repeat.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

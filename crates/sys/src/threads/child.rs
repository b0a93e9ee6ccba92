//! Children that the program does not notice: made by a bare `clone` without exit signal, so that neither a SIGCHLD
//! handler nor `waitpid(-1, …)` sees them.
//!
//! None is made if children are in another pid namespace (`unshare(CLONE_NEWPID)`): the first child would be the first
//! process of that namespace, which ends with it, and `fork` then fails with ENOMEM for ever (`pid_namespaces(7)`, "The
//! namespace init process"). `/proc` tells, and without it a thread that cannot be started.
//!
//! Sources: `clone(2)` (exit signal 0, CLONE_THREAD), `wait(2)` (`__WALL`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, readlinkat_raw};
use rustix::io::Errno;

use super::own::Blocked;
use super::stack::Shown;
use crate::arch::system_call;
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
    let _shown = Shown::begin().map_err(NoChild::Refused)?;
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
        (Err(_), Err(_)) => readlinkat_raw(CWD, c"/proc/thread-self", &mut own[..]).is_ok() || can_start_threads(),
        // The namespace of the children has no process yet.
        _ => false,
    }
}

/// The stack of a child that shares this memory. Zeroed memory is a valid one.
#[repr(C, align(64))]
pub(super) struct Stack<const SIZE: usize>(UnsafeCell<[MaybeUninit<u8>; SIZE]>);

// SAFETY: only the child uses the bytes, as its stack.
unsafe impl<const SIZE: usize> Sync for Stack<SIZE> {}

impl<const SIZE: usize> Stack<SIZE> {
    pub(super) const fn new() -> Self {
        Self(UnsafeCell::new([const { MaybeUninit::uninit() }; SIZE]))
    }

    /// Returns the address behind it, where the child begins.
    pub(super) fn top(&self) -> *mut c_void {
        #[cfg(test)]
        tests::unmark(self.0.get().cast(), SIZE);
        self.0.get().wrapping_add(1).cast()
    }
}

/// Lets this process, which shares its parent's memory, dump no core if a filter kills it: that would be the program's
/// memory. A limit of 1 holds for handlers of cores, too (`do_coredump` in `fs/coredump.c`), and it is this process's
/// own. Refused where the limit is 0 and may not be raised: then only files are not written. Does not use the C
/// library.
pub(super) fn dump_no_core() {
    let no_core = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
    let limit = [0, libc::RLIMIT_CORE as usize, (&raw const no_core).addr(), 0];
    // SAFETY: the kernel reads the limit, which outlives the call.
    unsafe { system_call(libc::SYS_prlimit64, limit) };
}

/// Turns the kernel's answer to a bare system call into a result.
pub(super) fn answered(answer: isize) -> Result<isize, Errno> {
    match i32::try_from(answer) {
        Ok(errno @ -4095..=-1) => Err(Errno::from_raw_os_error(-errno)),
        _ => Ok(answer),
    }
}

/// Bytes of a stack for [`nothing`]. All signals that can be blocked are.
const STACK: usize = 4096;

/// A stack, and the word that the kernel clears when the thread on it has ended.
#[repr(C, align(16))]
struct Bare {
    stack: [MaybeUninit<u8>; STACK],
    is_there: AtomicU32,
}

/// Returns whether the kernel starts a thread of this process, which ends at once. It does not if children are in
/// another pid namespace (`clone(2)`, "EINVAL"), so that this tells without `/proc`. Uses neither the heap nor a lock;
/// the thread is none of the C library's.
fn can_start_threads() -> bool {
    let mut bare = Bare { stack: [MaybeUninit::uninit(); STACK], is_there: AtomicU32::new(1) };
    let top = bare.stack.as_mut_ptr().wrapping_add(STACK).cast::<c_void>();
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_CHILD_CLEARTID;
    // A handler of the program must not run in the thread.
    let _blocked = Blocked::all();
    let none = ptr::null_mut::<c_void>();
    // SAFETY: the thread runs `nothing` on a stack that nobody else uses. Stack and word outlive it: below, this waits
    // until the kernel has cleared the word, after the thread's last instruction (`mm_release` in `kernel/fork.c`).
    let tid = unsafe { libc::clone(nothing, top, flags, none, none, none, bare.is_there.as_ptr()) };
    if tid < 0 {
        return false;
    }
    // Acquire, partner: the kernel's store. Forbids that the stack is used again while the thread is on it.
    while bare.is_there.load(Ordering::Acquire) != 0 {
        // The kernel wakes without FUTEX_PRIVATE_FLAG. SAFETY: it reads the word, which outlives the call; there is no
        // time limit.
        unsafe { libc::syscall(libc::SYS_futex, bare.is_there.as_ptr(), libc::FUTEX_WAIT, 1_usize, 0_usize) };
    }
    true
}

/// What the thread does: it uses nothing of the control block that it shares with its maker.
extern "C" fn nothing(_: *mut c_void) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::in_pid_namespace;

    /// Clears what AddressSanitizer, if it is there and can be found, has marked for the frames in which the last child
    /// on this stack has ended: the next one has others.
    pub(super) fn unmark(stack: *const c_void, len: usize) {
        let Some(unmark) = crate::global_symbol(c"__asan_unpoison_memory_region") else { return };
        // SAFETY: `void __asan_unpoison_memory_region(void const volatile *, size_t)`.
        let unmark: extern "C" fn(*const c_void, usize) = unsafe { std::mem::transmute(unmark) };
        unmark(stack, len);
    }

    #[test]
    fn the_children_leave_no_trace() {
        assert!(are_near());
        assert!(shortest_fork(3).expect("children can be made") < Duration::from_secs(600));
        // SAFETY: 1. gives a number.
        let child = unsafe { spawn(&[], || 7) }.expect("children can be made");
        assert_eq!(child.wait().map(|status| libc::WEXITSTATUS(status)), Ok(7));
    }

    /// Makes this process one without `/proc`, for good.
    fn leave_proc() {
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::chroot(c"/dev".as_ptr()) }, 0);
        assert_eq!(readlinkat_raw(CWD, c"/proc/self", &mut [0_u8; 64][..]).map(drop), Err(Errno::NOENT));
    }

    #[test]
    fn without_proc_the_children_of_a_namespace_are_near() {
        let status = in_pid_namespace(|| {
            leave_proc();
            // SAFETY: 1. gives a number.
            let child = unsafe { spawn(&[], || 7) };
            child.is_ok_and(|child| child.wait().map(|status| libc::WEXITSTATUS(status)) == Ok(7))
        });
        assert!(matches!(status, None | Some(0)), "{status:?}");
    }

    /// Such a child would be the first process of the namespace, which would end with it.
    #[test]
    fn without_proc_the_children_of_another_namespace_are_far() {
        let status = in_pid_namespace(|| {
            leave_proc();
            // SAFETY: takes a number; concerns children that are made later.
            let is_outside = unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0;
            // SAFETY: 1. gives a number.
            let child = unsafe { spawn(&[], || 7) };
            let is_refused = matches!(child, Err(NoChild::PidNamespace));
            // SAFETY: the child ends at once.
            let own = unsafe { libc::fork() };
            if own == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(0) };
            }
            is_outside && is_refused && own > 0
        });
        assert!(matches!(status, None | Some(0)), "{status:?}");
    }
}

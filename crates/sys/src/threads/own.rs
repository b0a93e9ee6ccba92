//! The calling thread: its identity, and its signal mask.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use rustix::io::Errno;

use crate::arch::system_call;
use crate::last_errno;
use crate::signals::IMMEDIATE;

/// Returns the calling thread's id.
pub fn own_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Returns this process's id.
pub(crate) fn own_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Returns whether no thread of this process has this id: it has ended, or there never was one.
pub fn is_gone(tid: i32) -> bool {
    let pid = own_process();
    // SAFETY: signal 0 reaches nobody; the call only asks.
    let answer = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, 0) };
    answer != 0 && last_errno() == Errno::SRCH
}

/// Returns an address in the C library's control block for this thread (glibc: `struct pthread`). It is at the same
/// distance from the [thread pointer](crate::arch::thread_pointer) in all threads: there, or just below.
#[inline]
pub fn control_block() -> usize {
    // SAFETY: only returns the calling thread's identity.
    unsafe { libc::pthread_self() as usize }
}

/// Bytes of a thread's name, with the zero at its end (`TASK_COMM_LEN`, `include/linux/sched.h`).
pub const NAME: usize = 16;

/// Returns the calling thread's name, followed by zeros. Allocates nothing.
pub fn own_name() -> [u8; NAME] {
    let mut name = [0; NAME];
    // SAFETY: `prctl(2)` writes as many bytes, and there is room for them.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    name
}

/// Returns the calling thread's real user and group.
pub fn own_owner() -> (u32, u32) {
    (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw())
}

/// Returns how often the calling thread has given up its processor or lost it, by its wish or not (`getrusage(2)`);
/// `None` if the kernel does not tell. Leaves the thread its slice, unlike a look at its CPU time
/// (`task_cputime_adjusted`, kernel/sched/cputime.c).
#[inline]
pub fn context_switches() -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: there is room for the answer.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: the kernel has filled it.
    let usage = unsafe { usage.assume_init() };
    Some(usage.ru_nvcsw.cast_unsigned().wrapping_add(usage.ru_nivcsw.cast_unsigned()))
}

/// Blocks signals of this thread while it lives, also those that the C library keeps for itself.
#[derive(Debug)]
pub struct Blocked {
    before: u64,
    /// A mask belongs to one thread.
    not_send: PhantomData<*mut ()>,
}

impl Blocked {
    /// Blocks all signals except SIGKILL and SIGSTOP, which cannot be blocked: no handler runs, for example while
    /// memory is moved, when its writes would be lost.
    pub fn all() -> Self {
        Self { before: exchange(libc::SIG_SETMASK, u64::MAX), not_send: PhantomData }
    }

    /// Blocks all signals but those that an instruction of this thread's may cause, which stay as they are.
    pub fn all_but_faults() -> Self {
        const FAULTS: u64 = bits(&IMMEDIATE);
        Self { before: exchange(libc::SIG_BLOCK, !FAULTS), not_send: PhantomData }
    }

    /// Blocks all signals except `open`, which stay as they are.
    pub fn all_but(open: &[i32]) -> Self {
        let blocked = Self::all();
        let open = bits(open) & !blocked.before;
        if open != 0 {
            exchange(libc::SIG_SETMASK, !open);
        }
        blocked
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        exchange(libc::SIG_SETMASK, self.before);
    }
}

/// Keeps this thread from being cancelled (`pthread_setcancelstate(3)`) while it lives.
#[derive(Debug)]
pub struct Uncancelled {
    before: i32,
    /// The state is that of one thread.
    not_send: PhantomData<*mut ()>,
}

// The crate `libc` does not have it. It may unwind: a thread that is cancelled at once (`PTHREAD_CANCEL_ASYNCHRONOUS`)
// ends where it says that it can be.
unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

impl Uncancelled {
    /// Begins. Async-signal-safe, and leaves `errno` alone.
    pub fn begin() -> Self {
        /// `PTHREAD_CANCEL_DISABLE`.
        const KEPT: i32 = 1;
        let mut before = 0;
        // SAFETY: of this thread alone; the state before goes to a local.
        unsafe { pthread_setcancelstate(KEPT, &raw mut before) };
        Self { before, not_send: PhantomData }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: as in `begin`; nobody asks for the state.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}

/// Returns a set of signals in the kernel's form.
const fn bits(signals: &[i32]) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < signals.len() {
        bits |= 1 << (signals[at] - 1);
        at += 1;
    }
    bits
}

/// Changes the mask, bypassing the C library; `how` as for `sigprocmask`. Returns the old one.
fn exchange(how: i32, mask: u64) -> u64 {
    let mut before = 0_u64;
    let sets = [(&raw const mask).expose_provenance(), (&raw mut before).expose_provenance()];
    // SAFETY: both sets are 8 bytes long, as the last argument says, and outlive the call.
    unsafe { system_call(libc::SYS_rt_sigprocmask, [how as usize, sets[0], sets[1], size_of::<u64>()]) };
    before
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::status::Status;

    #[test]
    fn a_thread_that_sleeps_gives_up_its_processor() {
        let before = context_switches().expect("told");
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(context_switches().expect("told") > before);
    }

    #[test]
    fn a_thread_knows_its_name_and_whose_it_is() {
        let named = std::thread::Builder::new().name("fifteen letters".into());
        let name = named.spawn(own_name).expect("a thread").join().expect("it ends");
        assert_eq!(&name, b"fifteen letters\0");
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("there is /proc");
        let real = |what: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(what)).expect("the kernel tells it");
            line.split_whitespace().next().and_then(|id| id.parse().ok()).expect("a number")
        };
        assert_eq!(own_owner(), (real("Uid:"), real("Gid:")));
    }

    #[test]
    fn the_mask_comes_back() {
        let mask = || Status::of_this_thread().expect("/proc is mounted").blocked.expect("shown").0;
        let before = mask();
        {
            let _blocked = Blocked::all();
            // SIGKILL and SIGSTOP cannot be blocked.
            assert_eq!(mask().count_ones(), 62);
            // What was blocked stays so.
            let _still = Blocked::all_but(&[libc::SIGSYS, libc::SIGTRAP]);
            assert_eq!(mask().count_ones(), 62);
        }
        assert_eq!(mask(), before);
        {
            let _open = Blocked::all_but(&[libc::SIGSYS, libc::SIGTRAP]);
            assert_eq!(mask().count_ones(), 60);
        }
        assert_eq!(mask(), before);
        {
            let _faults = Blocked::all_but_faults();
            assert_eq!(mask(), before | !(bits(&[libc::SIGKILL, libc::SIGSTOP]) | bits(&IMMEDIATE)));
        }
        assert_eq!(mask(), before);
    }
}

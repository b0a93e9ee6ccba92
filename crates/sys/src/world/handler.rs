//! The signal that holds a thread, and its handler.

use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use rustix::io::Errno;

use super::Table;

/// The table, null before the first use.
pub(super) static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// The signal that has the handler, zero before the first use. Children inherit handlers.
pub(super) static SIGNAL: AtomicI32 = AtomicI32::new(0);

const _: () = assert!(size_of::<libc::siginfo_t>() == 128 && cfg!(target_endian = "little"));

/// Asks a thread to take the seat `seat`.
pub(super) fn send(signal: i32, tid: i32, generation: u32, seat: usize) -> Result<(), Errno> {
    let value = u64::from(generation) << 32 | seat as u64;
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let mut info = [0_u64; 16];
    // `siginfo_t` for SI_QUEUE (`include/uapi/asm-generic/siginfo.h`): signo, errno, code, padding; pid, uid; value.
    info[0] = u64::from(signal.cast_unsigned());
    info[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
    info[2] = u64::from(pid.cast_unsigned()) | u64::from(rustix::process::getuid().as_raw()) << 32;
    info[3] = value;
    // SAFETY: `info` is as long as a `siginfo_t` and filled; a process may queue signals to its own threads with a negative code.
    let answer = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, info.as_ptr()) };
    if answer == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Answers, and waits until the generation is over. Async-signal-safe: atomics and one system call; `errno` is put back.
extern "C" fn on_signal(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // Acquire, partner: the Release store in `prepare`.
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or a table that is never given back.
    let Some(table) = (unsafe { table.as_ref() }) else { return };
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler.
    let info = unsafe { &*info };
    if info.si_code != libc::SI_QUEUE {
        return;
    }
    // SAFETY: SI_QUEUE has a value.
    let value = unsafe { info.si_value() }.sival_ptr.addr() as u64;
    let generation = (value >> 32) as u32;
    let Some(seat) = table.seats.get((value & u64::from(u32::MAX)) as usize) else { return };
    // Acquire, partner: the Release stores in `stop_others` and `Stopped::drop`.
    if generation == 0 || table.holding.load(Ordering::Acquire) != generation {
        return;
    }
    // SAFETY: the C library gives a valid pointer to the thread's own variable.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved = unsafe { *errno };
    let here = MaybeUninit::<u8>::uninit();
    seat.stack.store(here.as_ptr().addr(), Ordering::Relaxed);
    // SAFETY: only tells the calling thread's identity.
    seat.thread_pointer.store(unsafe { libc::pthread_self() } as usize, Ordering::Relaxed);
    // Release, partner: the Acquire load in `await_rest`.
    seat.answer.store(generation, Ordering::Release);
    // Acquire, partner: the Release store in `Stopped::drop`.
    while table.holding.load(Ordering::Acquire) == generation {
        let word = table.holding.as_ptr();
        let wait = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives for ever; no time limit is given.
        unsafe { libc::syscall(libc::SYS_futex, word, wait, generation, ptr::null::<libc::timespec>()) };
    }
    // SAFETY: as above.
    unsafe { *errno = saved };
}

/// The highest real-time signal that has the default action; libraries that take one usually begin at the lowest.
pub(super) fn free_signal() -> Option<i32> {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut old: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: a null new action only asks; `old` is a valid place for the answer.
        let asked = unsafe { libc::sigaction(signal, ptr::null(), &mut old) };
        asked == 0 && old.sa_sigaction == libc::SIG_DFL
    })
}

pub(super) fn set_handler(signal: i32) -> Result<(), Errno> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_signal as extern "C" fn(_, _, _) as usize;
    // On the alternate stack where a thread has one (its own may be tiny), and without EINTR for restartable calls.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a valid place for a set. All signals are blocked in the handler: another one's would write to memory that is being moved.
    unsafe { libc::sigfillset(&mut action.sa_mask) };
    // SAFETY: the handler is async-signal-safe (see there) and has the type that SA_SIGINFO asks for.
    match unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(Errno::INVAL),
    }
}

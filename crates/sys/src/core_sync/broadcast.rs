//! The fallback for kernels and sandboxes without `membarrier`: one signal to every thread.
//!
//! # Protocol
//!
//! A broadcast is a table of [`Seat`]s, one for each thread that it has signalled. The signal's value names the broadcast's
//! generation and the seat. The handler serialises its core, then answers at the seat. A broadcast ends when every seat is
//! *settled*: it is answered, or its thread is gone, or its thread is stopped or in an uninterruptible sleep with the signal pending and
//! unblocked — it cannot execute an instruction of user mode before it has taken the signal. (An interruptible sleep is not
//! enough: `ppoll` and its like sleep with a mask of their own, and may return without taking the signal.)
//!
//! Threads that are started meanwhile are found by listing again until a listing has no new thread. A thread that a
//! seated thread starts after it was settled has run nothing that was fetched earlier. A listing can also miss a thread that lives, when another
//! one ends (the kernel goes on by number, `first_tid` in `fs/proc/base.c`), so that the last one must name as many as the process has and
//! nobody that is gone.
//!
//! Tables are never freed but reused. A handler that runs late, since its seat was settled without it or the broadcast gave up, finds
//! memory of the right type. It answers by exchanging the seat's word of its own generation, which is there no more. One broadcast at a time ([`Table::broadcasts`]).
//!
//! A forked child inherits the handler and gets a table of its own, lock included: a thread that it does not have may hold
//! its parent's for ever.

use std::fs;
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{SetupError, SyncError};
use crate::arch::serialize_this_core;
use crate::fork::ForkDetector;
use crate::proc::status::Status;

/// After how long a thread that has not answered is looked at more closely.
const GRACE: Duration = Duration::from_millis(5);

/// How long a thread that sleeps may block the signal, as `pthread_create` does for a moment. One that runs may wait for a CPU in a
/// short blocked section, such as the trap handler, for as long as any other.
const PATIENCE: Duration = Duration::from_millis(200);

/// After how long a broadcast gives up.
const DEADLINE: Duration = Duration::from_secs(2);

/// Threads that one broadcast can reach.
const SEATS: usize = 1 << 14;

/// One thread's part in the current broadcast.
#[derive(Default)]
struct Seat {
    tid: AtomicI32,
    /// Twice the generation of the broadcast that uses the seat, plus one when its thread has answered.
    answer: AtomicU64,
}

/// One process's broadcasts. Allocated once, never freed, since the handler may be late.
struct Table {
    /// Tells a forked child that the table is its parent's.
    process: ForkDetector,
    /// Keeps broadcasts apart.
    broadcasts: Mutex<()>,
    generation: AtomicU32,
    seats: Box<[Seat]>,
}

/// The table, null before the first installation.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// The signal that has the handler, zero before the first installation. Children inherit handlers.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Chooses a signal and installs the handler, once for the process and its children.
pub(super) fn install() -> Result<(), SetupError> {
    list_threads().map_err(SetupError::NoThreadList)?;
    let table = own_table();
    let _one_at_a_time = table.broadcasts.lock().unwrap_or_else(PoisonError::into_inner);
    // Relaxed, here and below: written under the lock, or by a process before it was forked.
    if SIGNAL.load(Ordering::Relaxed) != 0 {
        return Ok(());
    }
    let signal = free_signal().ok_or(SetupError::NoFreeSignal)?;
    set_handler(signal).map_err(|source| SetupError::Handler { signal, source })?;
    SIGNAL.store(signal, Ordering::Relaxed);
    Ok(())
}

/// The table of this process, made now if there is none.
fn own_table() -> &'static Table {
    // Acquire, partner: the Release exchange below.
    let known = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or a table that is never freed.
    if let Some(table) = unsafe { known.as_ref() }
        && table.process.is_same_process()
    {
        return table;
    }
    let table = Box::into_raw(Box::new(Table {
        process: ForkDetector::new(),
        broadcasts: Mutex::new(()),
        generation: AtomicU32::new(0),
        seats: (0..SEATS).map(|_| Seat::default()).collect(),
    }));
    // Release, partner: the Acquire loads here and in `on_signal`. Forbids a handler that sees the table without its seats.
    // Acquire on failure: the winner's table is read.
    match TABLE.compare_exchange(known, table, Ordering::Release, Ordering::Acquire) {
        // SAFETY: never freed from here on.
        Ok(_) => unsafe { &*table },
        Err(winner) => {
            // SAFETY: made above, and nobody has seen it.
            drop(unsafe { Box::from_raw(table) });
            // SAFETY: another thread's table, never freed.
            unsafe { &*winner }
        }
    }
}

/// The highest real-time signal that has the default action; libraries that take one usually begin at the lowest.
fn free_signal() -> Option<i32> {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut old: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: a null new action only asks; `old` is a valid place for the answer.
        let asked = unsafe { libc::sigaction(signal, ptr::null(), &mut old) };
        asked == 0 && old.sa_sigaction == libc::SIG_DFL
    })
}

fn set_handler(signal: i32) -> io::Result<()> {
    // SAFETY: all-zero is a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_signal as extern "C" fn(_, _, _) as usize;
    // On the alternate stack where a thread has one (its own may be tiny), and without EINTR for restartable calls.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the handler is async-signal-safe (see there) and has the type that SA_SIGINFO asks for.
    match unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Serialises the core of the thread that it interrupts, and says so. Async-signal-safe: instructions and lock-free
/// atomics only; `errno` is untouched.
extern "C" fn on_signal(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    serialize_this_core();
    // SeqCst, partner: the fence in `sync`. Makes this thread's accesses before the signal visible to the broadcaster, as
    // membarrier would.
    fence(Ordering::SeqCst);
    // Acquire, partner: the Release exchange in `own_table`.
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or a table that is never freed.
    let Some(table) = (unsafe { table.as_ref() }) else { return };
    // SAFETY: the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler, with a value for SI_QUEUE.
    let (code, value) = unsafe { queued_value(info) };
    if code != libc::SI_QUEUE {
        return;
    }
    let Some(seat) = table.seats.get((value & u64::from(u32::MAX)) as usize) else { return };
    let asked = (value >> 32) * 2;
    // Release, partner: the Acquire load in `Seat::has_answered`. Forbids that the broadcaster sees the answer but not what this
    // thread did before. Relaxed on failure: the broadcast is over.
    let _ = seat.answer.compare_exchange(asked, asked + 1, Ordering::Release, Ordering::Relaxed);
}

/// The code and the 64-bit value of a queued signal.
///
/// # Safety
///
/// 1. `info` points to a `siginfo_t` that the kernel filled.
unsafe fn queued_value(info: *const libc::siginfo_t) -> (i32, u64) {
    // SAFETY: 1.
    let info = unsafe { &*info };
    // SAFETY: the value is read as plain bits; for other codes than SI_QUEUE it is meaningless, not invalid.
    let value = unsafe { info.si_value() };
    (info.si_code, value.sival_ptr.addr() as u64)
}

/// Signals every thread and waits until each has serialised its core.
pub(super) fn sync() -> Result<(), SyncError> {
    // A child that was forked after `install` has the handler, and no table yet.
    let table = own_table();
    let _one_at_a_time = table.broadcasts.lock().unwrap_or_else(PoisonError::into_inner);
    let signal = SIGNAL.load(Ordering::Relaxed);
    // SeqCst, partner: the fence in `on_signal`. Makes the caller's stores visible to every thread that has answered.
    fence(Ordering::SeqCst);
    // Relaxed: under the lock.
    let generation = table.generation.load(Ordering::Relaxed).wrapping_add(1);
    table.generation.store(generation, Ordering::Relaxed);

    let mut broadcast = Broadcast { table, generation, signal, seated: 0 };
    loop {
        match broadcast.seat_new_threads()? {
            Listing::New => broadcast.wait(Instant::now())?,
            Listing::Doubtful => thread::yield_now(),
            Listing::Known => return Ok(()),
        }
    }
}

/// What a listing of the threads has brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// Threads that were signalled now.
    New,
    /// Nothing new, but threads came or went meanwhile.
    Doubtful,
    /// All threads, each of which has a seat.
    Known,
}

struct Broadcast<'a> {
    table: &'a Table,
    generation: u32,
    signal: i32,
    seated: usize,
}

impl Broadcast<'_> {
    /// Signals the threads that have no seat yet.
    fn seat_new_threads(&mut self) -> Result<Listing, SyncError> {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let before = self.seated;
        let threads = list_threads().map_err(SyncError::ThreadList)?;
        let mut complete = Status::of_process().is_ok_and(|status| status.threads == Some(threads.len() as u64));
        for tid in threads {
            // Relaxed: only the broadcaster reads and writes thread ids.
            let known = self.table.seats[..self.seated].iter().any(|seat| seat.tid.load(Ordering::Relaxed) == tid);
            if tid == own || known {
                continue;
            }
            let Some(seat) = self.table.seats.get(self.seated) else {
                let source = io::Error::other(format!("more than {SEATS} threads"));
                return Err(SyncError::ThreadList(source));
            };
            seat.tid.store(tid, Ordering::Relaxed);
            // Relaxed: the handler that may answer is started by the signal below.
            seat.answer.store(u64::from(self.generation) * 2, Ordering::Relaxed);
            match self.signal_thread(tid, self.seated) {
                Ok(()) => self.seated += 1,
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => complete = false,
                Err(source) => return Err(SyncError::Signal { tid, source }),
            }
        }
        Ok(match (self.seated > before, complete) {
            (true, _) => Listing::New,
            (false, false) => Listing::Doubtful,
            (false, true) => Listing::Known,
        })
    }

    fn signal_thread(&self, tid: i32, seat: usize) -> io::Result<()> {
        let value = u64::from(self.generation) << 32 | seat as u64;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        // SAFETY: all-zero is a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        info.si_signo = self.signal;
        info.si_code = libc::SI_QUEUE;
        let queued = Queued {
            pid,
            // SAFETY: getuid cannot fail and touches no memory.
            uid: unsafe { libc::getuid() },
            value,
        };
        // For SI_QUEUE the kernel and libc read pid, uid and value at byte 16 (`include/uapi/asm-generic/siginfo.h`: `_sifields`
        // follow three ints, aligned to 8).
        let fields = ptr::from_mut(&mut info).cast::<u64>().wrapping_add(2).cast::<Queued>();
        // SAFETY: the first 16 of the 112 bytes that follow in a `siginfo_t` of 128, aligned as it is.
        unsafe { fields.write(queued) };
        // SAFETY: `info` is filled; a process may queue signals to its own threads with a negative code.
        let answer = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, self.signal, &raw const info) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn wait(&self, started: Instant) -> Result<(), SyncError> {
        for seat in &self.table.seats[..self.seated] {
            let mut spins = 0_u32;
            let mut asleep = None;
            while !seat.has_answered(self.generation) {
                spins += 1;
                if spins < 200 {
                    thread::yield_now();
                    continue;
                }
                thread::sleep(Duration::from_micros(50));
                let waited = started.elapsed();
                if waited > GRACE && self.is_settled(seat, waited, &mut asleep)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Whether a silent thread needs no answer, because it is gone or cannot run before it takes the signal.
    ///
    /// `asleep` is since when it has been seen asleep and nothing else.
    fn is_settled(&self, seat: &Seat, waited: Duration, asleep: &mut Option<Instant>) -> Result<bool, SyncError> {
        let tid = seat.tid.load(Ordering::Relaxed);
        let status = match Status::of_thread(tid.unsigned_abs()) {
            Ok(status) => status,
            // The thread is gone, or /proc is, which listing tells.
            Err(error) if error.is_absent() => return list_threads().map(|_| true).map_err(SyncError::ThreadList),
            Err(_) => Status::default(),
        };
        if matches!(status.state, Some('Z' | 'X')) {
            return Ok(true);
        }
        let blocked = status.blocked.is_none_or(|set| set.contains(self.signal));
        let stopped = matches!(status.state, Some('D' | 'T' | 't'));
        if stopped && !blocked {
            return Ok(true);
        }
        *asleep = if status.state == Some('S') { asleep.or_else(|| Some(Instant::now())) } else { None };
        let sleeps_on = asleep.is_some_and(|since| since.elapsed() > PATIENCE);
        match (waited > DEADLINE, blocked) {
            (_, true) if sleeps_on || waited > DEADLINE => Err(SyncError::Blocked { tid, signal: self.signal }),
            (true, false) => {
                Err(SyncError::Timeout { tid, signal: self.signal, waited_ms: DEADLINE.as_millis() as u64 })
            }
            _ => Ok(seat.has_answered(self.generation)),
        }
    }
}

impl Seat {
    fn has_answered(&self, generation: u32) -> bool {
        // Acquire, partner: the Release exchange in `on_signal`.
        self.answer.load(Ordering::Acquire) == u64::from(generation) * 2 + 1
    }
}

/// The fields of `siginfo_t` that a queued signal has after its three leading ints.
#[repr(C)]
struct Queued {
    pid: i32,
    uid: u32,
    value: u64,
}

fn list_threads() -> io::Result<Vec<i32>> {
    fs::read_dir("/proc/self/task")?
        .map(|entry| {
            let name = entry?.file_name();
            let tid = name.to_str().and_then(|name| name.parse().ok());
            tid.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("thread id {}", name.display())))
        })
        .collect()
}

//! The fallback for kernels and sandboxes without `membarrier`: one signal to every thread.
//!
//! # Protocol
//!
//! A broadcast is a table of [`Seat`]s, one for each thread that it has signalled. The signal's value names the
//! broadcast's generation and the seat. The handler serialises its core, then answers at the seat. A broadcast ends
//! when every seat is *settled*: it is answered, or its thread is gone, or its thread is stopped or in an
//! uninterruptible sleep with the signal pending and unblocked. Such a thread cannot execute an instruction of user
//! mode before it has taken the signal. (An interruptible sleep is not enough: `ppoll` and the like sleep with a mask
//! of their own, and may return without taking the signal.)
//!
//! To find threads that are started meanwhile, the broadcast lists them again until a complete listing (see
//! [`list`](super::list)) has no new thread. A thread that a seated thread starts after it was settled has run nothing
//! that was fetched earlier. If threads start faster than they can be listed, this does not end; so after [`ROUNDS`]
//! the broadcast starts a sentinel, and the first listing that reaches it is the last. Threads missing in it are
//! younger than the broadcast: their first instruction follows a return from the kernel by IRET (`ret_from_fork_asm` in
//! `arch/x86/entry/entry_64.S`), a serialising instruction (Intel SDM, volume 3, "Serializing Instructions"), or by
//! ERET (`ret_from_fork` in `arch/arm64/kernel/entry.S`), a context synchronisation event (Arm ARM, "Context
//! synchronization event"). We know of no such statement about ERETU, by which x86-64 with FRED returns.
//!
//! Tables are never freed but reused. A handler that runs late, because its seat was settled without it or the
//! broadcast gave up, finds memory of the right type. It answers by exchanging the seat's word of its own generation,
//! which is no longer there. Only one broadcast runs at a time ([`Table::broadcasts`]).
//!
//! A forked child inherits the handler and gets its own table, lock included: a thread that it does not have may hold
//! its parent's lock for ever.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::list::{Roll, Sentinel, Unlisted, Wait};
use super::own::{is_gone, own_process, own_thread};
use super::signal::{Call, Hook, Waiting};
use super::sync_error::{SetupError, SyncError};
use crate::arch::serialize_this_core;
use crate::fork::ForkDetector;
use crate::objects::stay_loaded;
use crate::proc::status::Status;
use crate::threads::task::task_stat;

/// How long a thread that runs, or can run at once, takes to answer.
const PROMPT: Duration = Duration::from_micros(50);

/// After how long to look more closely at a thread that has not answered.
const GRACE: Duration = Duration::from_millis(5);

/// How long a sleeping thread may block the signal, as `pthread_create` does for a moment. A running thread may, like
/// any other, wait long for a CPU in a short section with the signal blocked, such as the trap handler.
const PATIENCE: Duration = Duration::from_millis(200);

/// After how long a broadcast gives up.
const DEADLINE: Duration = Duration::from_secs(2);

/// Listings with new threads, or that may lack some, before a sentinel is started: fewer cost less than the thread.
const ROUNDS: u32 = 4;

/// After how many listings a broadcast gives up. With a sentinel a few hundred are many, while threads come and go as
/// fast as they can; without one (RLIMIT_NPROC) it takes luck, and some thousands.
const LISTINGS: u32 = 1 << 16;

/// Maximum number of threads that one broadcast reaches.
const SEATS: usize = 1 << 14;

/// One thread's part in the current broadcast.
#[derive(Default)]
struct Seat {
    /// The thread. Used by the broadcast only; handlers leave it alone.
    tid: AtomicI32,
    /// Twice the generation of the broadcast that uses the seat, plus one when its thread has answered. The broadcast
    /// writes it; then either the thread's handler exchanges it once, or the broadcast settles it.
    answer: AtomicU64,
}

/// The broadcasts of one process. Allocated once, never freed, since the handler may be late.
struct Table {
    /// Tells a forked child that the table belongs to its parent.
    process: ForkDetector,
    /// Keeps broadcasts apart.
    broadcasts: Mutex<()>,
    /// The last generation. Read and written by the holder of `broadcasts`.
    generation: AtomicU32,
    seats: Box<[Seat]>,
}

/// The table, null before the first installation.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// The handler and its signal.
static HOOK: Hook = Hook::new(on_signal, Waiting::Own);

/// Chooses a signal and installs the handler, once for the process and its children.
pub(super) fn install() -> Result<(), SetupError> {
    Roll::call(SEATS).map_err(|unlisted| match unlisted {
        Unlisted::Refused(errno) => SetupError::NoThreadList(errno.into()),
        Unlisted::OtherNamespace => SetupError::OtherNamespace,
    })?;
    // Without the lock: see there.
    stay_loaded()?;
    let table = own_table();
    let _one_at_a_time = table.broadcasts.lock().unwrap_or_else(PoisonError::into_inner);
    HOOK.ready().map(drop).ok_or(SetupError::NoFreeSignal)
}

/// Returns the table of this process; makes it if there is none.
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
    // Release, partner: the Acquire loads here and in `on_signal`. Forbids that a handler sees the table without its
    // seats. Acquire on failure: the winner's table is read.
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

/// Serialises the core of the interrupted thread, and answers. Async-signal-safe: instructions and lock-free atomics
/// only; does not change `errno`.
extern "C" fn on_signal(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    serialize_this_core();
    // SeqCst, partner: the fence in `sync`. Makes this thread's accesses before the signal visible to the broadcaster,
    // as membarrier would.
    fence(Ordering::SeqCst);
    // Acquire, partner: the Release exchange in `own_table`.
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or a table that is never freed.
    let Some(table) = (unsafe { table.as_ref() }) else { return };
    // SAFETY: 1. the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler.
    let Some(Call { generation, seat }) = (unsafe { Call::received(info) }) else { return };
    let Some(seat) = table.seats.get(seat as usize) else { return };
    let asked = u64::from(generation) * 2;
    // Release, partner: the Acquire load in `Seat::has_answered`. Forbids that the broadcaster sees the answer but not
    // this thread's earlier accesses. Relaxed on failure: the broadcast is over.
    let _ = seat.answer.compare_exchange(asked, asked + 1, Ordering::Release, Ordering::Relaxed);
}

/// Signals every thread and waits until each has serialised its core. Returns the number of listings.
pub(super) fn sync() -> Result<u32, SyncError> {
    // A child forked after `install` has the handler, but no table yet.
    let table = own_table();
    let _one_at_a_time = table.broadcasts.lock().unwrap_or_else(PoisonError::into_inner);
    // The program may have changed the signal's action since the last time.
    let signal = HOOK.ready().ok_or(SyncError::NoFreeSignal)?;
    // SeqCst, partner: the fence in `on_signal`. Makes the caller's stores visible to every thread that has answered.
    fence(Ordering::SeqCst);
    // Relaxed: under the lock.
    let generation = table.generation.load(Ordering::Relaxed).wrapping_add(1);
    table.generation.store(generation, Ordering::Relaxed);

    let mut broadcast = Broadcast { table, generation, signal, seated: 0 };
    let mut sentinel = None;
    for listings in 1..=LISTINGS {
        if listings > ROUNDS && sentinel.is_none() {
            // If the process cannot start another thread now, the next listing is as likely to be complete as this one.
            sentinel = Sentinel::post().ok();
        }
        let listing = broadcast.seat_new_threads(sentinel.as_ref())?;
        broadcast.wait()?;
        if listing == Listing::Complete {
            return Ok(listings);
        }
    }
    Err(SyncError::Incomplete { listings: LISTINGS })
}

/// Whether a listing of the threads was the last.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listing {
    /// It may lack threads, or had new ones, which may have started others.
    Open,
    /// All threads that need a seat have one.
    Complete,
}

struct Broadcast<'a> {
    table: &'a Table,
    generation: u32,
    signal: i32,
    seated: usize,
}

impl Broadcast<'_> {
    /// Signals the threads that have no seat yet.
    fn seat_new_threads(&mut self, sentinel: Option<&Sentinel>) -> Result<Listing, SyncError> {
        let own = own_thread();
        let before = self.seated;
        let roll = Roll::call(SEATS).map_err(no_list)?;
        let mut names_all = Status::of_process().is_ok_and(|status| status.threads == Some(roll.tids().len() as u64));
        for &tid in
            roll.tids().iter().filter(|&&tid| tid != own && sentinel.is_none_or(|sentinel| sentinel.tid() != tid))
        {
            // Relaxed: only the broadcaster reads and writes thread ids.
            if self.table.seats[..self.seated].iter().any(|seat| seat.tid.load(Ordering::Relaxed) == tid) {
                // A thread that has ended since it was listed could make up for one that the list lacks.
                names_all &= !is_gone(tid);
                continue;
            }
            match task_stat(tid) {
                // The first thread is listed as long as the process, and takes no signal after its end.
                Some(stat) if stat.has_ended() => {
                    names_all &= tid == own_process();
                    continue;
                }
                Some(stat) if stat.is_kernel_worker(tid) => {
                    names_all &= !is_gone(tid);
                    continue;
                }
                _ => {}
            }
            let Some(seat) = self.table.seats.get(self.seated) else {
                let source = io::Error::other(format!("more than {SEATS} threads"));
                return Err(SyncError::ThreadList(source));
            };
            seat.tid.store(tid, Ordering::Relaxed);
            // Relaxed: the signal below starts the handler that may answer.
            seat.answer.store(u64::from(self.generation) * 2, Ordering::Relaxed);
            // Seats are fewer than 2^32.
            let call = Call { generation: self.generation, seat: self.seated as u32 };
            match call.send(self.signal, tid) {
                Ok(()) => self.seated += 1,
                Err(Errno::SRCH) => names_all = false,
                Err(errno) => return Err(SyncError::Signal { tid, source: errno.into() }),
            }
        }
        let nobody_is_new = names_all && self.seated == before;
        let is_complete = nobody_is_new || sentinel.is_some_and(|sentinel| roll.has_come_to(sentinel));
        Ok(if is_complete { Listing::Complete } else { Listing::Open })
    }

    /// Waits until every seat is settled.
    fn wait(&self) -> Result<(), SyncError> {
        let mut wait = Wait::begin();
        for seat in &self.table.seats[..self.seated] {
            let mut asleep = None;
            while !seat.has_answered(self.generation) {
                let waited = wait.look();
                if waited < PROMPT {
                    thread::yield_now();
                } else if is_gone(seat.tid.load(Ordering::Relaxed))
                    || waited > GRACE && self.is_settled(seat, waited, &mut asleep)?
                {
                    seat.settle(self.generation);
                } else {
                    thread::sleep(PROMPT);
                }
            }
        }
        Ok(())
    }

    /// Returns whether a silent thread need not answer, because it is gone or cannot run before it takes the signal.
    ///
    /// `asleep` tells since when every look has found it asleep.
    fn is_settled(&self, seat: &Seat, waited: Duration, asleep: &mut Option<Wait>) -> Result<bool, SyncError> {
        let tid = seat.tid.load(Ordering::Relaxed);
        let status = match Status::of_thread(tid.unsigned_abs()) {
            Ok(status) => status,
            // The thread is gone, or /proc is, which listing shows.
            Err(error) if error.is_absent() => return Roll::call(SEATS).map(|_| true).map_err(no_list),
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
        *asleep = if status.state == Some('S') { asleep.or_else(|| Some(Wait::begin())) } else { None };
        let sleeps_on = asleep.as_mut().is_some_and(|wait| wait.look() > PATIENCE);
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
    /// Marks the seat as settled in this generation.
    fn settle(&self, generation: u32) {
        // Relaxed: a late handler finds nothing to answer.
        self.answer.store(u64::from(generation) * 2 + 1, Ordering::Relaxed);
    }

    fn has_answered(&self, generation: u32) -> bool {
        // Acquire, partner: the Release exchange in `on_signal`.
        self.answer.load(Ordering::Acquire) == u64::from(generation) * 2 + 1
    }
}

fn no_list(unlisted: Unlisted) -> SyncError {
    match unlisted {
        Unlisted::Refused(errno) => SyncError::ThreadList(errno.into()),
        Unlisted::OtherNamespace => SyncError::OtherNamespace,
    }
}

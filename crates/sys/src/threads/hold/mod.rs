//! Holds every other thread of the process still, without the heap.
//!
//! # Protocol
//!
//! Each other thread gets a `Seat` and a signal whose value names the seat and the generation. Its handler, with all
//! signals blocked, notes where the thread's stack and control block are, answers, and waits on a futex for the
//! generation to end. A thread counts as held once it has answered *and* the kernel says that it sleeps: after its
//! answer it makes only that call, so it sleeps there, and it executes no instruction of user mode until it is
//! released.
//!
//! A thread is *deaf* if it blocks the signal or waits for nothing but a signal (`sigwait`, `pause`, `sigsuspend`), or
//! if no signal is free (`threads::signal`). It gets no signal, which would stay pending for ever, or be mistaken for
//! another. A tracer seizes such threads: a child process that is made when the first deaf thread is found
//! (`crate::threads::tracer`). A deaf thread counts as held once it is in a ptrace stop and the kernel has promised to
//! end the process with the tracer. A new thread is deaf until it has its signal mask, which is no reason to wait for
//! it. Where nobody may trace, threads that wait for a signal are sent one nevertheless.
//!
//! To find threads that are started meanwhile, the holder lists them again until every listed thread is held. The last
//! listing has as many threads as the process, and none that has ended: a listing can miss a thread while another one
//! ends (the kernel continues by number, `first_tid` in `fs/proc/base.c`). Then all threads that could start another
//! are held.
//!
//! The seats lie in their own memory, which is never given back, since a handler may be late: it finds another
//! generation there and returns. The handler stays installed for the same reason; a real-time signal without one would
//! end the process. A forked child inherits both.
//!
//! Workers of the kernel (io_uring) are listed as threads, but have no user mode, and are skipped.
//!
//! # What the program sees
//!
//! A blocking system call of a thread is interrupted and restarted with the remaining time. After a signal, the calls
//! that `signal(7)` lists as never restarted after a handler return `EINTR` (`poll`, `select`, `epoll_wait`,
//! `nanosleep`, waits with a socket's time limit, …), and so does a futex's wait with a time limit, as `sem_timedwait`
//! tells. After a tracer's stop, only those do that `signal(7)` lists for stop signals: `epoll_wait`, `semop`,
//! `sigtimedwait`, `read` from inotify, and waits with a socket's time limit.
//!
//! So the kernel continues `pause` and `sigsuspend` unnoticed, unless they begin after the look at the thread.
//! Waits of futexes with a time limit get the signal: idle threads of pools stand there, by `pthread_cond_timedwait`,
//! which waits on by itself, and a tracer would make every hold of such programs longer. `sem_timedwait` may return
//! `EINTR` by its own contract (`sem_wait(3)`).
//!
//! While threads are traced no debugger can attach to them, and killing the tracer ("palimpsest-hold") kills the
//! process. With Yama and `ptrace_scope` 1 the tracer replaces the one that the program has named by `PR_SET_PTRACER`.

mod error;
mod handler;
mod traced;
mod turn;

use std::ops::{ControlFlow, Range};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::io::Errno;

pub use super::list::count;
pub use super::task::ThreadName;
pub use error::{Refusal, StopError};

use super::futex::wake_all;
use super::list::{self, GRACE, PATIENCE, Wait, nap};
use super::own::{Blocked, own_process, own_thread};
use super::signal::Call;
use super::task::{awaits_signal, blocks, is_numbered_elsewhere, is_pending, task_stat};
use crate::memory::vec::leak_zeroed;
use crate::threads::tracer::{Desk, Tracer};
use handler::{HOOK, TABLE};
use turn::Turn;

/// How often a thread may become deaf after it was sent a signal.
const TURNS: usize = 8;

/// Maximum number of threads that can be held.
const SEATS: usize = 1 << 13;

/// One thread's part.
#[derive(Default)]
struct Seat {
    /// The thread. Only the holder uses it, `way` and `taking`.
    tid: AtomicI32,
    /// The generation in which the thread has answered. Its handler writes this and the next two.
    answer: AtomicU32,
    /// Addresses in its control block and on its stack, valid once it has answered.
    control_block: AtomicUsize,
    stack: AtomicUsize,
    /// A [`Way`].
    way: AtomicU32,
    /// The signal that a traced thread was about to take when it stopped.
    taking: AtomicI32,
}

/// How far a thread is from being held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// It can receive the signal.
    Hearing,
    /// It cannot be held.
    Deaf,
    /// It was sent the signal.
    Signalled,
    /// It has answered and sleeps.
    Parked,
    /// The tracer has seized it.
    Seized,
    /// It is in a ptrace stop.
    Stopped,
    /// It is in a ptrace stop and dies with the tracer.
    Held,
    /// It has ended.
    Gone,
}

impl Seat {
    // Relaxed, in all of these: only the holder reads and writes them.
    fn tid(&self) -> i32 {
        self.tid.load(Ordering::Relaxed)
    }

    fn is(&self, way: Way) -> bool {
        self.way.load(Ordering::Relaxed) == way as u32
    }

    fn becomes(&self, way: Way) {
        self.way.store(way as u32, Ordering::Relaxed);
        if way == Way::Gone {
            // The kernel may reuse the number.
            self.tid.store(0, Ordering::Relaxed);
        }
    }
}

/// The table. Zeroed memory is a valid one.
struct Table {
    /// The generation that holds threads; 0 if none does. Also the futex: the holder writes it, handlers wait on it.
    holding: AtomicU32,
    /// The last generation. Used by the holder only.
    generation: AtomicU32,
    seats: [Seat; SEATS],
    desk: Desk,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Everything needed to hold threads.
#[derive(Debug)]
pub struct World {
    table: &'static Table,
}

/// The memory of a thread held by the signal: the kernel and the handler may write there. A thread held by the tracer
/// writes nothing, nor does the kernel for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its id.
    pub tid: i32,
    /// An address in the C library's control block for it.
    pub control_block: usize,
    /// An address on the stack that it runs on.
    pub stack: usize,
}

/// Threads are held while this lives.
#[derive(Debug)]
pub struct Stopped<'a> {
    world: &'a World,
    /// The signal that has the handler; without one, all threads are deaf.
    signal: Option<i32>,
    seated: usize,
    tracer: Option<Tracer<'static>>,
    /// Declared last: they end when the others run again.
    _turn: Turn,
    /// Blocks handlers in this thread, which could wait for one of the others.
    _blocked: Blocked,
}

impl World {
    /// Makes the table on the first call.
    ///
    /// # Errors
    ///
    /// [`StopError::Memory`].
    pub fn prepare() -> Result<Self, StopError> {
        // Acquire, partner: the Release exchange below, if another thread made the table.
        let mut table = TABLE.load(Ordering::Acquire);
        if table.is_null() {
            let made = leak_zeroed(size_of::<Table>())?.cast::<Table>().as_ptr();
            // Release, partner: the Acquire loads here and in `on_signal`. Acquire on failure: stands in for that load,
            // for the table of another thread, in which handlers look. Its own stays unused memory without pages.
            table = match TABLE.compare_exchange(ptr::null_mut(), made, Ordering::Release, Ordering::Acquire) {
                Ok(_) => made,
                Err(another) => another,
            };
        }
        // SAFETY: made by `leak_zeroed` for a `Table`, for which zeros are valid, and never given back.
        Ok(Self { table: unsafe { &*table } })
    }

    /// Returns the addresses of the memory that this itself uses.
    pub fn own_range(&self) -> Range<usize> {
        let start = ptr::from_ref(self.table).addr();
        start..start + size_of::<Table>()
    }

    /// Checks whether every other thread can be held, as far as possible without disturbing any: traces those that
    /// block the signal for a moment, but does not stop them. Takes a fraction of a millisecond, and about 20 µs for
    /// each thread. Does not use the heap.
    ///
    /// # Errors
    ///
    /// See [`StopError`].
    pub fn rehearse(&self) -> Result<(), StopError> {
        let mut rehearsal = self.nobody(Turn::take()?)?;
        rehearsal.seat_new()?;
        rehearsal.seize(0)
    }

    /// Starts with no thread held. The program may have changed the signal's action since the last time, and replaced
    /// `/proc`.
    fn nobody(&self, turn: Turn) -> Result<Stopped<'_>, StopError> {
        if is_numbered_elsewhere() {
            return Err(StopError::OtherNamespace);
        }
        let signal = HOOK.ready();
        Ok(Stopped { world: self, signal, seated: 0, tracer: None, _turn: turn, _blocked: Blocked::all() })
    }

    /// Holds every other thread. Does not use the heap: a held thread may be inside it, or the caller itself.
    ///
    /// # Errors
    ///
    /// See [`StopError`].
    pub fn stop_others(&self) -> Result<Stopped<'_>, StopError> {
        let mut stopped = self.nobody(Turn::take()?)?;
        // Relaxed: the signal carries it to the threads, and orders.
        let generation = self.table.generation.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.table.generation.store(generation, Ordering::Relaxed);
        // Release, partner: the Acquire load in `on_signal`; in any case the signal is sent after it.
        self.table.holding.store(generation, Ordering::Release);
        stopped.hold_all(generation)?;
        Ok(stopped)
    }
}

/// The result of a listing.
struct Census {
    /// Threads that it names.
    named: usize,
    /// Threads that the process has.
    threads: usize,
    /// Whether it names a thread that has ended.
    has_ended: bool,
}

impl Stopped<'_> {
    /// Returns the threads that are held by the signal.
    pub fn held(&self) -> impl Iterator<Item = Held> {
        // Relaxed: read after the Acquire load that saw the answer (`await_rest`).
        self.seats(0).filter(|seat| seat.is(Way::Parked)).map(|seat| Held {
            tid: seat.tid(),
            control_block: seat.control_block.load(Ordering::Relaxed),
            stack: seat.stack.load(Ordering::Relaxed),
        })
    }

    /// Returns the number of threads held by the tracer.
    pub fn traced(&self) -> usize {
        self.seats(0).filter(|seat| seat.is(Way::Held)).count()
    }

    /// Returns whether any thread is held, by the signal or by the tracer.
    pub fn is_anyone_held(&self) -> bool {
        self.seats(0).any(|seat| seat.is(Way::Parked) || seat.is(Way::Held))
    }

    fn seats(&self, from: usize) -> impl Iterator<Item = &'static Seat> + use<> {
        self.world.table.seats[..self.seated].iter().skip(from)
    }

    fn hold_all(&mut self, generation: u32) -> Result<(), StopError> {
        let mut settled = Wait::begin();
        loop {
            let before = self.seated;
            let census = self.seat_new()?;
            if self.seated > before {
                self.hold_from(before, generation)?;
                settled = Wait::begin();
            } else if census.named == census.threads && !census.has_ended {
                return Ok(());
            } else if settled.look() > PATIENCE {
                return Err(StopError::Incomplete { named: census.named, threads: census.threads });
            } else {
                nap();
            }
        }
    }

    /// Gives seats to threads without one.
    fn seat_new(&mut self) -> Result<Census, StopError> {
        let own = own_thread();
        let signal = self.signal;
        let seats = &self.world.table.seats;
        let mut seated = self.seated;
        let mut has_ended = false;
        let named = list::list(&mut |tid| {
            if tid == own || seats[..seated].iter().any(|seat| seat.tid() == tid) {
                return ControlFlow::Continue(());
            }
            match task_stat(tid) {
                None => has_ended = true,
                // The first thread remains as long as the process.
                Some(stat) if stat.has_ended() => has_ended |= tid != own_process(),
                Some(stat) if stat.is_kernel_worker(tid) => {}
                Some(_) => {
                    let Some(seat) = seats.get(seated) else { return ControlFlow::Break(()) };
                    seat.tid.store(tid, Ordering::Relaxed);
                    seat.answer.store(0, Ordering::Relaxed);
                    let is_deaf = signal.is_none_or(|signal| blocks(tid, signal)) || awaits_signal(tid);
                    seat.becomes(if is_deaf { Way::Deaf } else { Way::Hearing });
                    seated += 1;
                }
            }
            ControlFlow::Continue(())
        })
        .map_err(StopError::Listing)?;
        self.seated = seated;
        let threads = task_stat(own).ok_or(StopError::Listing(Errno::NOENT))?.threads;
        // A listing that was broken off names fewer threads than exist.
        if seated == SEATS && named < threads {
            Err(StopError::TooMany)
        } else {
            Ok(Census { named, threads, has_ended })
        }
    }

    /// Holds the threads in the seats from `from` on.
    fn hold_from(&mut self, from: usize, generation: u32) -> Result<(), StopError> {
        for _ in 0..TURNS {
            // Deaf threads first: so a refusal comes before anybody is interrupted.
            self.seize(from)?;
            self.stop_seized(from)?;
            self.signal(from, generation)?;
            for seat in self.seats(from).filter(|seat| seat.is(Way::Signalled)) {
                seat.becomes(self.await_rest(seat, generation)?);
            }
            if self.seats(from).all(|seat| seat.is(Way::Parked) || seat.is(Way::Held) || seat.is(Way::Gone)) {
                return Ok(());
            }
        }
        let restless = self.seats(from).find(|seat| seat.is(Way::Deaf) || seat.is(Way::Hearing));
        restless.map_or(Ok(()), |seat| Err(self.silent(seat, PATIENCE)))
    }

    /// Sends the signal to threads that are not deaf.
    fn signal(&mut self, from: usize, generation: u32) -> Result<(), StopError> {
        let Some(signal) = self.signal else { return Ok(()) };
        for (index, seat) in self.seats(from).enumerate().filter(|(_, seat)| seat.is(Way::Hearing)) {
            // Seats are fewer than 2^32.
            let call = Call { generation, seat: (from + index) as u32 };
            match call.send(signal, seat.tid()) {
                Ok(()) => seat.becomes(Way::Signalled),
                Err(Errno::SRCH) => seat.becomes(Way::Gone),
                Err(errno) => return Err(StopError::Signal { thread: ThreadName::of(seat.tid()), errno }),
            }
        }
        Ok(())
    }

    /// Waits until a thread has answered and sleeps, is gone, or turns out to be deaf.
    fn await_rest(&self, seat: &Seat, generation: u32) -> Result<Way, StopError> {
        let Some(signal) = self.signal else { return Ok(Way::Deaf) };
        let mut wait = Wait::begin();
        loop {
            // Acquire, partner: the Release store in `on_signal`. Forbids reading where the thread's memory is before
            // the thread has told.
            let has_answered = seat.answer.load(Ordering::Acquire) == generation;
            match task_stat(seat.tid()) {
                None => return Ok(Way::Gone),
                Some(stat) if stat.has_ended() => return Ok(Way::Gone),
                Some(stat) if has_answered && stat.state == b'S' => return Ok(Way::Parked),
                Some(_) => {}
            }
            let waited = wait.look();
            // A thread that blocks the signal, which is no longer pending, is in the handler, where it blocks
            // everything, and has only not had a CPU since. Otherwise it has taken the signal by `sigwait` after the
            // last look.
            let may_answer = || waited < PATIENCE / 2 && !is_pending(seat.tid(), signal);
            if waited > GRACE && !has_answered && blocks(seat.tid(), signal) && !may_answer() {
                return Ok(Way::Deaf);
            }
            if waited > PATIENCE {
                return Err(self.silent(seat, waited));
            }
            nap();
        }
    }

    fn silent(&self, seat: &Seat, waited: Duration) -> StopError {
        let waited_ms = waited.as_millis() as u64;
        StopError::Silent { thread: ThreadName::of(seat.tid()), signal: self.signal.unwrap_or(0), waited_ms }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.let_traced_go();
        let holding = &self.world.table.holding;
        // Release, partner: the Acquire load in `on_signal`. Forbids that a thread continues before it can see what was
        // done meanwhile.
        holding.store(0, Ordering::Release);
        wake_all(holding);
    }
}

#[cfg(test)]
mod tests;

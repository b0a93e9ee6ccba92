//! Holding every other thread of the process still, without the heap and without a tracer.
//!
//! # Protocol
//!
//! Each other thread gets a [`Seat`] and a signal whose value names the seat and the generation. Its handler, with all signals blocked, notes
//! where the thread's stack and control block are, answers, and waits on a futex for the generation to end. A thread counts as held once it has answered *and* the
//! kernel says that it sleeps: from its answer on it makes no call but that wait, so it is in there, and it executes no instruction of user mode until it is
//! released. Threads that are started meanwhile are found by listing again until a listing has no new thread, which is
//! final: who could start one is held.
//!
//! The seats lie in memory of their own that is never given back, since a handler may be late: it finds another generation there and returns. The
//! handler stays installed for the same reason; a real-time signal without one would end the process. A forked child inherits both.
//!
//! Workers of the kernel (io_uring) are listed as threads, have no user mode, and are left out.

use std::io::Write;
use std::mem::{self, MaybeUninit};
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, RawDir};
use rustix::io::Errno;

use crate::mapped_vec::leak_zeroed;
use crate::mapping::MapError;
use crate::proc::status::Status;

/// How long a thread may take to answer and fall asleep.
const PATIENCE: Duration = Duration::from_millis(1000);

/// Threads that can be held.
const SEATS: usize = 1 << 13;

/// One thread's part.
#[derive(Default)]
struct Seat {
    tid: AtomicI32,
    /// The generation in which the thread has answered.
    answer: AtomicU32,
    /// An address in its control block, and one on its stack, valid once it has answered.
    thread_pointer: AtomicUsize,
    stack: AtomicUsize,
}

/// Zeroed memory is a valid one.
struct Table {
    /// The generation that holds threads; 0 while none does. The futex.
    holding: AtomicU32,
    generation: AtomicU32,
    seats: [Seat; SEATS],
}

/// The table, null before the first use.
static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// The signal that has the handler, zero before the first use. Children inherit handlers.
static SIGNAL: AtomicI32 = AtomicI32::new(0);

/// Why threads could not be held. All that were held run again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// There is no memory for the table.
    #[error("no memory for a table of threads")]
    Memory(#[from] MapError),
    /// Every real-time signal has a handler.
    #[error("no real-time signal is free")]
    NoFreeSignal,
    /// The threads cannot be listed.
    #[error("the threads cannot be listed: {0}; is /proc mounted?")]
    Listing(Errno),
    /// There are more than can be held.
    #[error("there are more than {SEATS} threads")]
    TooMany,
    /// A thread cannot be signalled.
    #[error("thread {tid} cannot be signalled: {errno}")]
    Signal {
        /// Its id.
        tid: i32,
        /// The kernel's answer.
        errno: Errno,
    },
    /// A thread blocks the signal.
    #[error("thread {tid} blocks signal {signal}")]
    Blocked {
        /// Its id.
        tid: i32,
        /// The signal.
        signal: i32,
    },
    /// A thread did not come to rest.
    #[error("thread {tid} did not answer signal {signal} within {waited_ms} ms")]
    Silent {
        /// Its id.
        tid: i32,
        /// The signal.
        signal: i32,
        /// How long it was waited for.
        waited_ms: u64,
    },
}

/// What is ready to hold threads.
#[derive(Debug)]
pub struct World {
    table: &'static Table,
    signal: i32,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// Where a held thread's own memory is: the kernel and its handler may write there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its id.
    pub tid: i32,
    /// An address in the C library's control block for it.
    pub thread_pointer: usize,
    /// An address on the stack that it runs on.
    pub stack: usize,
}

/// Threads are held while this lives.
#[derive(Debug)]
pub struct Stopped<'a> {
    world: &'a World,
    seated: usize,
}

impl World {
    /// Makes the table and installs the handler, if there is none yet. One thread may use this at a time.
    ///
    /// # Errors
    ///
    /// [`StopError::Memory`], [`StopError::NoFreeSignal`].
    pub fn prepare() -> Result<Self, StopError> {
        // Acquire, partner: the Release store below, if another thread made the table.
        let mut table = TABLE.load(Ordering::Acquire);
        if table.is_null() {
            table = leak_zeroed(size_of::<Table>())?.cast::<Table>().as_ptr();
            // Release, partner: the Acquire loads here and in `on_signal`.
            TABLE.store(table, Ordering::Release);
        }
        // Relaxed: see the contract above.
        let mut signal = SIGNAL.load(Ordering::Relaxed);
        if signal == 0 {
            signal = free_signal().ok_or(StopError::NoFreeSignal)?;
            set_handler(signal).map_err(|_| StopError::NoFreeSignal)?;
            SIGNAL.store(signal, Ordering::Relaxed);
        }
        // SAFETY: made by `leak_zeroed` for a `Table`, for which zeros are valid, and never given back.
        Ok(Self { table: unsafe { &*table }, signal })
    }

    /// The addresses of the memory that this uses itself.
    pub fn own_range(&self) -> Range<usize> {
        let start = ptr::from_ref(self.table).addr();
        start..start + size_of::<Table>()
    }

    /// Holds every other thread. From the first signal on the heap is not used: a held thread may be inside it.
    ///
    /// # Errors
    ///
    /// See [`StopError`].
    pub fn stop_others(&self) -> Result<Stopped<'_>, StopError> {
        // Relaxed: told to the threads by the signal, which orders.
        let generation = self.table.generation.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.table.generation.store(generation, Ordering::Relaxed);
        // Release, partner: the Acquire load in `on_signal`; the signal is sent after it in any case.
        self.table.holding.store(generation, Ordering::Release);
        let mut stopped = Stopped { world: self, seated: 0 };
        match stopped.hold_all(generation) {
            Ok(()) => Ok(stopped),
            Err(error) => {
                drop(stopped);
                Err(self.explain(error))
            }
        }
    }

    /// Finds out whether a silent thread blocks the signal, now that the heap may be used.
    fn explain(&self, error: StopError) -> StopError {
        let StopError::Silent { tid, signal, .. } = error else { return error };
        let blocked = Status::of_thread(tid.unsigned_abs()).ok().and_then(|status| status.blocked);
        if blocked.is_some_and(|blocked| blocked.contains(signal)) { StopError::Blocked { tid, signal } } else { error }
    }
}

impl Stopped<'_> {
    /// The threads that are held.
    pub fn held(&self) -> impl Iterator<Item = Held> {
        // Relaxed: read after the Acquire load that saw the answer (`has_answered`).
        self.world.table.seats[..self.seated].iter().map(|seat| Held {
            tid: seat.tid.load(Ordering::Relaxed),
            thread_pointer: seat.thread_pointer.load(Ordering::Relaxed),
            stack: seat.stack.load(Ordering::Relaxed),
        })
    }

    fn hold_all(&mut self, generation: u32) -> Result<(), StopError> {
        loop {
            let before = self.seated;
            self.signal_new(generation)?;
            if self.seated == before {
                return Ok(());
            }
            for index in before..self.seated {
                self.await_rest(index, generation)?;
            }
        }
    }

    /// Signals the threads that have no seat yet.
    fn signal_new(&mut self, generation: u32) -> Result<(), StopError> {
        let own = rustix::thread::gettid().as_raw_nonzero().get();
        let tasks = rustix::fs::openat(
            CWD,
            c"/proc/self/task",
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(StopError::Listing)?;
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut list = RawDir::new(tasks, &mut buffer);
        while let Some(entry) = list.next() {
            let entry = entry.map_err(StopError::Listing)?;
            let Some(tid) = entry.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let seats = &self.world.table.seats;
            // Relaxed: only the holder reads and writes thread ids.
            let is_known = seats[..self.seated].iter().any(|seat| seat.tid.load(Ordering::Relaxed) == tid);
            if tid == own || is_known || is_kernel_worker(tid) {
                continue;
            }
            let seat = seats.get(self.seated).ok_or(StopError::TooMany)?;
            seat.tid.store(tid, Ordering::Relaxed);
            seat.answer.store(0, Ordering::Relaxed);
            match self.world.signal_thread(tid, generation, self.seated) {
                Ok(()) => self.seated += 1,
                Err(Errno::SRCH) => {}
                Err(errno) => return Err(StopError::Signal { tid, errno }),
            }
        }
        Ok(())
    }

    /// Waits until a thread has answered and sleeps, or is gone.
    fn await_rest(&mut self, index: usize, generation: u32) -> Result<(), StopError> {
        let seat = &self.world.table.seats[index];
        let tid = seat.tid.load(Ordering::Relaxed);
        let started = Instant::now();
        loop {
            // Acquire, partner: the Release store in `on_signal`. Forbids to read where the thread's memory is before it has told.
            let has_answered = seat.answer.load(Ordering::Acquire) == generation;
            match task_stat(tid) {
                // Gone, or as good as gone.
                None => return Ok(()),
                Some(stat) if matches!(stat.state, b'Z' | b'X') => return Ok(()),
                Some(stat) if has_answered && stat.state == b'S' => return Ok(()),
                Some(_) => {}
            }
            let waited = started.elapsed();
            if waited > PATIENCE {
                let waited_ms = waited.as_millis() as u64;
                return Err(StopError::Silent { tid, signal: self.world.signal, waited_ms });
            }
            let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 20_000 };
            // Interrupted or not, the loop looks again.
            let _ = rustix::thread::nanosleep(&pause);
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let holding = &self.world.table.holding;
        // Release, partner: the Acquire load in `on_signal`. Forbids that a thread runs on before it can see what was done meanwhile.
        holding.store(0, Ordering::Release);
        // SAFETY: wakes whoever waits on this word; touches no memory.
        unsafe {
            libc::syscall(libc::SYS_futex, holding.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, i32::MAX)
        };
    }
}

impl World {
    fn signal_thread(&self, tid: i32, generation: u32, seat: usize) -> Result<(), Errno> {
        let value = u64::from(generation) << 32 | seat as u64;
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let mut info = [0_u64; 16];
        // `siginfo_t` for SI_QUEUE (`include/uapi/asm-generic/siginfo.h`): signo, errno, code, padding; pid, uid; value.
        info[0] = u64::from(self.signal.cast_unsigned());
        info[1] = u64::from(libc::SI_QUEUE.cast_unsigned());
        info[2] = u64::from(pid.cast_unsigned()) | u64::from(rustix::process::getuid().as_raw()) << 32;
        info[3] = value;
        // SAFETY: `info` is as long as a `siginfo_t` and filled; a process may queue signals to its own threads with a negative code.
        let answer = unsafe { libc::syscall(libc::SYS_rt_tgsigqueueinfo, pid, tid, self.signal, info.as_ptr()) };
        if answer == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

const _: () = assert!(size_of::<libc::siginfo_t>() == 128 && cfg!(target_endian = "little"));

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
fn free_signal() -> Option<i32> {
    (libc::SIGRTMIN()..=libc::SIGRTMAX()).rev().find(|&signal| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut old: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: a null new action only asks; `old` is a valid place for the answer.
        let asked = unsafe { libc::sigaction(signal, ptr::null(), &mut old) };
        asked == 0 && old.sa_sigaction == libc::SIG_DFL
    })
}

fn set_handler(signal: i32) -> Result<(), Errno> {
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

/// What `/proc/…/stat` says of a thread.
struct TaskStat {
    state: u8,
    flags: u64,
}

/// `PF_IO_WORKER` and `PF_USER_WORKER` of `include/linux/sched.h`.
const WORKER: u64 = 0x10 | 0x4000;

/// Whether a thread is the kernel's own. Threads that are gone are not.
fn is_kernel_worker(tid: i32) -> bool {
    task_stat(tid).is_some_and(|stat| stat.flags & WORKER != 0)
}

/// Reads `/proc/self/task/TID/stat` without the heap; `None` if the thread is gone.
fn task_stat(tid: i32) -> Option<TaskStat> {
    let mut path = [0_u8; 64];
    // The final zero is there already.
    write!(&mut path[..63], "/proc/self/task/{tid}/stat").ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let file = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0_u8; 512];
    let len = loop {
        match rustix::io::read(&file, &mut text) {
            Err(Errno::INTR) => {}
            other => break other.ok()?,
        }
    };
    parse_stat(&text[..len])
}

/// The fields behind the name, which may hold anything (`proc_pid_stat(5)`).
fn parse_stat(text: &[u8]) -> Option<TaskStat> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let mut fields = text.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let state = *fields.next()?.first()?;
    let flags = str::from_utf8(fields.nth(5)?).ok()?.parse().ok()?;
    Some(TaskStat { state, flags })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// One thread at a time may hold the others.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let stat = parse_stat(b"12 (a) S) R 1 12 12 0 -1 4194368 100 0").expect("understood");
        assert_eq!((stat.state, stat.flags), (b'R', 4_194_368));
        assert!(parse_stat(b"12 (cut").is_none() && parse_stat(b"").is_none());
    }

    #[test]
    fn threads_stand_still_and_run_on() {
        static COUNTS: [AtomicUsize; 4] = [const { AtomicUsize::new(0) }; 4];
        static END: AtomicBool = AtomicBool::new(false);
        let threads: Vec<_> = COUNTS
            .iter()
            .map(|count| {
                std::thread::spawn(move || {
                    while !END.load(Ordering::Relaxed) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        let counts = || COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
        while counts().contains(&0) {
            std::thread::yield_now();
        }
        let _turn = TURN.lock().expect("no test has failed");
        let world = World::prepare().expect("a free signal");
        for _ in 0..20 {
            let stopped = world.stop_others().expect("they can be stopped");
            let before = counts();
            let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
            let _ = rustix::thread::nanosleep(&pause);
            let after = counts();
            let held = stopped.held().filter(|held| held.stack != 0 && held.thread_pointer != 0).count();
            drop(stopped);
            assert_eq!(before, after);
            assert!(held >= 4, "{held}");
            while counts().iter().zip(after).any(|(now, then)| *now == then) {
                std::thread::yield_now();
            }
        }
        END.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("alive"));
    }

    #[test]
    fn a_thread_that_blocks_signals_is_named_and_the_others_run_on() {
        let (told, tid) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            // SAFETY: all-zero is a valid set, which is then filled.
            let mut all: libc::sigset_t = unsafe { mem::zeroed() };
            // SAFETY: a valid place for a set.
            unsafe { libc::sigfillset(&mut all) };
            // SAFETY: a valid set; the old one is not asked for.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut()) };
            told.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("heard");
            let _ = ended.recv();
        });
        let tid_of_it = tid.recv().expect("told");
        let _turn = TURN.lock().expect("no test has failed");
        let error = World::prepare().expect("a free signal").stop_others().expect_err("it blocks everything");
        assert!(matches!(error, StopError::Blocked { tid, .. } if tid == tid_of_it), "{error}");
        end.send(()).expect("waiting");
        thread.join().expect("alive");
    }
}

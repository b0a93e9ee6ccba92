//! Blocking system calls of deaf threads continue.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use palimpsest_sys::threads::hold::World;

use crate::support::{gettid, go_deaf, play, sleeps};

/// The result of a call, or its `errno`.
type Outcome = Result<i64, i32>;

fn outcome(returned: i64) -> Outcome {
    if returned < 0 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(returned) }
}

/// Starts a deaf thread that makes a call with one of these numbers. Returns once it sleeps there.
fn sleeper(numbers: &[libc::c_long], call: impl FnOnce() -> Outcome + Send + 'static) -> JoinHandle<Outcome> {
    let (told, tid) = mpsc::channel();
    let thread = thread::spawn(move || {
        go_deaf();
        told.send(gettid()).expect("heard");
        call()
    });
    sleeps(tid.recv().expect("told"), numbers);
    thread
}

/// The calls made by functions of the C library; AArch64 has only the later ones.
const SLEEP: &[libc::c_long] = &[libc::SYS_nanosleep, libc::SYS_clock_nanosleep];
#[cfg(target_arch = "x86_64")]
const POLL: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_ppoll];
#[cfg(not(target_arch = "x86_64"))]
const POLL: &[libc::c_long] = &[libc::SYS_ppoll];
#[cfg(target_arch = "x86_64")]
pub(crate) const PAUSE: &[libc::c_long] = &[libc::SYS_pause];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const PAUSE: &[libc::c_long] = PPOLL;
const PPOLL: &[libc::c_long] = &[libc::SYS_ppoll];
const SIGSUSPEND: &[libc::c_long] = &[libc::SYS_rt_sigsuspend];
#[cfg(target_arch = "x86_64")]
const EPOLL: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait];
#[cfg(not(target_arch = "x86_64"))]
const EPOLL: &[libc::c_long] = &[libc::SYS_epoll_pwait];

/// Holds all threads twice. Returns the lesser number of traced ones.
fn hold() -> usize {
    let world = World::prepare().expect("a free signal");
    let twice = [(); 2].map(|()| {
        let stopped = world.stop_others().expect("they can be held");
        let traced = stopped.traced();
        thread::sleep(Duration::from_millis(20));
        drop(stopped);
        thread::sleep(Duration::from_millis(20));
        traced
    });
    twice[0].min(twice[1])
}

fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe().expect("descriptors")
}

fn futex(word: &AtomicU32, operation: i32, value: u32, limit: *const libc::timespec) -> Outcome {
    // SAFETY: the word outlives the call, as does the limit, if there is one.
    outcome(unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), operation | libc::FUTEX_PRIVATE_FLAG, value, limit)
    })
}

#[test]
fn nobody_notices() {
    play("sleepers::nobody_notices", || {
        // On a busy machine they may finish sleeping before they are held.
        assert!((0..7).any(|doubled| held_asleep(3 << doubled)), "nobody was asleep for long enough");
    });
}

/// Makes all threads sleep, some for `seconds`. Returns whether these still slept after all had been held twice.
fn held_asleep(seconds: i64) -> bool {
    static WORD: AtomicU32 = AtomicU32::new(0);
    let limit = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    let (read, write) = pipe();
    let (polled, poll_write) = pipe();
    let started = Instant::now();
    // SAFETY: the limit is only read; the rest is not requested.
    let nanosleep = sleeper(SLEEP, move || outcome(unsafe { libc::nanosleep(&limit, ptr::null_mut()) }.into()));
    let futex_wait = sleeper(&[libc::SYS_futex], || futex(&WORD, libc::FUTEX_WAIT, 0, ptr::null()));
    let futex_limited = sleeper(&[libc::SYS_futex], move || futex(&AtomicU32::new(0), libc::FUTEX_WAIT, 0, &limit));
    let reading = sleeper(&[libc::SYS_read], move || {
        let mut byte = 0_u8;
        // SAFETY: one byte is written to `byte`.
        outcome(unsafe { libc::read(read.as_raw_fd(), (&raw mut byte).cast(), 1) } as i64)
    });
    let polling = sleeper(POLL, move || {
        let mut one = libc::pollfd { fd: polled.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one element, which outlives the call.
        outcome(unsafe { libc::poll(&mut one, 1, -1) }.into())
    });
    let traced = hold();
    let slept_on = !nanosleep.is_finished() && !futex_limited.is_finished();
    assert!(traced >= 5 || !slept_on, "{traced}");
    // The thread was released and returns to its sleep as soon as it gets a CPU.
    while futex(&WORD, libc::FUTEX_WAKE, 1, ptr::null()) == Ok(0) {
        assert!(!futex_wait.is_finished(), "it does not wait again");
        thread::yield_now();
    }
    rustix::io::write(&write, b"x").expect("somebody reads");
    rustix::io::write(&poll_write, b"x").expect("somebody reads");
    assert_eq!(nanosleep.join().expect("alive"), Ok(0));
    assert!(started.elapsed() >= Duration::from_secs(seconds.unsigned_abs()));
    assert_eq!(futex_wait.join().expect("alive"), Ok(0));
    assert_eq!(futex_limited.join().expect("alive"), Err(libc::ETIMEDOUT));
    assert_eq!(reading.join().expect("alive"), Ok(1));
    assert_eq!(polling.join().expect("alive"), Ok(1));
    slept_on
}

/// The calls that return `EINTR` after a stop signal according to `signal(7)`, with or without a handler.
#[test]
fn some_calls_are_interrupted() {
    play("sleepers::some_calls_are_interrupted", || {
        let (polled, write) = pipe();
        let epoll = sleeper(EPOLL, move || {
            let set = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).expect("a descriptor");
            let (data, flags) = (rustix::event::epoll::EventData::new_u64(1), rustix::event::epoll::EventFlags::IN);
            rustix::event::epoll::add(&set, &polled, data, flags).expect("room");
            let mut event = libc::epoll_event { events: 0, u64: 0 };
            // SAFETY: one element, which outlives the call.
            outcome(unsafe { libc::epoll_wait(set.as_raw_fd(), &mut event, 1, -1) }.into())
        });
        let sigwait = sleeper(&[libc::SYS_rt_sigtimedwait], || {
            let all = u64::MAX;
            let (info, limit) = (ptr::null_mut::<libc::siginfo_t>(), libc::timespec { tv_sec: 1000, tv_nsec: 0 });
            // SAFETY: a set of 8 bytes, as the last argument says, and a limit, which are read.
            outcome(unsafe {
                libc::syscall(libc::SYS_rt_sigtimedwait, &raw const all, info, &raw const limit, 8_usize)
            })
        });
        hold_once(2);
        // If the call is restarted, this ends it; otherwise nobody reads any more.
        let _ = rustix::io::write(&write, b"x");
        let (epoll, sigwait) = (epoll.join().expect("alive"), sigwait.join().expect("alive"));
        println!("epoll_wait: {epoll:?}, sigtimedwait: {sigwait:?}");
        assert!(matches!(epoll, Ok(1) | Err(libc::EINTR)), "{epoll:?}");
        assert_eq!(sigwait, Err(libc::EINTR), "a signal that nobody has sent");
    });
}

fn hold_once(traced: usize) {
    let world = World::prepare().expect("a free signal");
    assert!(world.stop_others().expect("they can be held").traced() >= traced);
}

/// How often a call returned to the program, in threads that wait for a signal.
static RETURNS: AtomicUsize = AtomicUsize::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Starts a thread that is not deaf and makes a call with one of these numbers, until it is over. Returns once it
/// sleeps there.
fn awaits_signal(numbers: &[libc::c_long], call: fn() -> Outcome) -> (i32, JoinHandle<()>) {
    let (told, tid) = mpsc::channel();
    let thread = thread::spawn(move || {
        told.send(gettid()).expect("heard");
        while !IS_OVER.load(Ordering::Relaxed) {
            assert_eq!(call(), Err(libc::EINTR));
            RETURNS.fetch_add(1, Ordering::Relaxed);
        }
    });
    let tid = tid.recv().expect("told");
    sleeps(tid, numbers);
    (tid, thread)
}

/// Fails on: threads in calls that return only after the program's signals, and that are sent the one of the hold.
#[test]
fn who_waits_for_a_signal_gets_none_of_ours() {
    play("sleepers::who_waits_for_a_signal_gets_none_of_ours", || {
        if std::fs::read("/proc/thread-self/syscall").is_err() {
            return println!("skipped: the kernel does not tell of calls (/proc/PID/syscall)");
        }
        extern "C" fn nothing(_: i32) {}
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGUSR1, nothing as extern "C" fn(i32) as usize) };
        // SAFETY: takes nothing.
        let pause = || outcome(unsafe { libc::pause() }.into());
        let sigsuspend = || {
            // SAFETY: all-zero is an empty set.
            let none: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: a valid set.
            outcome(unsafe { libc::sigsuspend(&none) }.into())
        };
        // SAFETY: no descriptors, limit and mask are given.
        let ppoll = || outcome(unsafe { libc::ppoll(ptr::null_mut(), 0, ptr::null(), ptr::null()) }.into());
        let threads = [
            (PAUSE, awaits_signal(PAUSE, pause)),
            (SIGSUSPEND, awaits_signal(SIGSUSPEND, sigsuspend)),
            (PPOLL, awaits_signal(PPOLL, ppoll)),
        ];
        for _ in 0..2 {
            hold_once(3);
            for (numbers, (tid, _)) in &threads {
                // In the call that the hold has interrupted, or in another.
                sleeps(*tid, numbers);
            }
            assert_eq!(RETURNS.load(Ordering::Relaxed), 0, "a signal that nobody has sent");
        }
        IS_OVER.store(true, Ordering::Relaxed);
        for (_, (tid, thread)) in threads {
            // SAFETY: touches no memory. A thread of this process, which is there until it is joined.
            assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), tid, libc::SIGUSR1) }, 0);
            thread.join().expect("its own signal ends the call");
        }
    });
}

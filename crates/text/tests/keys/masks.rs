//! Switches keys beside threads that block every signal, SIGTRAP included, at any time.
//!
//! A trap in a thread that blocks SIGTRAP ends the process: so each test runs in a child, whose status is the verdict.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use palimpsest_text::key::{Keys, State};
use palimpsest_text::{branch, call, static_call, static_key};

/// How often both keys are switched; `call_each`: in which of these rounds the static call is, too, which takes more
/// syncs.
#[derive(Clone, Copy)]
struct Rounds {
    count: u64,
    call_each: u64,
}

impl Rounds {
    /// Returns the rounds of an ordinary run: 5000, or what PALIMPSEST_TOGGLES says, since emulated machines are slow.
    /// With traps, the process died after some hundreds.
    fn few() -> Self {
        let said = std::env::var("PALIMPSEST_TOGGLES").ok().and_then(|count| count.parse().ok());
        Self { count: said.unwrap_or(5_000), call_each: 1 }
    }

    /// The rounds of a long run: with two keys, a million toggles.
    const MANY: Self = Self { count: 500_000, call_each: 16 };
}

static_key! {
    static MASKED_A: "masks.a" = off;
    static MASKED_B: "masks.b" = on;
}

fn plus_one(number: u64) -> u64 {
    number + 1
}

fn plus_two(number: u64) -> u64 {
    number + 2
}

static_call!(static STEP: fn(u64) -> u64 = plus_one);

/// Passes through every kind of site. Returns the number of keys that were seen on.
#[inline(never)]
fn pass() -> u32 {
    let mut on = 0;
    for _ in 0..16 {
        on += u32::from(branch!(unlikely MASKED_A)) + u32::from(branch!(likely MASKED_A));
        on += u32::from(branch!(unlikely MASKED_B)) + u32::from(branch!(likely MASKED_B));
        assert!(matches!(call!(STEP)(1), 2 | 3));
    }
    on
}

/// Switches everything in `rounds`. Returns whether every switch was seen at once.
fn toggle(rounds: Rounds) -> bool {
    let both = [&MASKED_A, &MASKED_B];
    let mut stepped = call!(STEP)(0);
    (0..rounds.count).all(|round| {
        let state = if round % 2 == 0 { State::On } else { State::Off };
        Keys::apply(both.map(|key| (key, state))).expect("the keys are switched");
        if round % rounds.call_each == 0 {
            stepped = 3 - stepped;
            STEP.set(if stepped == 2 { plus_two } else { plus_one }).expect("the call is changed");
        }
        (pass(), call!(STEP)(0)) == (if state.is_on() { 64 } else { 0 }, stepped)
    })
}

/// Runs `test` in a child. Returns its status (`waitpid`); zero if `test` returns true.
fn status_of(test: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child starts threads and allocates: glibc keeps both usable in it. It leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork failed");
    if pid == 0 {
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).unwrap_or(false);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!passed)) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

fn every_signal() -> libc::sigset_t {
    // SAFETY: all-zero is a valid set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid set.
    unsafe { libc::sigfillset(&mut set) };
    set
}

/// Sets the calling thread's signal mask. Returns the previous one.
fn set_mask(set: &libc::sigset_t) -> libc::sigset_t {
    // SAFETY: all-zero is a valid set.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: valid sets.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, set, &mut before) }, 0);
    before
}

fn beside_threads_that_block_signals(rounds: Rounds) -> i32 {
    status_of(|| {
        let (stop, passes) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let all = every_signal();
                    while !stop.load(Ordering::Relaxed) {
                        let before = set_mask(&all);
                        pass();
                        set_mask(&before);
                        passes.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _stop = super::StopOnDrop(&stop);
            let is_right = toggle(rounds);
            while passes.load(Ordering::Relaxed) < 100 {
                thread::yield_now();
            }
            is_right
        })
    })
}

extern "C" fn passes_with_everything_blocked(_signal: i32) {
    pass();
}

fn beside_handlers_that_block_signals(rounds: Rounds) -> i32 {
    status_of(|| {
        // SAFETY: all-zero is a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = passes_with_everything_blocked as extern "C" fn(i32) as usize;
        action.sa_mask = every_signal();
        action.sa_flags = libc::SA_RESTART;
        // SAFETY: a valid action, whose handler only passes through sites.
        assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) }, 0);
        let (stop, handled) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        // SAFETY: there is a handler.
                        assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0);
                        handled.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let _stop = super::StopOnDrop(&stop);
            let is_right = toggle(rounds);
            while handled.load(Ordering::Relaxed) < 100 {
                thread::yield_now();
            }
            is_right
        })
    })
}

#[test]
fn threads_may_block_every_signal_at_any_moment() {
    assert_eq!(beside_threads_that_block_signals(Rounds::few()), 0, "the child's status");
}

#[test]
fn handlers_may_block_every_signal() {
    assert_eq!(beside_handlers_that_block_signals(Rounds::few()), 0, "the child's status");
}

#[test]
#[ignore = "takes minutes: a million toggles"]
fn threads_may_block_every_signal_for_a_million_toggles() {
    assert_eq!(beside_threads_that_block_signals(Rounds::MANY), 0, "the child's status");
}

#[test]
#[ignore = "takes minutes: a million toggles"]
fn handlers_may_block_every_signal_for_a_million_toggles() {
    assert_eq!(beside_handlers_that_block_signals(Rounds::MANY), 0, "the child's status");
}

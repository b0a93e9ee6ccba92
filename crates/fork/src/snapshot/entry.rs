//! Calls that can be abandoned from anywhere inside, as by `setjmp` and `longjmp`.
//!
//! A call returns once, whatever happens: by its function's return or by [`abandon`]. So the compiler need not know of functions that return twice.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use super::arch;
use super::signals;

/// The stack pointer of the innermost call; 0 for none. Only the thread that makes the calls may abandon them, so orderings do not matter.
static INNERMOST: AtomicUsize = AtomicUsize::new(0);
/// What the call was abandoned with.
static VALUE: AtomicUsize = AtomicUsize::new(0);

/// What becomes of the set of blocked signals when a call is abandoned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SignalMask {
    /// It is what it was before the call. Needed when a signal handler abandons it, since the signal is blocked in there.
    #[default]
    Restore,
    /// It stays, which saves two system calls.
    Leave,
}

/// How a call ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended<R> {
    /// It returned.
    Returned(R),
    /// It was abandoned with this value.
    Abandoned(usize),
}

/// Calls `target`, which may be left by [`abandon`]. Calls may be nested; the innermost is the one that is left. Panics go on through it.
pub fn enter<R>(mask: SignalMask, target: impl FnOnce() -> R) -> Ended<R> {
    match enter_catching(mask, target) {
        Ended::Returned(Ok(value)) => Ended::Returned(value),
        Ended::Returned(Err(panic)) => resume_unwind(panic),
        Ended::Abandoned(value) => Ended::Abandoned(value),
    }
}

struct Job<F, R> {
    target: Option<F>,
    result: Option<thread::Result<R>>,
}

/// As [`enter`], but panics are results.
pub(super) fn enter_catching<F: FnOnce() -> R, R>(mask: SignalMask, target: F) -> Ended<thread::Result<R>> {
    let outer = INNERMOST.load(Relaxed);
    let blocked = match mask {
        SignalMask::Restore => Some(signals::current()),
        SignalMask::Leave => None,
    };
    let mut job = Job { target: Some(target), result: None };
    // SAFETY: 1. a static; 2. `play` is made for this job, which is borrowed by nobody else.
    unsafe { arch::call(INNERMOST.as_ptr(), play::<F, R>, (&raw mut job).cast()) };
    INNERMOST.store(outer, Relaxed);
    if let Some(result) = job.result.take() {
        return Ended::Returned(result);
    }
    if let Some(blocked) = blocked {
        signals::set(&blocked);
    }
    Ended::Abandoned(VALUE.load(Relaxed))
}

/// # Safety
///
/// 1. `job` is a `Job<F, R>` that nobody else uses.
unsafe extern "C" fn play<F: FnOnce() -> R, R>(job: *mut c_void) {
    // SAFETY: (1).
    let job = unsafe { &mut *job.cast::<Job<F, R>>() };
    let target = job.target.take();
    // The caller finds what it restores in its own frame; unwinding through the frame below would find no description of it.
    job.result = target.map(|target| catch_unwind(AssertUnwindSafe(target)));
}

/// Leaves the innermost [`enter`], or [`take_and_enter`](super::take_and_enter), from anywhere inside: also from a signal handler, on whatever stack it runs.
/// Frames in between are forgotten: nothing is dropped and nothing unlocked.
///
/// # Safety
///
/// 1. The calling thread is the one that entered, inside the call.
/// 2. What the frames in between would have done on their way out is needed by nobody, or is undone by a restore that follows: no lock of memory that is not put
///    back is held, and no other thread waits for them.
///
/// # Aborts
///
/// Nothing was entered.
pub unsafe fn abandon(value: usize) -> ! {
    let anchor = INNERMOST.load(Relaxed);
    if anchor == 0 {
        std::process::abort();
    }
    VALUE.store(value, Relaxed);
    // SAFETY: 1. the anchor is of a call that has not returned, since returning replaces it, and (1) this is its thread; 2. (2).
    unsafe { arch::leave(anchor) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls of this process are one after another.
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[inline(never)]
    fn dig(depth: usize) -> usize {
        if depth == 0 {
            // SAFETY: 1. called below `enter` of this thread; 2. the frames own nothing.
            unsafe { abandon(42) }
        }
        std::hint::black_box(dig(depth - 1) + 1)
    }

    #[test]
    fn calls_return_or_are_abandoned() {
        let _alone = ALONE.lock();
        let floats: Vec<f64> = (0..16).map(|number| f64::from(std::hint::black_box(number))).collect();
        for mask in [SignalMask::Restore, SignalMask::Leave] {
            assert_eq!(enter(mask, || 7), Ended::Returned(7));
            assert_eq!(enter(mask, || dig(100)), Ended::Abandoned(42));
            let nested = enter(mask, || (enter(mask, || dig(3)), 1));
            assert_eq!(nested, Ended::Returned((Ended::Abandoned(42), 1)));
        }
        assert_eq!(floats.iter().sum::<f64>(), 120.0);
        assert_eq!(INNERMOST.load(Relaxed), 0);
    }

    #[test]
    fn panics_go_through() {
        let _alone = ALONE.lock();
        let panic = catch_unwind(|| enter(SignalMask::Leave, || panic!("out"))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"out"));
    }

    #[test]
    fn the_mask_comes_back_when_wanted() {
        let _alone = ALONE.lock();
        let blocks_all = || {
            std::mem::forget(signals::Blocked::all());
            dig(1)
        };
        let is_blocked = || {
            let mask = signals::current();
            // SAFETY: asks about a local set.
            unsafe { libc::sigismember(&raw const mask, libc::SIGUSR1) == 1 }
        };
        let before = signals::current();
        assert_eq!(enter(SignalMask::Restore, blocks_all), Ended::Abandoned(42));
        assert!(!is_blocked());
        assert_eq!(enter(SignalMask::Leave, blocks_all), Ended::Abandoned(42));
        assert!(is_blocked());
        signals::set(&before);
    }
}

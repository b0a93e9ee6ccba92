//! Calls that can be abandoned from anywhere inside, like `setjmp` and `longjmp`.
//!
//! A call returns once, whatever happens: by its function's return or by [`abandon`]. So the compiler need not know
//! functions that return twice.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use super::arch;
use super::signals;

// Plain words of each thread, with nothing to initialise or drop, so that signal handlers may use them. A restore
// restores them like all memory of the thread: `Kept` carries them over it.
thread_local! {
    /// The stack pointer of the thread's innermost call; 0 if there is none.
    static INNERMOST: Cell<usize> = const { Cell::new(0) };
    /// What the call was abandoned with.
    static VALUE: Cell<usize> = const { Cell::new(0) };
}

/// The call that this thread is in, kept where no restore reaches it: in a live frame.
#[derive(Debug)]
pub(super) struct Kept {
    innermost: usize,
}

impl Kept {
    /// Notes the present state.
    pub(super) fn now() -> Self {
        Self { innermost: INNERMOST.get() }
    }

    /// Makes it current again.
    pub(super) fn put_back(self) {
        INNERMOST.set(self.innermost);
    }
}

/// What happens to the set of blocked signals when a call is abandoned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum SignalMask {
    /// Set it to what it was before the call. Needed if a signal handler abandons it, since the signal is blocked in
    /// there.
    #[default]
    Restore,
    /// Leave it, which saves two system calls.
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

/// Calls `target`, which [`abandon`] can leave. Calls may be nested: `abandon` leaves the innermost. Panics pass
/// through. Calls of different threads are independent.
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

/// As [`enter`], but returns panics as results.
pub(super) fn enter_catching<F: FnOnce() -> R, R>(mask: SignalMask, target: F) -> Ended<thread::Result<R>> {
    let outer = Kept::now();
    let blocked = match mask {
        SignalMask::Restore => Some(signals::current()),
        SignalMask::Leave => None,
    };
    let mut job = Job { target: Some(target), result: None };
    let anchor = INNERMOST.with(Cell::as_ptr);
    // SAFETY: 1. this thread's own word; 2. `play` is made for this job, which is borrowed by nobody else.
    unsafe { arch::call(anchor, play::<F, R>, (&raw mut job).cast()) };
    outer.put_back();
    if let Some(result) = job.result.take() {
        return Ended::Returned(result);
    }
    if let Some(blocked) = blocked {
        signals::set(&blocked);
    }
    Ended::Abandoned(VALUE.get())
}

/// # Safety
///
/// 1. `job` is a `Job<F, R>` that nobody else uses.
unsafe extern "C" fn play<F: FnOnce() -> R, R>(job: *mut c_void) {
    // SAFETY: (1).
    let job = unsafe { &mut *job.cast::<Job<F, R>>() };
    let target = job.target.take();
    // The caller finds what it restores in its own frame; unwinding through the frame below would find no description
    // of it.
    job.result = target.map(|target| catch_unwind(AssertUnwindSafe(target)));
}

/// Leaves the innermost [`enter`] or [`take_and_enter`](super::take_and_enter) from anywhere inside, even from a signal
/// handler on a stack of its own. Frames in between are forgotten: nothing is dropped, and nothing is unlocked.
///
/// # Safety
///
/// 1. The calling thread is inside a call that it has entered. (Calls of other threads do not count.)
/// 2. Nobody needs what the frames in between would have done on their way out, or a restore that follows undoes it: no
///    lock outside restored memory is held, and no other thread waits for them.
///
/// # Aborts
///
/// The calling thread has entered nothing; standard error says so.
pub unsafe fn abandon(value: usize) -> ! {
    let anchor = INNERMOST.get();
    if anchor == 0 {
        const SAYS: &[u8] = b"palimpsest: abandon was called by a thread that is in no enter\n";
        // Without locks and buffers, as this may be a signal handler. Nobody is left to report a failure to. SAFETY:
        // the bytes are valid for reading.
        let _ = unsafe { libc::write(libc::STDERR_FILENO, SAYS.as_ptr().cast(), SAYS.len()) };
        std::process::abort();
    }
    VALUE.set(value);
    // SAFETY: 1. the anchor is of a call that has not returned, since returning replaces it, and of this thread, whose
    // own word it is; 2. (2).
    unsafe { arch::leave(anchor) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let floats: Vec<f64> = (0..16).map(|number| f64::from(std::hint::black_box(number))).collect();
        for mask in [SignalMask::Restore, SignalMask::Leave] {
            assert_eq!(enter(mask, || 7), Ended::Returned(7));
            assert_eq!(enter(mask, || dig(100)), Ended::Abandoned(42));
            let nested = enter(mask, || (enter(mask, || dig(3)), 1));
            assert_eq!(nested, Ended::Returned((Ended::Abandoned(42), 1)));
        }
        assert_eq!(floats.iter().sum::<f64>(), 120.0);
        assert_eq!(INNERMOST.get(), 0);
    }

    #[test]
    fn calls_of_different_threads_are_independent() {
        let (first_is_in, second_is_in, first_is_out) =
            (std::sync::Barrier::new(2), std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                first_is_in.wait();
                let ended = enter(SignalMask::Leave, || {
                    second_is_in.wait();
                    first_is_out.wait();
                    // SAFETY: 1. inside the call of this thread; 2. the frames own nothing.
                    unsafe { abandon(2) }
                });
                (ended, thread::current().id())
            });
            let this = thread::current().id();
            let ended = enter(SignalMask::Leave, || {
                let anchor = INNERMOST.get();
                first_is_in.wait();
                second_is_in.wait();
                if INNERMOST.get() == anchor {
                    // SAFETY: 1. inside the call of this thread, whatever the other has entered since; 2. the frames
                    // own nothing.
                    unsafe { abandon(1) }
                }
                "the other thread's call is in the way"
            });
            first_is_out.wait();
            assert_eq!((ended, thread::current().id()), (Ended::Abandoned(1), this));
            let (ended, id): (Ended<()>, _) = second.join().unwrap();
            assert_eq!(ended, Ended::Abandoned(2));
            assert_ne!(id, this);
        });
    }

    #[test]
    fn panics_go_through() {
        let panic = catch_unwind(|| enter(SignalMask::Leave, || panic!("out"))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"out"));
    }

    #[test]
    fn the_mask_comes_back_when_wanted() {
        let blocks_all = || {
            std::mem::forget(palimpsest_sys::threads::own::Blocked::all());
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

//! A stack of this library's own, for what it does in the middle of a program's calls: lists of mappings and slices
//! take tens of kilobytes, and a program may fork or wait on a stack for signals of 8, or in a coroutine.

use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::threads::own::{Blocked, Uncancelled};
use palimpsest_sys::threads::stack;
use rustix::thread::Timespec;

use crate::error::FreezeError;
use crate::hazards::wiped::{Slot, Wiped, Zeroed};

/// Bytes of it: the deepest work takes less than a quarter.
const LEN: usize = 512 << 10;

/// The stack. A child inherits no such stack, and finds zeros here.
#[derive(Debug, Default)]
struct Place {
    /// Where it begins, if [`NAME`] says the same; 0 if there is none yet.
    name: AtomicUsize,
    /// An address on the stack of who uses it; 0 for nobody.
    user: AtomicUsize,
}

// SAFETY: 1. zeros are valid numbers. 2., 3. Two atomic words.
unsafe impl Zeroed for Place {}

// SAFETY: 1. the only one with this slot.
static PLACE: Wiped<Place> = unsafe { Wiped::new(Slot::Stack) };

/// The same in memory that a snapshot restores, and a child inherits, unlike what it finds wiped: after a restore a
/// stack that was made since the snapshot is gone. Each has a name of its own, wherever it is: the address of its first
/// page, and in the bits below a number that is one more than its forerunner's.
static NAME: AtomicUsize = AtomicUsize::new(0);

/// The bits of the number: pages have 4 KiB at least.
const NUMBER: usize = 0xfff;

/// Why [`on_own_stack`] has done nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoStack {
    /// Another thread uses it, or several use others.
    Busy,
    /// There is no memory for it, or the kernel is older than Linux 4.14.
    NoMemory,
}

fn here() -> usize {
    let here = [0_u8; 1];
    std::hint::black_box(here.as_ptr()).addr()
}

/// Calls `work` on the stack, with signals blocked, and never as a cancelled thread; on the caller's stack if that is
/// the same.
///
/// SIGSYS is left as it is: a program may answer for system calls that its filter does not let through, and a blocked
/// one would end it. `work`, and that handler, must not leave by `longjmp`, nor end the thread.
///
/// # Errors
///
/// [`NoStack`]; nothing was called.
pub fn on_own_stack<T>(work: impl FnOnce() -> T) -> Result<T, NoStack> {
    let place = PLACE.get().ok_or(NoStack::NoMemory)?;
    if place.span().contains(here()) {
        return Ok(work());
    }
    // No other handler may run there, which could leave for good; nor may a request end the thread.
    let _blocked = Blocked::all_but(&[libc::SIGSYS]);
    let _kept = Uncancelled::begin();
    let _user = place.enter().ok_or(NoStack::Busy)?;
    if place.span().is_empty() {
        let start = stack::map(LEN).map_err(|_| NoStack::NoMemory)?.start;
        // Relaxed, here and in `span`: whoever uses the stack has entered.
        let name = start | (NAME.load(Ordering::Relaxed) + 1) & NUMBER;
        place.name.store(name, Ordering::Relaxed);
        NAME.store(name, Ordering::Relaxed);
    }
    // SAFETY: 1. made above, in this process, since no child has its name in both words, and since the last restore,
    // which has brought another name back; this thread has entered, and blocks signals. 2. `LEN` is enough for what
    // this library does; who calls it from outside agrees to the rest.
    unsafe { stack::call(place.span(), work) }.map_err(|_| NoStack::Busy)
}

/// How long to wait for another thread, at most: for some two seconds.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000 };
const NAPS: u32 = 4000;

/// Waits until no other thread is at work on the stack, for two seconds at most: with what a fork or a wait does beside
/// the program's own work. Call it before this process installs a seccomp filter for all threads. Async-signal-safe.
pub fn await_own_stack() {
    let Some(place) = PLACE.get() else { return };
    // A handler of the thread that uses it would wait for itself.
    let mut naps = if place.span().contains(here()) { 0..0 } else { 0..NAPS };
    // Acquire, partner: the Release store of `User::drop`. Forbids that the filter comes before the last of that work.
    while place.user.load(Ordering::Acquire) != 0 && naps.next().is_some() {
        // Interrupted or not, it looks again.
        let _ = rustix::thread::nanosleep(&NAP);
    }
}

impl From<NoStack> for FreezeError {
    fn from(none: NoStack) -> Self {
        match none {
            NoStack::Busy => Self::Busy,
            NoStack::NoMemory => Self::NoStack,
        }
    }
}

impl Place {
    /// Returns where the stack is; empty if there is none.
    fn span(&self) -> Span {
        match self.name.load(Ordering::Relaxed) {
            0 => Span::default(),
            name if NAME.load(Ordering::Relaxed) != name => Span::default(),
            name => Span::new(name & !NUMBER, (name & !NUMBER) + LEN),
        }
    }

    /// Begins to use the stack, unless another thread does.
    fn enter(&self) -> Option<User<'_>> {
        // Acquire, partner: the Release store of `User::drop`. Forbids that this thread's frames are written while
        // another's are in use.
        self.user.compare_exchange(0, here(), Ordering::Acquire, Ordering::Relaxed).ok().map(|_| User(self))
    }
}

/// Uses the stack while it lives.
struct User<'a>(&'a Place);

impl Drop for User<'_> {
    fn drop(&mut self) {
        // Release, partner: the Acquire exchange of `enter`, and the Acquire load in `await_own_stack`.
        self.0.user.store(0, Ordering::Release);
    }
}

/// Returns where the stack is, and an address on the stack of the thread that uses it; nothing before there is one.
pub(crate) fn areas() -> (Span, Option<usize>) {
    let Some(place) = PLACE.get() else { return (Span::default(), None) };
    let user = place.user.load(Ordering::Relaxed);
    (place.span(), (user != 0).then_some(user))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `work` on the last of these stacks, which is called on the one before, and so on.
    fn on_all<T>(stacks: &[Span], work: fn() -> T) -> T {
        let Some((first, rest)) = stacks.split_first() else { return work() };
        // SAFETY: 1. made by the caller, for this, and the work handles no signal. 2. it needs little.
        unsafe { stack::call(*first, || on_all(rest, work)) }.expect("a place to note it")
    }

    /// Fails on: a lack of places to note stacks that is told as one of memory; a second user of the same memory; a
    /// call that never gives it back.
    #[test]
    fn one_thread_at_a_time_has_it_and_calls_within_stay_on_it() {
        let outside = here();
        for _ in 0..2 {
            let found = on_own_stack(|| {
                let inside = here();
                assert!(inside.abs_diff(outside) > LEN / 2);
                assert_eq!(areas().1.map(|user| user.abs_diff(outside) < 1 << 16), Some(true));
                await_own_stack();
                let deeper = on_own_stack(here).expect("the same");
                assert!(deeper.abs_diff(inside) < LEN);
                std::thread::scope(|scope| scope.spawn(|| on_own_stack(|| ())).join().expect("it ends"))
            });
            assert_eq!(found, Ok(Err(NoStack::Busy)), "another thread finds it in use");
        }
        let panic = std::panic::catch_unwind(|| on_own_stack(|| panic!("inside")));
        assert!(panic.is_err() && on_own_stack(|| ()).is_ok());
        // As if some threads used stacks of their own.
        let full = [(); 4].map(|()| stack::map(1 << 16).expect("memory"));
        assert_eq!(on_all(&full, || on_own_stack(|| ())), Err(NoStack::Busy));
        assert_eq!(on_own_stack(|| ()), Ok(()));
        // Whoever waits for its user goes on when there is none, and not before.
        let (is_used, is_done) = (&AtomicUsize::new(0), &AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let used = on_own_stack(|| {
                    is_used.store(1, Ordering::Release);
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    is_done.store(1, Ordering::Relaxed);
                });
                assert_eq!(used, Ok(()));
            });
            while is_used.load(Ordering::Acquire) == 0 {
                std::hint::spin_loop();
            }
            await_own_stack();
            assert_eq!(is_done.load(Ordering::Relaxed), 1);
        });
    }
}

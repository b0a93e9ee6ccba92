//! A stack besides those of the threads: for work that must not depend on how much room its caller's stack has left.
//!
//! Children have no copy of it, unless the work itself makes them by [`spawn`](super::child::spawn), which shows it to
//! them while it makes one. To let all children of a call have it, as long as the call takes, would be simpler; but
//! each change of that waits for the lock of all mappings, which a [deputy](super::deputy) holds for milliseconds.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::own::control_block;
use crate::arch::call_on;
use crate::memory::calls::{self, Commit};
use crate::memory::span::Span;
use crate::pages::maps::Permissions;

/// Maps `len` bytes for a stack, in whole pages, above a page that nobody may touch. No child inherits it
/// (`MADV_DONTFORK`): so no fork has to copy its entries.
///
/// # Errors
///
/// The kernel's.
pub fn map(len: usize) -> Result<Span, Errno> {
    let page = rustix::param::page_size();
    let whole = calls::map(len.next_multiple_of(page) + page, Permissions::READ_WRITE, Commit::Counted)?;
    let stack = Span::new(whole.start + page, whole.end);
    // SAFETY: 1. made just now, and only known here.
    let guarded = unsafe { calls::protect(Span::new(whole.start, stack.start), Permissions::default()) };
    // SAFETY: 1. as above; changes no contents.
    let made = guarded.and_then(|()| unsafe { calls::advise(whole, libc::MADV_DONTFORK) });
    if made.is_err() {
        // SAFETY: 1. as above.
        let _ = unsafe { calls::unmap(whole) };
    }
    made.map(|()| stack)
}

/// The stacks on which something is called. A child of `fork` has what other threads of its parent had noted: those
/// stacks are not there, and other memory may be at their place.
static USED: [Place; 4] = [const { Place { thread: AtomicUsize::new(0), stack: AtomicUsize::new(0) } }; 4];

/// A place to note such a stack.
struct Place {
    /// The thread that runs on it, by its [control block](control_block), which takes no system call; 0 for none. A
    /// thread that a child starts may get the block of one that the child lacks, and then that one's ordinary stack,
    /// too, which is never noted here.
    thread: AtomicUsize,
    /// Where it begins, and in the bits below how many pages it has. Only that thread uses it.
    stack: AtomicUsize,
}

/// Forgets what other threads of the parent are about, in a child that was forked just now by a thread that is not
/// inside [`call`]. Async-signal-safe.
#[inline]
pub(crate) fn forget_in_child() {
    for place in &USED {
        // Not written without need, since the page would be copied.
        if place.thread.load(Ordering::Relaxed) != 0 {
            place.thread.store(0, Ordering::Relaxed);
        }
    }
}

/// Calls `work` on `stack`. A panic goes on on the caller's stack.
///
/// # Safety
///
/// 1. `stack` was made by [`map`] in this process, and nobody else uses it during the call: no other thread, and no
///    handler of a signal.
/// 2. `work` needs no more room than it has, and does not leave by `longjmp`. It makes children that go on where it was
///    by [`spawn`](super::child::spawn) only.
///
/// # Errors
///
/// [`Errno::BUSY`] if too many threads are on such stacks; nothing was done.
pub unsafe fn call<T>(stack: Span, work: impl FnOnce() -> T) -> Result<T, Errno> {
    let used = Used::enter(stack).ok_or(Errno::BUSY)?;
    let mut call = Call { work: Some(work), outcome: None };
    let (entry, data) = (entry(&call), (&raw mut call).cast::<c_void>());
    // SAFETY: 1. the end of whole pages is aligned, and the rest is (1) and (2). 2. `enter` takes such a call, which
    // lives until it returns, and lets no panic through.
    unsafe { call_on(stack.end, entry, data) };
    drop(used);
    match call.outcome.expect("it has returned") {
        Ok(value) => Ok(value),
        Err(panic) => resume_unwind(panic),
    }
}

/// A stack on which something is called.
struct Used(&'static Place);

impl Used {
    /// Returns `None` if too many are.
    fn enter(stack: Span) -> Option<Self> {
        let page = rustix::param::page_size();
        let pages = stack.len() / page;
        assert!(pages < page, "{} bytes are a long stack", stack.len());
        let caller = control_block();
        // Relaxed, here and below: only the thread that has noted a stack looks at it.
        let take =
            |place: &&Place| place.thread.compare_exchange(0, caller, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let place = USED.iter().find(take)?;
        place.stack.store(stack.start | pages, Ordering::Relaxed);
        Some(Self(place))
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        self.0.thread.store(0, Ordering::Relaxed);
    }
}

/// Children have a copy of the stack while it lives.
pub(super) struct Shown(Span);

impl Shown {
    /// Shows the stack on which the caller runs to children, if [`call`] has brought it there.
    ///
    /// # Errors
    ///
    /// The kernel's: children would have no such stack.
    pub(super) fn begin() -> Result<Option<Self>, Errno> {
        let (page, here) = (rustix::param::page_size(), [0_u8; 1]);
        let here = std::hint::black_box(here.as_ptr()).addr();
        let caller = control_block();
        let own = USED.iter().filter(|place| place.thread.load(Ordering::Relaxed) == caller);
        let stack_of = |place: &Place| {
            let word = place.stack.load(Ordering::Relaxed);
            let start = word & !(page - 1);
            Span::new(start, start + (word & (page - 1)) * page)
        };
        let Some(stack) = own.map(stack_of).find(|stack| stack.contains(here)) else { return Ok(None) };
        // SAFETY: 1. changes no contents.
        unsafe { calls::advise(stack, libc::MADV_DOFORK) }.map(|()| Some(Self(stack)))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // SAFETY: 1. changes no contents. If it fails, children inherit what they do not need.
        let _ = unsafe { calls::advise(self.0, libc::MADV_DONTFORK) };
    }
}

struct Call<W, T> {
    work: Option<W>,
    outcome: Option<Result<T, Box<dyn Any + Send>>>,
}

/// Returns what makes such a call.
fn entry<W: FnOnce() -> T, T>(_call: &Call<W, T>) -> unsafe extern "C" fn(*mut c_void) {
    enter::<W, T>
}

/// # Safety
///
/// 1. `call` is the address of a `Call<W, T>` that nobody else uses.
unsafe extern "C" fn enter<W: FnOnce() -> T, T>(call: *mut c_void) {
    // SAFETY: (1).
    let call = unsafe { &mut *call.cast::<Call<W, T>>() };
    call.outcome = call.work.take().map(|work| catch_unwind(AssertUnwindSafe(work)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::child::spawn;

    fn here() -> usize {
        let here = [0_u8; 1];
        std::hint::black_box(here.as_ptr()).addr()
    }

    /// Calls `work` on a stack of its own.
    fn apart<T>(work: impl FnOnce(Span) -> T) -> T {
        let stack = map(200_000).expect("memory");
        // SAFETY: 1. made just now, and the work below ends and handles no signal. 2. it needs little.
        let answer = unsafe { call(stack, || work(stack)) }.expect("the kernel takes the advice");
        let page = rustix::param::page_size();
        // SAFETY: 1. nobody uses it any more.
        unsafe { calls::unmap(Span::new(stack.start - page, stack.end)) }.expect("mapped above");
        answer
    }

    #[test]
    fn work_is_done_elsewhere_and_returns_what_it_found() {
        let before = here();
        let text = String::from("what a closure owns");
        let (inside, floats, text) = apart(|stack| {
            assert!(stack.len() >= 200_000 && stack.start < here() && here() < stack.end);
            (here(), [1.5_f64, 2.5].map(std::hint::black_box).iter().sum::<f64>(), text + ", and gives back")
        });
        assert!(inside.abs_diff(before) > 100_000 && before.abs_diff(here()) < 1 << 16);
        assert_eq!((floats, text.as_str()), (4.0, "what a closure owns, and gives back"));
    }

    #[test]
    fn a_panic_goes_on_on_the_callers_stack() {
        let panic = catch_unwind(|| apart(|_| -> usize { panic!("inside") })).expect_err("it panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"inside"));
    }

    /// Fails on: a stack that each child inherits, also one that another thread makes meanwhile; children of the work
    /// that have none.
    #[test]
    fn only_children_of_the_work_have_a_copy() {
        let status_of = |errand: &dyn Fn() -> bool| {
            // SAFETY: 1. makes system calls.
            let child = unsafe { spawn(&[], || i32::from(!errand())) };
            child.map_err(|error| error.to_string()).and_then(|child| child.wait().map_err(|errno| errno.to_string()))
        };
        for _ in 0..2 {
            let stack = map(1 << 16).expect("memory");
            assert_eq!(status_of(&|| !calls::is_all_mapped(stack)), Ok(0));
            // SAFETY: 1. made just now, and the work below ends and handles no signal. 2. it needs little.
            assert_eq!(unsafe { call(stack, || status_of(&|| calls::is_all_mapped(stack))) }, Ok(Ok(0)));
            let beside =
                || std::thread::scope(|scope| scope.spawn(|| status_of(&|| !calls::is_all_mapped(stack))).join());
            // SAFETY: 1. as above. 2. it needs little.
            assert_eq!(unsafe { call(stack, || beside().expect("no panic")) }, Ok(Ok(0)));
            assert_eq!(status_of(&|| !calls::is_all_mapped(stack)), Ok(0));
        }
    }

    /// Fails on: what another thread of the parent has noted, taken for the child's. The child would then hide what is
    /// at that place, the stack of another thread for example, from children of its own.
    #[test]
    fn what_a_child_inherits_is_not_its_own() {
        let parent = control_block();
        let stack = map(1 << 16).expect("memory");
        let in_child = || {
            let is_noted = USED.iter().any(|place| place.thread.load(Ordering::Relaxed) == parent);
            let Ok(other) = map(1 << 16) else { return false };
            let is_on = |at: &Span| at.contains(here());
            // SAFETY: 1. it is the child's, and the work handles no signal. 2. it needs little.
            let is_own = unsafe { call(other, || is_on(&other) && matches!(Shown::begin(), Ok(Some(_)))) };
            // As if another thread of the parent had run on this one.
            for place in &USED {
                place.stack.store(other.start | (other.len() / rustix::param::page_size()), Ordering::Relaxed);
                place.thread.store(parent + 1, Ordering::Relaxed);
            }
            let mut work = Call { work: Some(|| is_on(&other) && matches!(Shown::begin(), Ok(None))), outcome: None };
            let (entry, data) = (entry(&work), (&raw mut work).cast::<c_void>());
            // SAFETY: 1. the end of whole pages is aligned, nobody else uses the stack, and the work needs little. 2.
            // `enter` takes such a call, which lives until it returns, and lets no panic through.
            unsafe { call_on(other.end, entry, data) };
            let is_passed_over = work.outcome.is_some_and(|outcome| outcome.is_ok_and(|is_so| is_so));
            forget_in_child();
            // SAFETY: 1. and 2. as above.
            let is_forgotten = unsafe { call(other, || matches!(Shown::begin(), Ok(Some(_)))) };
            is_noted && is_own == Ok(true) && is_passed_over && is_forgotten == Ok(true)
        };
        let fork = || {
            // SAFETY: 1. maps memory, and makes other system calls.
            let child = unsafe { spawn(&[], || i32::from(!in_child())) };
            child.map_err(|error| error.to_string()).and_then(|child| child.wait().map_err(|errno| errno.to_string()))
        };
        // SAFETY: 1. made just now, and the work handles no signal. 2. it needs little.
        assert_eq!(unsafe { call(stack, fork) }, Ok(Ok(0)));
    }
}

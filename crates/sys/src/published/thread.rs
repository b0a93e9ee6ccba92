//! The calling thread's seat, and the barrier on all others.
//!
//! | event | what happens to seats |
//! |---|---|
//! | first read of a thread | it claims one, and gives it up when it ends, behind the destructors of its Rust data |
//! | read in a signal handler | on the thread's seat; during its first read, a handler's becomes the thread's |
//! | more reads at once than a seat counts | one for this read alone |
//! | `fork` | the child keeps its thread's, and empties those of threads that it does not have |
//! | a child of another call (`clone` itself) | keeps all: what its parent's threads read is not freed in it |
//! | no `membarrier` | one for each read, with a fence |
//! | no key by which the C library calls threads back without allocating | the same |
//!
//! No read uses the allocator, not even a thread's first: it may be that of a signal handler which has interrupted the
//! allocator. So what gives seats up is a key of the C library: the data of a destructor of Rust's would have to be
//! registered first, and glibc allocates for that.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::primitive::full_barrier;
use super::seats::{Seat, Seats};
use crate::objects::keep_loaded;
use crate::threads::core_sync::{CoreSync, SyncPath};
use crate::threads::sync_error::SyncError;

/// The seats of this process.
static SEATS: Seats = Seats::new();

thread_local! {
    /// This thread's seat. Null before its first read, after its end, and always where readers need a fence. Without a
    /// destructor: it can be read as long as the thread runs. Signal handlers may write it.
    static OWN: AtomicPtr<Seat> = const { AtomicPtr::new(ptr::null_mut()) };
}

/// The C library calls this for each thread that ends and has set [`End`]'s key: after the destructors of Rust's
/// thread-local data (glibc: `start_thread`, `nptl/pthread_create.c`).
extern "C" fn ended(_value: *mut libc::c_void) {
    // Relaxed: shared only with signal handlers of this thread.
    let seat = OWN.with(|own| own.swap(ptr::null_mut(), Ordering::Relaxed));
    // SAFETY: null, or a seat, which is never freed.
    if let Some(seat) = unsafe { seat.as_ref() } {
        seat.give_up();
    }
}

/// The key by which threads give their seats up. It is never deleted.
#[derive(Clone, Copy)]
pub(super) struct End(libc::pthread_key_t);

/// Keys from this one on need memory in each thread that sets them (glibc: `PTHREAD_KEY_2NDLEVEL_SIZE`,
/// `nptl/pthread_setspecific.c`; musl has room for all of them).
const FIRST_THAT_ALLOCATES: libc::pthread_key_t = 32;

impl End {
    /// Makes the key, if there is one that can be set without memory. The code that it calls stays loaded.
    fn new() -> Option<Self> {
        keep_loaded(ended as *const () as usize).ok()?;
        let mut key = 0;
        // SAFETY: room for a key, and a function for the value that this module sets.
        let made = unsafe { libc::pthread_key_create(&mut key, Some(ended)) };
        if made != 0 {
            return None;
        }
        if key < FIRST_THAT_ALLOCATES {
            return Some(Self(key));
        }
        // SAFETY: made above, and nobody has set it.
        unsafe { libc::pthread_key_delete(key) };
        None
    }

    /// Has this thread give its seat up when it ends.
    fn set(self) {
        let any = ptr::from_ref(&SEATS).cast();
        // SAFETY: the key exists. It takes no memory, so that this does not fail.
        unsafe { libc::pthread_setspecific(self.0, any) };
    }
}

/// How the side that frees makes itself heard by threads that read.
pub(super) enum Barrier {
    /// `membarrier`: readers need none.
    OnAllThreads(CoreSync, End),
    /// It is refused here, or threads cannot give up seats of their own, so each read has a fence.
    Fences,
}

/// Decided once, by the first thread that asks; never freed. A forked child keeps its parent's, as the kernel does.
static BARRIER: AtomicPtr<Barrier> = AtomicPtr::new(ptr::null_mut());

impl Barrier {
    /// Returns what this process uses. To be asked before the first read.
    pub(super) fn chosen() -> &'static Self {
        // Acquire, partner: the Release exchange below.
        let known = BARRIER.load(Ordering::Acquire);
        // SAFETY: null, or a choice, which is never freed.
        if let Some(known) = unsafe { known.as_ref() } {
            return known;
        }
        let sync = CoreSync::with_path(SyncPath::Membarrier).ok();
        let choice = sync.zip(End::new()).map_or(Self::Fences, |(sync, end)| Self::OnAllThreads(sync, end));
        let choice = Box::into_raw(Box::new(choice));
        // Release, partner: the Acquire load above, and on failure: another thread's choice is read.
        match BARRIER.compare_exchange(ptr::null_mut(), choice, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                // Without memory for it, a child keeps its parent's seats.
                // SAFETY: the function takes no argument, and only stores to atomics.
                let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
                // SAFETY: made above, and never freed from here on.
                unsafe { &*choice }
            }
            Err(other) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(choice) });
                // SAFETY: not null, and never freed.
                unsafe { &*other }
            }
        }
    }

    /// Waits until every thread has passed a full barrier.
    ///
    /// # Errors
    ///
    /// [`SyncError`]: perhaps not all have.
    pub(super) fn pass(&self) -> Result<(), SyncError> {
        // For this thread itself, and with `Fences` for all: partner, the fence in `enter_slowly`.
        full_barrier();
        match self {
            Self::OnAllThreads(sync, _) => sync.sync(),
            Self::Fences => Ok(()),
        }
    }
}

extern "C" fn in_child() {
    SEATS.bereave(OWN.with(|own| own.load(Ordering::Relaxed)));
}

/// Returns the seats of this process.
pub(super) fn seats() -> &'static Seats {
    &SEATS
}

/// Begins a read of this thread, and returns where it is counted.
#[inline]
pub(super) fn enter() -> &'static Seat {
    // Relaxed: as in `ended`.
    let own = OWN.with(|own| own.load(Ordering::Relaxed));
    // SAFETY: null, or a seat, which is never freed.
    match unsafe { own.as_ref() } {
        Some(seat) if seat.enter(&SEATS) => seat,
        _ => enter_slowly(),
    }
}

/// Returns whether this thread itself reads since `tag` or before.
pub(super) fn holds(tag: u64) -> bool {
    // SAFETY: as in `enter`.
    unsafe { OWN.with(|own| own.load(Ordering::Relaxed)).as_ref() }.is_some_and(|seat| seat.holds(tag))
}

#[cold]
fn enter_slowly() -> &'static Seat {
    if let Barrier::OnAllThreads(_, end) = Barrier::chosen()
        && OWN.with(|own| own.load(Ordering::Relaxed).is_null())
    {
        // First, so that no thread keeps a seat.
        end.set();
        let seat = own_seat();
        if seat.enter(&SEATS) {
            return seat;
        }
    }
    let seat = SEATS.claim();
    let entered = seat.enter(&SEATS);
    debug_assert!(entered, "a seat without a nest cannot count");
    // Partner: `Barrier::pass`. Forbids that this thread reads an old value, and the collector the seat without it.
    full_barrier();
    seat.give_up();
    seat
}

/// Gives this thread a seat, unless a signal handler is first.
fn own_seat() -> &'static Seat {
    let seat = SEATS.claim();
    let mine = ptr::from_ref(seat).cast_mut();
    // Relaxed: as in `ended`. An exchange, since a handler may come in between.
    let found = OWN.with(|own| own.compare_exchange(ptr::null_mut(), mine, Ordering::Relaxed, Ordering::Relaxed));
    match found {
        Ok(_) => {
            seat.take();
            seat
        }
        Err(handlers) => {
            seat.give_up();
            // SAFETY: not null, and never freed.
            unsafe { &*handlers }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_follow_one_another_share_seats() {
        let read = || std::thread::spawn(|| enter().leave()).join().expect("it reads");
        read();
        let before = SEATS.count();
        (0..20).for_each(|_| read());
        assert_eq!(SEATS.count(), before);
    }
}

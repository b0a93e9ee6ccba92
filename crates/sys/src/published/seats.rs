//! Who may still read a value that was replaced: seats, in which threads show since when they read.
//!
//! A seat is one word: an epoch, and below it how many reads of its thread have begun and not ended (the *nest*). The
//! outermost read writes the present epoch with a nest of one, inner ones add one, each end takes one away: no fence,
//! and no store that other readers' loads wait for.
//!
//! # Why
//!
//! R reads; U replaces the value and retires the old one, or another thread does that and U only collects it:
//!
//! ```text
//!   R: (a) e = epoch               U: (e) current = new
//!      (b) seat = e, nest 1           (f) tag t = epoch; epoch = t + 1
//!      light barrier                  heavy barrier
//!      (c) p = current                (g) read seats
//!      (d) use p                      (h) free the old value if no seat with a nest shows t or less
//! ```
//!
//! - *R reads more than t at (a).* Then (a) reads what (f) or a later replacement wrote, so (e) happens before (c): p
//!   is not the old value.
//! - *R reads t or less, and (g) sees (b).* The value is not freed.
//! - *R reads t or less, and (g) does not see (b).* Then R passes the heavy barrier before (b), so (c) comes after (e).
//!   Or (g) sees that a later store ended the read: it is a release, so (d) happens before (h).
//!
//! # Whose a seat is
//!
//! ```text
//!   LEFT ──► CLAIMED ──► TAKEN ──► LEFT      a thread's own, until the thread ends
//!               └─────────────────► LEFT     for one read, of a thread that can have none of its own
//! ```
//!
//! A seat that is left with a nest has a guard that outlives its thread's own data, or was forgotten: nobody gets that
//! seat while the nest is there.

use std::ptr;
use std::sync::atomic::Ordering;

use super::primitive::{AtomicPtr, AtomicU8, AtomicU64, light_barrier};

/// The bits of a seat's word that count reads.
const NEST: u64 = EPOCH - 1;
/// One epoch, in a seat's word and in [`Seats::epoch`].
const EPOCH: u64 = 1 << 16;

/// Nobody's.
const LEFT: u8 = 0;
/// Some thread's, which has not decided what for.
const CLAIMED: u8 = 1;
/// A living thread's own.
const TAKEN: u8 = 2;

/// The seats of all threads, and the epoch.
pub(super) struct Seats {
    /// A multiple of [`EPOCH`]. Threads that retire a value add one epoch; threads that begin to read load it.
    epoch: AtomicU64,
    /// The newest seat, added by any thread. Seats are never freed: a guard may outlive everything but the process.
    newest: AtomicPtr<Seat>,
}

/// Where one thread shows that it reads. On cache lines of its own: two, since some CPUs fetch them in pairs.
#[repr(align(128))]
pub(super) struct Seat {
    /// Epoch and nest. Only the thread that has the seat, or guards on it, stores to it; collectors load it.
    word: AtomicU64,
    /// [`LEFT`], [`CLAIMED`] or [`TAKEN`]. A thread claims a seat that is left, by exchange; then it alone stores.
    state: AtomicU8,
    /// Written before the seat is shared.
    older: *const Seat,
}

// SAFETY: `older` is set before the seat is shared, and never changed; the rest is atomic.
unsafe impl Sync for Seat {}
// SAFETY: as above.
unsafe impl Send for Seat {}

/// Returns new seats, each left and without a nest: a page of them, which needs no allocator.
#[cfg(not(loom))]
fn room() -> &'static mut [Seat] {
    const BYTES: usize = 4096;
    match crate::memory::vec::leak_zeroed(BYTES) {
        // SAFETY: whole pages that nobody else has, aligned for seats. Zeros are seats: left, with a null pointer.
        Ok(start) => unsafe { std::slice::from_raw_parts_mut(start.cast().as_ptr(), BYTES / size_of::<Seat>()) },
        Err(_) => std::slice::from_mut(Box::leak(Box::new(Seat::new()))),
    }
}

/// loom's atomics are not made of zeros.
#[cfg(loom)]
fn room() -> &'static mut [Seat] {
    std::slice::from_mut(Box::leak(Box::new(Seat::new())))
}

impl Seats {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self { epoch: AtomicU64::new(EPOCH), newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// loom's atomics are not constants.
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self { epoch: AtomicU64::new(EPOCH), newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Claims a seat without a nest. The caller decides what for: [`Seat::take`] or [`Seat::give_up`].
    pub(super) fn claim(&self) -> &'static Seat {
        self.iter().find(|seat| seat.claim()).unwrap_or_else(|| self.add())
    }

    /// Adds seats, of which the caller gets one.
    fn add(&self) -> &'static Seat {
        let seats = room();
        let (oldest, first) = (seats.as_mut_ptr(), seats.len() - 1);
        for index in 0..first {
            seats[index + 1].older = &raw const seats[index];
        }
        seats[first].state = AtomicU8::new(CLAIMED);
        let newest_of_these = &raw mut seats[first];
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            // SAFETY: made above, and not shared yet.
            unsafe { (*oldest).older = newest };
            // Release, partner: the Acquire load in `iter`. Forbids that a collector sees the seats without their
            // fields.
            match self.newest.compare_exchange_weak(newest, newest_of_these, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(newer) => newest = newer,
            }
        }
        // SAFETY: seats are never freed.
        unsafe { &*newest_of_these }
    }

    /// Begins a new epoch. Returns the tag of what was withdrawn before.
    pub(super) fn advance(&self) -> u64 {
        // AcqRel: Release, partner: the Acquire load in `enter` ((f) → (a)). Acquire, so that all withdrawals of older
        // epochs precede this one.
        self.epoch.fetch_add(EPOCH, Ordering::AcqRel) / EPOCH
    }

    /// Returns the epoch of the oldest read that goes on; `u64::MAX` without any. Tells of what was tagged before the
    /// caller's last barrier on all threads.
    pub(super) fn oldest_read(&self) -> u64 {
        self.iter()
            // Acquire, partner: the Release stores of `enter` and `leave`. Forbids freeing before the last use.
            .map(|seat| seat.word.load(Ordering::Acquire))
            .filter(|word| word & NEST != 0)
            .map(|word| word / EPOCH)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Empties the seats that other threads have taken: in a forked child, whose only thread has `own`.
    pub(super) fn bereave(&self, own: *const Seat) {
        for seat in self.iter().filter(|seat| !ptr::eq(*seat, own)) {
            // Relaxed, here and below: no other thread exists. Claimed seats may be this thread's, interrupted.
            if seat.state.load(Ordering::Relaxed) == TAKEN {
                seat.word.store(0, Ordering::Relaxed);
                seat.state.store(LEFT, Ordering::Relaxed);
            }
        }
    }

    /// Returns how many seats there are.
    #[cfg(all(test, not(loom)))]
    pub(super) fn count(&self) -> usize {
        self.iter().count()
    }

    fn iter(&self) -> impl Iterator<Item = &'static Seat> {
        // Acquire, partner: the Release exchange in `add`.
        let mut next = self.newest.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: null, or a seat, which is never freed.
            let seat = unsafe { next.as_ref() }?;
            next = seat.older;
            Some(seat)
        })
    }
}

impl Seat {
    fn new() -> Self {
        Self { word: AtomicU64::new(0), state: AtomicU8::new(LEFT), older: ptr::null() }
    }

    /// Begins a read, unless the seat cannot count one more. Only for the seat's thread.
    #[inline]
    #[must_use]
    pub(super) fn enter(&self, seats: &Seats) -> bool {
        // Relaxed: this thread's. A signal handler in between ends the reads that it begins.
        let word = self.word.load(Ordering::Relaxed);
        if word & NEST != 0 {
            return self.enter_again(word);
        }
        // Acquire, partner: `advance`.
        let epoch = seats.epoch.load(Ordering::Acquire);
        // Release, partner: `oldest_read`. Forbids that a collector which sees a young read frees what this thread
        // used in an earlier one.
        self.word.store(epoch | 1, Ordering::Release);
        // Partner: the barrier on all threads before `oldest_read`. Forbids that (c) is done before (b) is seen.
        light_barrier();
        true
    }

    #[inline]
    fn enter_again(&self, word: u64) -> bool {
        let counts = word & NEST < NEST;
        // Release: as in `enter`. The outermost read's epoch stands for this one, too: it is older.
        self.word.store(word + u64::from(counts), Ordering::Release);
        counts
    }

    /// Ends a read that this thread has begun here.
    #[inline]
    pub(super) fn leave(&self) {
        let word = self.word.load(Ordering::Relaxed);
        debug_assert!(word & NEST != 0, "more reads have ended than begun");
        // Release, partner: the Acquire load in `oldest_read`. Forbids freeing before the last use.
        self.word.store(word - 1, Ordering::Release);
    }

    /// Returns whether a read that began at `tag` or before goes on here. Only for the seat's thread.
    pub(super) fn holds(&self, tag: u64) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        word & NEST != 0 && word / EPOCH <= tag
    }

    fn claim(&self) -> bool {
        // Relaxed, in the first load: a hint that saves the exchange. Acquire, partner: `give_up`. Forbids that the
        // last owner's stores come after ours.
        let left = self.state.load(Ordering::Relaxed) == LEFT
            && self.state.compare_exchange(LEFT, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // Acquire, partner: `leave`, perhaps after the seat was left.
        if left && self.word.load(Ordering::Acquire) & NEST != 0 {
            self.give_up();
            return false;
        }
        left
    }

    /// Makes a claimed seat its thread's own.
    pub(super) fn take(&self) {
        // Relaxed: only the thread itself, after a fork, asks what others have taken.
        self.state.store(TAKEN, Ordering::Relaxed);
    }

    /// Gives the seat up: to anybody, once it has no nest.
    pub(super) fn give_up(&self) {
        // Release, partner: the Acquire exchange in `claim`.
        self.state.store(LEFT, Ordering::Release);
    }
}

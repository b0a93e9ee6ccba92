//! Who may still be inside code that has been retired: epochs.
//!
//! A thread that runs code by address *pins* itself first: it writes the current epoch into its seat, and zero when it
//! leaves. A reclaimer collects what has been retired, tags it with the epoch, advances the epoch, makes every core
//! pass a barrier, and reads the seats. What was tagged with `t` may be reused when every pinned seat shows more than
//! `t`.
//!
//! # Why
//!
//! Thread P pins itself and then reads an address; thread U withdraws the address, so that nobody reads it any more,
//! and retires the code; X is the reclaimer.
//!
//! ```text
//!   P: (a) e = epoch                U: (e) address = none     X: (g) collect: sees (f)
//!      (b) seat = e                    (f) retire                (h) tag t = epoch; epoch = t + 1
//!      light barrier                                             heavy barrier
//!      (c) read address                                          (i) read seats
//!      (d) run the code
//! ```
//!
//! - *P read an epoch above t at (a).* Then (a) reads what (h) or a later reclaim wrote; with (e) → (f) → (g) → (h) →
//!   (a) → (c), (c) does not see the address.
//! - *P read t or less, and (i) sees the seat.* X waits.
//! - *P read t or less, and (i) does not see (b).* Then P passed the heavy barrier before (b), so (c) comes after it,
//!   and with it after (e): (c) does not see the address.
//!
//! The heavy barrier is a core synchronisation, the light one a hint to the compiler (see `primitive`): pinning costs
//! two stores, two loads and no fence.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use palimpsest_sys::ForkDetector;

use crate::primitive::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, light_barrier};

/// What an idle seat shows; epochs begin above it.
const IDLE: u64 = 0;

/// The epoch, and a seat for each participating thread.
pub(crate) struct Epochs {
    /// Reclaimers add to it; threads that pin themselves read it.
    epoch: AtomicU64,
    /// The newest seat, added by any thread; seats are never freed before `self`.
    seats: AtomicPtr<Seat>,
}

/// One thread's seat.
pub(crate) struct Seat {
    /// The epoch in which its thread is pinned, or [`IDLE`]. The thread that has taken the seat writes it; reclaimers
    /// read.
    pinned: AtomicU64,
    /// How often its thread is pinned; only that thread reads and writes it.
    depth: AtomicU32,
    /// A thread that wants the seat sets it, by exchange; the one that has the seat clears it.
    taken: AtomicBool,
    /// Written before the seat is shared.
    next: *const Seat,
}

// SAFETY: `next` is set before the seat is shared and never changed; the rest is atomic.
unsafe impl Sync for Seat {}
// SAFETY: as above.
unsafe impl Send for Seat {}

impl Epochs {
    pub(crate) fn new() -> Self {
        Self { epoch: AtomicU64::new(IDLE + 1), seats: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Takes a seat that nobody else uses until [`Seat::leave`].
    pub(crate) fn take_seat(&self) -> &Seat {
        if let Some(seat) = self.seats().find(|seat| {
            // Acquire, partner: `leave`. Forbids that the old owner's last store to the seat comes after ours.
            seat.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        }) {
            return seat;
        }
        let seat = Box::into_raw(Box::new(Seat {
            pinned: AtomicU64::new(IDLE),
            depth: AtomicU32::new(0),
            taken: AtomicBool::new(true),
            next: ptr::null(),
        }));
        let mut head = self.seats.load(Ordering::Relaxed);
        loop {
            // SAFETY: not shared yet.
            unsafe { (*seat).next = head };
            // Release, partner: the Acquire load in `seats`. Forbids a reader that sees the seat without its fields.
            match self.seats.compare_exchange_weak(head, seat, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(newer) => head = newer,
            }
        }
        // SAFETY: it lives as long as `self`.
        unsafe { &*seat }
    }

    /// Begins a new epoch. Returns the tag for what has been collected so far.
    pub(crate) fn advance(&self) -> u64 {
        // AcqRel: Release, partner: the Acquire load in `pin` ((h) → (a)).
        self.epoch.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns the oldest epoch in which a thread is pinned; `u64::MAX` if none is. There must have been a heavy
    /// barrier since [`advance`](Self::advance).
    pub(crate) fn oldest_pin(&self) -> u64 {
        self.seats()
            // Acquire, partner: the Release stores in `unpin` and `pin`. Forbids overwriting the code before its last
            // run.
            .map(|seat| seat.pinned.load(Ordering::Acquire))
            .filter(|&pinned| pinned != IDLE)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Returns how many threads are pinned.
    pub(crate) fn pinned(&self) -> usize {
        // Relaxed: a statistic.
        self.seats().filter(|seat| seat.pinned.load(Ordering::Relaxed) != IDLE).count()
    }

    fn seats(&self) -> impl Iterator<Item = &Seat> {
        // Acquire, partner: the Release exchange in `take_seat`.
        let mut next = self.seats.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: null or a seat, which lives as long as `self`.
            let seat = unsafe { next.as_ref() }?;
            next = seat.next;
            Some(seat)
        })
    }
}

impl Seat {
    /// Pins the seat's thread. Only that thread may call it.
    pub(crate) fn pin(&self, epochs: &Epochs) {
        // Relaxed, here and below: `depth` belongs to one thread.
        let depth = self.depth.load(Ordering::Relaxed);
        if depth == u32::MAX {
            // Four thousand million pins were forgotten; wrapping around would unpin a pinned thread.
            std::process::abort();
        }
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            // Acquire, partner: `advance`.
            let epoch = epochs.epoch.load(Ordering::Acquire);
            // Release, partner: the Acquire load in `oldest_pin`. Forbids that a reclaimer which sees a young pin
            // overwrites code before this thread's last run under an earlier pin. The barrier orders it before later
            // accesses.
            self.pinned.store(epoch, Ordering::Release);
            // Partner: the heavy barrier between `advance` and `oldest_pin`.
            light_barrier();
        }
    }

    /// Undoes one [`pin`](Self::pin). Only the seat's thread may call it.
    pub(crate) fn unpin(&self) {
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            // Release, partner: the Acquire load in `oldest_pin`.
            self.pinned.store(IDLE, Ordering::Release);
        }
    }

    /// Gives up the seat. Its thread is not pinned.
    pub(crate) fn leave(&self) {
        // Release, partner: the Acquire exchange in `take_seat`.
        self.taken.store(false, Ordering::Release);
    }
}

impl Drop for Epochs {
    fn drop(&mut self) {
        let mut next = self.seats.load(Ordering::Relaxed);
        while !next.is_null() {
            // SAFETY: made by `Box::into_raw` in `take_seat`; each is visited once, and references end with `self`.
            let seat = unsafe { Box::from_raw(next) };
            next = seat.next.cast_mut();
        }
    }
}

/// Epochs of the threads of one process.
pub(super) struct ProcessEpochs {
    process: ForkDetector,
    pub(super) epochs: Epochs,
    _parent: Option<Arc<Self>>,
}

impl ProcessEpochs {
    /// Creates the epochs of this process; keeps `parent` as long.
    pub(super) fn new(parent: Option<Arc<Self>>) -> Self {
        Self { process: ForkDetector::new(), epochs: Epochs::new(), _parent: parent }
    }

    /// Returns whether they were made in this process, and not in one of its ancestors.
    pub(super) fn are_own(&self) -> bool {
        self.process.is_same_process()
    }
}

/// The epochs of whichever process asks: a forked child gets new ones.
///
/// Every thread that has packs may read the pointer at any time. Threads of a forked child that find the parent's
/// epochs there replace it, by one exchange. Several packs may share one value: a pinned thread is pinned for all of
/// them.
pub(super) struct EpochsByProcess {
    /// # Invariants
    ///
    /// 1. It comes from `Arc::into_raw`, as did its earlier values, which live as long.
    current: AtomicPtr<ProcessEpochs>,
}

impl Default for EpochsByProcess {
    fn default() -> Self {
        Self { current: AtomicPtr::new(Arc::into_raw(Arc::new(ProcessEpochs::new(None))).cast_mut()) }
    }
}

impl EpochsByProcess {
    /// Returns the epochs of this process, made now if the process was forked.
    #[inline]
    pub(super) fn own(&self) -> &ProcessEpochs {
        // Acquire, partner: the Release exchange in `renew`.
        let known = self.current.load(Ordering::Acquire);
        // SAFETY: invariant 1.
        let known = unsafe { &*known };
        if known.are_own() { known } else { self.renew(known) }
    }

    /// Returns another reference to this process's epochs.
    pub(super) fn share(&self) -> Arc<ProcessEpochs> {
        Self::another(self.own())
    }

    #[cold]
    fn renew(&self, known: &ProcessEpochs) -> &ProcessEpochs {
        let own = Arc::into_raw(Arc::new(ProcessEpochs::new(Some(Self::another(known))))).cast_mut();
        let old = ptr::from_ref(known).cast_mut();
        // Release, partner: the Acquire load in `own`. Acquire on failure: the winner's epochs are read.
        let current = match self.current.compare_exchange(old, own, Ordering::Release, Ordering::Acquire) {
            Ok(_) => {
                // SAFETY: the reference that this pointer stood for; the new epochs hold another one.
                unsafe { Arc::decrement_strong_count(old) };
                own
            }
            Err(winner) => {
                // SAFETY: made above, and nobody has seen it.
                unsafe { Arc::decrement_strong_count(own) };
                winner
            }
        };
        // SAFETY: invariant 1.
        unsafe { &*current }
    }

    /// Returns another reference to epochs of this value.
    fn another(epochs: &ProcessEpochs) -> Arc<ProcessEpochs> {
        // SAFETY: invariant 1, since only `own` lends them.
        unsafe { Arc::increment_strong_count(epochs) };
        // SAFETY: the reference that was just added.
        unsafe { Arc::from_raw(epochs) }
    }
}

impl Drop for EpochsByProcess {
    fn drop(&mut self) {
        // Relaxed: nobody else has this value any more.
        let current = self.current.load(Ordering::Relaxed);
        // SAFETY: invariant 1, and nobody can use it any more.
        unsafe { Arc::decrement_strong_count(current) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_pin_holds_what_is_tagged_later_until_the_outermost_unpin() {
        let epochs = Epochs::new();
        let seat = epochs.take_seat();
        seat.pin(&epochs);
        seat.pin(&epochs);
        let tag = epochs.advance();
        assert!(epochs.oldest_pin() <= tag);
        seat.unpin();
        assert!(epochs.oldest_pin() <= tag);
        seat.unpin();
        assert!(epochs.oldest_pin() > tag);
        seat.pin(&epochs);
        assert!(epochs.oldest_pin() > tag);
        seat.unpin();
    }

    #[test]
    fn seats_are_reused() {
        let epochs = Epochs::new();
        let first = epochs.take_seat();
        assert!(!ptr::eq(first, epochs.take_seat()));
        first.leave();
        assert!(ptr::eq(first, epochs.take_seat()));
    }

    #[test]
    fn the_oldest_of_several_pins_counts() {
        let epochs = Epochs::new();
        let (old, young) = (epochs.take_seat(), epochs.take_seat());
        old.pin(&epochs);
        let tag = epochs.advance();
        young.pin(&epochs);
        assert!(epochs.oldest_pin() <= tag);
        assert_eq!(epochs.pinned(), 2);
        old.unpin();
        assert!(epochs.oldest_pin() > tag);
        young.unpin();
        assert_eq!((epochs.oldest_pin(), epochs.pinned()), (u64::MAX, 0));
    }
}

//! Threads that run code by address.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::epoch::{ProcessEpochs, Seat};
use super::root::Root;

/// A thread's part in the reclaiming of code ([`Packs::participant`](super::Packs::participant)).
///
/// Registering costs a few hundred nanoseconds once, [pinning](Self::pin) one or two each time. Threads that call
/// programs only while they borrow the [`Program`](super::Program) need not participate.
pub struct Participant {
    root: Arc<Root>,
    /// The epochs of this process and the seat in them. In a forked child both are replaced at the next pin.
    ///
    /// # Invariants
    ///
    /// 1. Both live as long as `root`, and the seat was taken by this value.
    seat: Cell<(*const ProcessEpochs, *const Seat)>,
    /// Seats belong to one thread.
    _not_send: PhantomData<*const ()>,
}

impl Participant {
    pub(super) fn new(root: Arc<Root>) -> Self {
        let own = root.epochs();
        let seat = Cell::new((ptr::from_ref(own), ptr::from_ref(own.epochs.take_seat())));
        Self { root, seat, _not_send: PhantomData }
    }

    /// Declares that this thread may run code by address from now on, until the result is dropped. May be nested.
    ///
    /// Code whose address is read after this call is not overwritten before the result is dropped, even if it is
    /// retired meanwhile. A fork does not inherit the pin: pin again in the child (what it inherited is never
    /// overwritten there). Do not call it from signal handlers.
    ///
    /// A thread that stays pinned keeps all retired programs from being reclaimed: in a loop, pin once per round.
    #[inline]
    pub fn pin(&self) -> Pinned<'_> {
        let own = self.root.epochs();
        let (known, mut seat) = self.seat.get();
        if !ptr::eq(known, own) {
            seat = self.move_to(own);
        }
        // SAFETY: invariant 1.
        let seat = unsafe { &*seat };
        seat.pin(&own.epochs);
        Pinned { seat, _participant: PhantomData }
    }

    /// Takes a seat among the threads of a forked child. Leaves the old one as it is: the child never overwrites its
    /// parent's code.
    #[cold]
    fn move_to(&self, own: &ProcessEpochs) -> *const Seat {
        let seat: *const Seat = own.epochs.take_seat();
        self.seat.set((own, seat));
        seat
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        let (_, seat) = self.seat.get();
        // SAFETY: invariant 1. Every `Pinned` borrows `self`, so the thread is not pinned, unless one was forgotten:
        // then the seat stays pinned for its next owner, which is safe.
        unsafe { &*seat }.leave();
    }
}

/// While it lives, its thread may run code by address. See [`Participant::pin`].
#[must_use = "the thread is pinned only while this value lives"]
pub struct Pinned<'p> {
    seat: &'p Seat,
    _participant: PhantomData<*const ()>,
}

impl Pinned<'_> {
    /// Returns the seat that is pinned.
    pub(super) fn seat(&self) -> &Seat {
        self.seat
    }
}

impl Drop for Pinned<'_> {
    #[inline]
    fn drop(&mut self) {
        self.seat.unpin();
    }
}

impl fmt::Debug for Participant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Participant").finish_non_exhaustive()
    }
}

impl fmt::Debug for Pinned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").finish_non_exhaustive()
    }
}

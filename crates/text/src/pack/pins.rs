//! Pins that are counted instead of borrowed.

use std::cell::RefCell;
use std::fmt;
use std::ptr;

use super::epoch::Seat;
use super::handle::Packs;
use super::participant::{Participant, Pinned};

/// A thread's pins, counted: for hosts, such as those in C, that call a function at the beginning and at the end of a
/// stretch and hold no value in between. Otherwise like [`Participant`].
pub struct Pins {
    /// The seat of each pin: the first pin in a forked child moves to a seat of the child.
    ///
    /// # Invariants
    ///
    /// 1. Seats of `participant`; each is pinned as often as it is listed here.
    seats: RefCell<Vec<*const Seat>>,
    participant: Participant,
}

/// The thread has no pin to take back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this thread is not pinned: every unpin takes back one pin")]
pub struct NotPinned;

impl Packs {
    /// Registers the calling thread as one that runs code by address, with pins that are counted.
    pub fn pins(&self) -> Pins {
        Pins { seats: RefCell::default(), participant: self.participant() }
    }
}

impl Pins {
    /// Pins the thread: it may run code by address until [`unpin`](Self::unpin) was called as often. See
    /// [`Participant::pin`].
    pub fn pin(&self) {
        let seat = self.participant.pin().into_seat();
        self.seats.borrow_mut().push(seat);
    }

    /// Takes one pin back.
    ///
    /// # Errors
    ///
    /// [`NotPinned`].
    pub fn unpin(&self) -> Result<(), NotPinned> {
        let seat = self.seats.borrow_mut().pop().ok_or(NotPinned)?;
        // SAFETY: invariant 1: the seat lives as long as the participant.
        unsafe { &*seat }.unpin();
        Ok(())
    }

    /// Returns the number of pins.
    pub fn count(&self) -> usize {
        self.seats.borrow().len()
    }
}

impl Pinned<'_> {
    /// Ends the borrow, but leaves the pin in force, and returns its seat.
    fn into_seat(self) -> *const Seat {
        let seat = ptr::from_ref(self.seat());
        std::mem::forget(self);
        seat
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        while self.unpin().is_ok() {}
    }
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pins").field("count", &self.count()).finish_non_exhaustive()
    }
}

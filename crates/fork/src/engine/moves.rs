//! Who is moving memory of which nothing is frozen. Such threads need not wait for each other, and a thread that a
//! collector has stopped in the middle of a move holds up only who wants to freeze.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::waiting::{Waiting, pause};

/// Most that move at a time.
const PLACES: usize = 16;

/// The threads that move, each with a place of its own.
#[derive(Debug, Default)]
pub(super) struct Moves {
    places: [Place; PLACES],
}

#[derive(Debug, Default)]
struct Place {
    /// The thread pointer of who moves, 0 for nobody.
    mover: AtomicUsize,
    /// Rises with each move. Only the mover writes it.
    begun: AtomicUsize,
}

/// A move of the calling thread; ends when dropped.
#[derive(Debug)]
pub(crate) struct Move<'a> {
    place: &'a Place,
    mover: usize,
}

impl Moves {
    pub(super) const fn new() -> Self {
        Self { places: [const { Place { mover: AtomicUsize::new(0), begun: AtomicUsize::new(0) } }; PLACES] }
    }

    /// Takes a place for a move of this thread; `None` if there is none.
    pub(super) fn begin(&self, own: usize) -> Option<Move<'_>> {
        // Relaxed: the caller has a fence before it looks at anything.
        let is_taken = |place: &Place| place.mover.compare_exchange(0, own, Ordering::Relaxed, Ordering::Relaxed);
        let place = self.places.iter().find(|place| is_taken(place).is_ok())?;
        place.begun.fetch_add(1, Ordering::Relaxed);
        Some(Move { place, mover: own })
    }

    /// Waits until nobody moves, for so many looks at each place. Returns false if somebody still does, or if this
    /// thread has interrupted a move of its own; but `is_lost` may say, of looks, place, count and mover, that a move
    /// does not end, and then it is over.
    pub(super) fn wait(&self, own: usize, looks: usize, is_lost: impl Fn(usize, usize, usize, usize) -> bool) -> bool {
        for (index, place) in self.places.iter().enumerate() {
            for look in 0.. {
                // Acquire, partner: the Release in `drop`. Forbids that memory is frozen where it was before the move.
                let mover = place.mover.load(Ordering::Acquire);
                if mover == 0 {
                    break;
                }
                if mover == own || look == looks {
                    let begun = place.begun.load(Ordering::Relaxed);
                    if !is_lost(look, index, begun, mover) {
                        return false;
                    }
                    let _ = place.mover.compare_exchange(mover, 0, Ordering::Acquire, Ordering::Relaxed);
                    break;
                }
                pause(look, Waiting::Asleep);
            }
        }
        true
    }

    /// Ends, in a child that was forked just now, moves of threads that are not there. Asks who the thread is only if
    /// there are some.
    #[inline]
    pub(super) fn end_in_child(&self, own: impl Fn() -> usize) {
        for place in &self.places {
            let mover = place.mover.load(Ordering::Relaxed);
            // Relaxed: there is one thread.
            if mover != 0 && mover != own() {
                place.mover.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Move<'_> {
    fn drop(&mut self) {
        // Unless it was taken for lost. Release, partner: the Acquire in `wait`.
        let _ = self.place.mover.compare_exchange(self.mover, 0, Ordering::Release, Ordering::Relaxed);
    }
}

//! Seats, which one at a time has: the consumer's of a ring, a producer's. In a child of `fork` they are free for
//! whoever asks, since the child may lack the thread that has one.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::process::generation;

/// The generation of the process in which somebody has it, or 0.
#[derive(Debug)]
pub(super) struct Seat(AtomicU32);

/// What becomes in a child of a seat that was taken in its parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inherited {
    /// It is free.
    IsFree,
    /// It stays taken: the parent goes on in the same memory.
    IsTaken,
}

impl Seat {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes the seat; `None` while another has it.
    pub(super) fn take(&self, inherited: Inherited) -> Option<Seated> {
        let here = generation();
        // Acquire: with the release of `give_back`; without it, whoever comes next could see things as they were before
        // the last one. Of who is not there the fork has brought all.
        let take = |free| self.0.compare_exchange(free, here, Ordering::Acquire, Ordering::Relaxed);
        let taken = match take(0) {
            Err(other) if other != here && inherited == Inherited::IsFree => take(other),
            taken => taken,
        };
        taken.ok().map(|_| Seated { generation: here, inherited })
    }

    /// Returns whether `seated` still has it. In a child that has inherited it, makes it the child's, unless another
    /// has taken it there, or it stays the parent's.
    pub(super) fn keeps(&self, seated: &mut Seated) -> bool {
        let here = generation();
        if seated.generation == here {
            return true;
        }
        if seated.is_the_parents() {
            return false;
        }
        // Relaxed: what `seated` did before is this thread's, or the fork has brought it.
        let is_kept = self.0.compare_exchange(seated.generation, here, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if is_kept {
            seated.generation = here;
        }
        is_kept
    }

    /// Whether another has taken it over from `seated`, or it has stayed the parent's.
    pub(super) fn is_lost(&self, seated: &Seated) -> bool {
        // Relaxed: whoever has taken it over is another thread of a child, which is asked for order by nobody.
        seated.is_the_parents() || self.0.load(Ordering::Relaxed) != seated.generation
    }

    /// Gives it back, unless another has taken it over, or it has stayed the parent's.
    pub(super) fn give_back(&self, seated: &Seated) {
        if !seated.is_the_parents() {
            // Release: with the acquire of `take`.
            let _ = self.0.compare_exchange(seated.generation, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Somebody has a seat.
#[derive(Clone, Debug)]
pub(crate) struct Seated {
    /// That in which it was taken.
    generation: u32,
    inherited: Inherited,
}

impl Seated {
    /// Whether this process is a child that has inherited it, and does not get it.
    fn is_the_parents(&self) -> bool {
        self.inherited == Inherited::IsTaken && self.generation != generation()
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use crate::map::tests::beside;

    #[test]
    fn a_seat_is_for_one_in_each_process() {
        use Inherited::{IsFree, IsTaken};
        let seat = Seat::new();
        let mut first = seat.take(IsFree).expect("nobody has it");
        assert!(seat.take(IsFree).is_none() && seat.keeps(&mut first));
        let one_at_a_time = || {
            let second = seat.take(IsTaken).is_none().then(|| seat.take(IsFree)).flatten();
            let is_alone = seat.take(IsFree).is_none();
            second.is_some_and(|second| {
                // Where the one that forked has it, which is late.
                let is_late = !seat.keeps(&mut first);
                seat.give_back(&first);
                let is_kept = seat.take(IsFree).is_none();
                seat.give_back(&second);
                is_alone && is_late && is_kept && seat.take(IsFree).is_some()
            })
        };
        beside(|| Ok::<_, ()>(()), one_at_a_time);
        // The one that forked goes on.
        let goes_on = || {
            let is_kept = seat.keeps(&mut first) && seat.keeps(&mut first) && seat.take(IsFree).is_none();
            seat.give_back(&first);
            is_kept && seat.take(IsTaken).is_some()
        };
        beside(|| Ok::<_, ()>(()), goes_on);
        seat.give_back(&first);
        assert!(seat.take(IsTaken).is_some());
    }
}

//! Turns of threads: a lock that knows who has it. A thread is refused it while it has it, instead of waiting for
//! itself, and nobody waits for a thread that is not there.

use core::sync::atomic::{AtomicU32, Ordering};

use super::OpError;
use super::lock::{Holder, Owner};
use super::pause::Wait;
use crate::holding::{Holding, Level};

/// The number of whoever has a turn or is about to, or 0.
#[derive(Debug)]
pub(crate) struct Turns(AtomicU32);

/// What becomes of the turn of a thread that this process does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Orphan {
    /// It lasts: what the thread was changing may be half changed.
    Lasts,
    /// Whoever asks next takes it over.
    IsTakenOver,
}

impl Turns {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Takes a turn; waits while another thread has one, as far as `holding` allows.
    ///
    /// # Errors
    ///
    /// [`OpError::Deadlock`] if this thread has one, or may not wait. [`OpError::Abandoned`] in a child whose parent
    /// had one when it forked, if such a turn lasts.
    pub(crate) fn take(&self, orphan: Orphan) -> Result<Turn<'_>, OpError> {
        let (mine, holding) = (Owner::here(super::this_cpu).number(), Holding::begin(Level::Turn));
        let (mut expected, mut wait) = (0, Wait::begin());
        loop {
            // Acquire: with the release of `Turn::drop`; without it, this thread could see things as they were before
            // the last turn. Of a thread that is not there the fork has brought all.
            let Err(owner) = self.0.compare_exchange_weak(expected, mine, Ordering::Acquire, Ordering::Relaxed) else {
                return Ok(Turn { owner: &self.0, mine, _holding: holding });
            };
            expected = 0;
            // By chance, or given back just now.
            if owner == 0 {
                continue;
            }
            match Holder::of(owner) {
                Holder::Interrupted => return Err(OpError::Deadlock),
                Holder::Gone if orphan == Orphan::IsTakenOver => expected = owner,
                Holder::Gone => return Err(OpError::Abandoned),
                Holder::Runs if wait.again(holding.may_wait()) => {}
                Holder::Runs => return Err(OpError::Deadlock),
            }
        }
    }
}

/// A turn, until it is dropped.
#[must_use = "it ends when it is dropped"]
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    owner: &'a AtomicU32,
    mine: u32,
    /// Dropped behind the owner.
    _holding: Holding,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: with the acquire of `take`. Not a store: if the process was forked in the middle of the turn, it may
        // be another thread's in the child by now.
        let _ = self.owner.compare_exchange(self.mine, 0, Ordering::Release, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::tests::{beside, in_the_middle};

    #[test]
    fn a_turn_that_was_taken_over_is_not_given_back_by_who_had_it() {
        let turns = Turns::new();
        let forked = turns.take(Orphan::Lasts).expect("it is free");
        // As in a child that was forked in the middle of the turn.
        turns.0.store(0, Ordering::Relaxed);
        std::thread::scope(|scope| {
            let (taken, is_taken) = std::sync::mpsc::channel();
            let (done, is_done) = std::sync::mpsc::channel::<()>();
            let turns = &turns;
            scope.spawn(move || {
                let turn = turns.take(Orphan::IsTakenOver).expect("it is free");
                taken.send(turn.mine).expect("somebody listens");
                let _ = is_done.recv();
            });
            let theirs = is_taken.recv().expect("it is taken");
            drop(forked);
            assert_eq!(turns.0.load(Ordering::Relaxed), theirs, "the other thread still has it");
            drop(done);
        });
        assert!(turns.take(Orphan::Lasts).is_ok(), "it was given back");
    }

    #[test]
    fn turns_of_threads_that_are_not_there_last_or_are_taken_over() {
        let turns = Turns::new();
        let again = turns.take(Orphan::Lasts).map(|_turn| turns.take(Orphan::IsTakenOver).err());
        assert_eq!(again, Ok(Some(OpError::Deadlock)));
        // One thread at a time in the child, too.
        let one_at_a_time = || {
            let lasts = turns.take(Orphan::Lasts).err() == Some(OpError::Abandoned);
            let taken = turns.take(Orphan::IsTakenOver).map(|_turn| turns.take(Orphan::IsTakenOver).err());
            lasts && taken == Ok(Some(OpError::Deadlock)) && turns.take(Orphan::Lasts).is_ok()
        };
        beside(|| turns.take(Orphan::Lasts), one_at_a_time);
        assert!(turns.take(Orphan::Lasts).is_ok(), "the parent's was given back");
    }

    #[test]
    fn who_may_not_wait_is_refused_a_turn() {
        let turns = Turns::new();
        let hold = |is_held: &dyn Fn()| {
            let _turn = turns.take(Orphan::Lasts).expect("it is free");
            is_held();
        };
        // As a signal handler that has interrupted another turn.
        let other = Turns::new();
        in_the_middle(hold, || {
            let _turn = other.take(Orphan::Lasts).expect("it is free");
            assert_eq!(turns.take(Orphan::IsTakenOver).err(), Some(OpError::Deadlock));
        });
        assert!(turns.take(Orphan::Lasts).is_ok());
    }
}

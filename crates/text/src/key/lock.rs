//! The lock in each key.
//!
//! It lies in the key and not in the library, as several copies of the library may switch one key. Its word is zero, or
//! names the thread that holds it. The name includes the process, so that a forked child recognises a holder that is
//! not among its own threads, and takes the lock over. Such a word stays until the branches are known again: also a
//! switch that could only write some of them leaves one ([`Held::unsettle`]).

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{hint, thread};

use palimpsest_sys::Caller;

/// The lock, held until this is dropped.
#[derive(Debug)]
pub(super) struct Held<'l> {
    word: &'l AtomicU64,
    /// Whether it was taken over from a switch that has not ended: of a process that was forked in the middle, or of
    /// one that could only write some branches.
    pub(super) inherited: Inherited,
    /// What `drop` leaves.
    leaves: u64,
}

/// Names the thread of no process: a holder that everybody takes the lock over from.
const NOBODY: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inherited {
    No,
    Yes,
}

/// The calling thread holds the lock already.
#[derive(Debug)]
pub(super) struct Reentered;

impl<'l> Held<'l> {
    /// Waits for the lock. Callers take several in the order of their addresses.
    pub(super) fn take(word: &'l AtomicU64, caller: Caller) -> Result<Self, Reentered> {
        const SPINS: u32 = 64;
        let mut tries = 0;
        loop {
            // Relaxed: only compared; the exchange orders.
            let present = word.load(Ordering::Relaxed);
            let inherited = match NonZeroU64::new(present).map(Caller::from_word) {
                None => Inherited::No,
                Some(holder) if holder.is_same_thread(caller) => return Err(Reentered),
                Some(holder) if !holder.is_same_process(caller) => Inherited::Yes,
                Some(_) => {
                    tries += 1;
                    if tries < SPINS {
                        hint::spin_loop();
                    } else {
                        thread::yield_now();
                    }
                    continue;
                }
            };
            // Acquire, partner: the Release in `drop`. Forbids reading the key's fields as they were before the last
            // holder's changes. Relaxed on failure: the loop looks again.
            let taken =
                word.compare_exchange_weak(present, caller.to_word().get(), Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                // Not the word itself: its process is gone one day, and another one gets the number.
                let leaves = if inherited == Inherited::Yes { NOBODY } else { 0 };
                return Ok(Self { word, inherited, leaves });
            }
        }
    }

    /// Notes that all branches are as the key says.
    pub(super) const fn settle(&mut self) {
        self.leaves = 0;
    }

    /// Notes that some branches may not be as the key says: whoever takes the lock next looks at each.
    pub(super) const fn unsettle(&mut self) {
        self.leaves = NOBODY;
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Release, partner: the Acquire in `take`.
        self.word.store(self.leaves, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn one_thread_at_a_time() {
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 10_000 };
        let (word, plain) = (AtomicU64::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let held = Held::take(&word, Caller::current()).unwrap();
                        assert_eq!(held.inherited, Inherited::No);
                        // Two steps, which only the lock makes atomic.
                        let seen = plain.load(Ordering::Relaxed);
                        plain.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(plain.into_inner(), 3 * ROUNDS);
    }

    #[test]
    fn the_holder_itself_is_told() {
        let word = AtomicU64::new(0);
        let held = Held::take(&word, Caller::current()).unwrap();
        Held::take(&word, Caller::current()).unwrap_err();
        drop(held);
        Held::take(&word, Caller::current()).unwrap();
    }

    #[test]
    fn a_holder_in_another_process_is_no_holder() {
        let gone = Caller::from_word(NonZeroU64::new(1 << 32 | 1).unwrap());
        let word = AtomicU64::new(gone.to_word().get());
        // Until somebody has settled it.
        assert_eq!(Held::take(&word, Caller::current()).unwrap().inherited, Inherited::Yes);
        let mut held = Held::take(&word, Caller::current()).unwrap();
        assert_eq!(held.inherited, Inherited::Yes);
        held.settle();
        drop(held);
        assert_eq!(Held::take(&word, Caller::current()).unwrap().inherited, Inherited::No);
    }

    #[test]
    fn a_switch_that_wrote_some_branches_is_taken_over_by_the_next() {
        let word = AtomicU64::new(0);
        Held::take(&word, Caller::current()).unwrap().unsettle();
        let mut held = Held::take(&word, Caller::current()).unwrap();
        assert_eq!(held.inherited, Inherited::Yes);
        held.settle();
        drop(held);
        assert_eq!(word.into_inner(), 0);
    }
}

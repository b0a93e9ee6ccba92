//! *Turns*: one thread at a time gives rights to frozen memory. Otherwise a guard that has read the map could map new
//! memory with rights that another thread has taken away since. The kernel makes both calls whole, so that the rights
//! of an `mprotect` stay, whichever of the two comes first.
//!
//! A turn lasts from the look at the map to the mapping that follows from it, or from a system call to its note in the
//! map. It must cost nothing, need no system call of its own (a filter may forbid it), and end whatever happens:
//!
//! * A signal handler that interrupts a turn of its own thread does not wait for it: it takes a turn *within*, and the
//!   interrupted work is done again ([`Rights::alone`]).
//! * A turn whose holder does not go on is taken from it after a while: the holder is a thread that a forked child does
//!   not have, or one that has jumped out of such a handler. What it was about to note is not known, so that the map is
//!   unsure there. A holder that was only slow then works at the same time as its successor.
//! * A holder may be held still by a freeze. So nothing that a freeze or a thaw does takes a turn.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use palimpsest_sys::threads::own::thread_pointer;

use super::span::Span;

/// How often a thread looks at a turn before it sleeps between looks.
const SPINS: usize = 64;
/// How often it looks, asleep in between, before it takes a turn from a holder that does not go on: for at least a
/// second.
const NAPS: usize = 10_000;
/// The same for a thread that must not ask the kernel to let it sleep.
const SPINS_AWAKE: usize = 1 << 24;
const NAP_NANOSECONDS: i64 = 100_000;

/// Whose turn it is. Zeroed memory is valid: nobody's.
#[derive(Debug, Default)]
pub(crate) struct Rights {
    /// The holder's thread pointer, 0 for nobody.
    holder: AtomicUsize,
    /// Rises with each turn, so that who waits sees that turns go on. Only the holder writes it.
    turns: AtomicUsize,
    /// Whether a handler took a turn within the present one. The holder's thread writes it.
    is_disturbed: AtomicBool,
    /// Where the holder makes a system call and then notes it; empty if it does not. The holder writes it.
    noting: [AtomicUsize; 2],
}

/// How a thread waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiting {
    /// With naps.
    Asleep,
    /// Without a system call.
    Awake,
    /// Hardly.
    #[cfg(test)]
    Briefly,
}

impl Waiting {
    /// How often a thread looks at a turn that does not end.
    const fn looks(self) -> usize {
        match self {
            Self::Asleep => SPINS + NAPS,
            Self::Awake => SPINS_AWAKE,
            #[cfg(test)]
            Self::Briefly => SPINS,
        }
    }
}

/// The calling thread's turn; ends when dropped.
pub(crate) struct Turn<'a> {
    rights: &'a Rights,
    /// The holder; `None` within another turn of the same thread.
    holder: Option<usize>,
}

/// How often any thread of a test has waited.
#[cfg(test)]
pub(crate) static WAITED: AtomicUsize = AtomicUsize::new(0);

impl Rights {
    /// Waits for a turn. Who interrupted one of the same thread gets one within. Calls `doubt` with memory of which a
    /// lost holder has noted nothing.
    pub(crate) fn take(&self, waiting: Waiting, doubt: impl FnOnce(Span)) -> Turn<'_> {
        let own = thread_pointer();
        let (mut looks, mut turns) = (0, self.turns.load(Ordering::Relaxed));
        // Acquire, partner: the Release in `drop`. Forbids looking at the map as it was before the last turn.
        while let Err(holder) = self.holder.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            if holder == own {
                self.is_disturbed.store(true, Ordering::Relaxed);
                return Turn { rights: self, holder: None };
            }
            let now = self.turns.load(Ordering::Relaxed);
            (looks, turns) = if now == turns { (looks + 1, turns) } else { (0, now) };
            // Acquire: as above, if the holder has done something after all.
            if looks >= waiting.looks()
                && self.holder.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                doubt(self.noting());
                break;
            }
            #[cfg(test)]
            WAITED.fetch_add(1, Ordering::Relaxed);
            if waiting == Waiting::Asleep && looks >= SPINS {
                let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_NANOSECONDS };
                // Interrupted or not, it looks again.
                let _ = rustix::thread::nanosleep(&pause);
            } else {
                std::hint::spin_loop();
            }
        }
        // Relaxed, both: who waits only compares; a handler of this thread comes before or after. One that comes before
        // has disturbed nothing.
        self.turns.fetch_add(1, Ordering::Relaxed);
        self.is_disturbed.store(false, Ordering::Relaxed);
        self.will_note(Span::default());
        Turn { rights: self, holder: Some(own) }
    }

    fn noting(&self) -> Span {
        // Relaxed, as in `will_note`: read after the exchange that took the turn, or in a child. A lost holder's memory
        // may be missing for one that is not lost, but slow.
        let [start, end] = self.noting.each_ref().map(|bound| bound.load(Ordering::Relaxed));
        Span::new(start, end)
    }

    fn will_note(&self, span: Span) {
        self.noting[0].store(span.start, Ordering::Relaxed);
        self.noting[1].store(span.end, Ordering::Relaxed);
    }

    /// Whether a thread other than this is in the middle of a turn.
    pub(crate) fn is_others_turn(&self) -> bool {
        // Acquire, partner: the Release in `drop`, if the turn is over.
        let holder = self.holder.load(Ordering::Acquire);
        holder != 0 && holder != thread_pointer()
    }

    /// Ends, in a child that was forked just now, the turn of a thread that is not there, and calls `doubt` as
    /// [`take`](Self::take) does. Writes nothing without need, since the page would be copied.
    #[inline]
    pub(crate) fn end_in_child(&self, doubt: impl FnOnce(Span)) {
        if self.is_others_turn() {
            doubt(self.noting());
            // Relaxed: there is one thread.
            self.holder.store(0, Ordering::Relaxed);
        }
    }
}

impl Turn<'_> {
    /// Does `work`: again, if a signal handler took a turn within. For work that may be done twice, and that notes a
    /// system call that it makes in the map, in `noting`.
    pub(crate) fn alone<T>(self, noting: Span, mut work: impl FnMut() -> T) -> T {
        if self.holder.is_some() {
            self.rights.will_note(noting);
        }
        loop {
            let done = work();
            if !self.was_disturbed() {
                return done;
            }
        }
    }

    /// Whether a handler of this thread took a turn within, since the last time that this was asked.
    fn was_disturbed(&self) -> bool {
        // Relaxed: only handlers of this thread set it.
        self.holder.is_some() && self.rights.is_disturbed.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(own) = self.holder {
            // Unless it was taken away. Release, partner: the Acquire in `take`. Forbids that the next holder looks at
            // the map before this one's notes are in it.
            let _ = self.rights.holder.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sure(span: Span) {
        panic!("{span:?}");
    }

    #[test]
    fn who_was_interrupted_works_again() {
        let (rights, mut done) = (Rights::default(), Vec::new());
        let all = Span::new(0x1000, 0x2000);
        rights.take(Waiting::Asleep, sure).alone(all, || {
            if done.is_empty() {
                // As a handler does.
                rights.take(Waiting::Asleep, sure).alone(Span::new(0x5000, 0x6000), || done.push("handler"));
                assert_eq!(rights.noting(), all);
                assert_ne!(rights.holder.load(Ordering::Relaxed), 0, "the turn goes on");
            }
            done.push("interrupted");
        });
        assert_eq!(done, ["handler", "interrupted", "interrupted"]);
        assert_eq!(rights.holder.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_turn_of_a_thread_that_is_gone_ends_and_what_it_did_is_in_doubt() {
        let lose = |rights: &Rights| {
            std::thread::scope(|scope| {
                let lost = || {
                    let turn = rights.take(Waiting::Asleep, sure);
                    rights.will_note(Span::new(0x1000, 0x2000));
                    std::mem::forget(turn);
                };
                scope.spawn(lost).join().expect("it ends");
            });
            assert!(rights.is_others_turn());
        };
        let (rights, mut doubtful) = (Rights::default(), Span::default());
        lose(&rights);
        drop(rights.take(Waiting::Briefly, |span| doubtful = span));
        assert_eq!((doubtful, rights.noting()), (Span::new(0x1000, 0x2000), Span::default()));
        assert_eq!(rights.holder.load(Ordering::Relaxed), 0);
        let (rights, mut doubtful) = (Rights::default(), Span::default());
        lose(&rights);
        rights.end_in_child(|span| doubtful = span);
        assert_eq!((doubtful, rights.holder.load(Ordering::Relaxed)), (Span::new(0x1000, 0x2000), 0));
    }
}

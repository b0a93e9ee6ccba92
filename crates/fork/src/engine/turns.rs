//! *Turns*: one thread at a time gives rights to frozen memory, moves memory, freezes or thaws. Otherwise a guard that
//! has read the map could map new memory with rights that another thread has taken away since, or move memory that
//! another thread has frozen since. The kernel makes both calls whole, so that the rights of an `mprotect` stay,
//! whichever of the two comes first.
//!
//! A turn lasts from the look at the map to the mapping that follows from it, or from a system call to its note in the
//! map, or for a whole freeze, slice or thaw. It must cost nothing, need no system call of its own (a filter may forbid
//! it), and end whatever happens:
//!
//! * A signal handler that interrupts a turn of its own thread does not wait for it: it takes a turn *within*, and the
//!   interrupted work is done again ([`Turn::alone`]).
//! * A turn whose holder does not go on is taken from it after a while: the holder is a thread that a forked child does
//!   not have, or one that has jumped out of such a handler. What it was about to note is not known, so that the map is
//!   unsure there. A holder that was only slow then works at the same time as its successor.
//! * Who freezes or thaws takes a turn before it holds anybody still, and holds nobody who has one.
//!
//! Before the first freeze there is no map. Until then moves are only [counted](Early).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};

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
pub(crate) struct Turns {
    /// The holder's thread pointer, 0 for nobody.
    holder: AtomicUsize,
    /// Rises with each turn, so that who waits sees that turns go on. Only the holder writes it.
    taken: AtomicUsize,
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
    turns: &'a Turns,
    /// The holder; `None` within another turn of the same thread.
    holder: Option<usize>,
}

/// How often any thread of a test has waited.
#[cfg(test)]
pub(crate) static WAITED: AtomicUsize = AtomicUsize::new(0);

impl Turns {
    /// Waits for a turn. Who interrupted one of the same thread gets one within. Calls `doubt` with memory of which a
    /// lost holder has noted nothing.
    pub(crate) fn take(&self, waiting: Waiting, doubt: impl FnOnce(Span)) -> Turn<'_> {
        let own = thread_pointer();
        let (mut looks, mut taken) = (0, self.taken.load(Ordering::Relaxed));
        // Acquire, partner: the Release in `drop`. Forbids looking at the map as it was before the last turn.
        while let Err(holder) = self.holder.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            if holder == own {
                self.is_disturbed.store(true, Ordering::Relaxed);
                return Turn { turns: self, holder: None };
            }
            let now = self.taken.load(Ordering::Relaxed);
            (looks, taken) = if now == taken { (looks + 1, taken) } else { (0, now) };
            // Acquire: as above, if the holder has done something after all.
            if looks >= waiting.looks()
                && self.holder.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                doubt(self.noting());
                break;
            }
            #[cfg(test)]
            WAITED.fetch_add(1, Ordering::Relaxed);
            pause(looks, waiting);
        }
        self.begun(own)
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

    /// Waits hardly for a turn. Returns `None` if somebody has one, this thread included.
    pub(crate) fn try_take(&self) -> Option<Turn<'_>> {
        let own = thread_pointer();
        // Acquire: as in `take`.
        let taken = || self.holder.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok();
        let is_taken = (0..SPINS).any(|_| {
            let is_taken = taken();
            if !is_taken {
                std::hint::spin_loop();
            }
            is_taken
        });
        is_taken.then(|| self.begun(own))
    }

    /// Begins a turn that this thread has just taken.
    fn begun(&self, own: usize) -> Turn<'_> {
        // Relaxed, both: who waits only compares; a handler of this thread comes before or after. One that comes before
        // has disturbed nothing.
        self.taken.fetch_add(1, Ordering::Relaxed);
        self.is_disturbed.store(false, Ordering::Relaxed);
        self.will_note(Span::default());
        Turn { turns: self, holder: Some(own) }
    }

    /// Whether a thread other than this is in the middle of a turn.
    fn is_others_turn(&self) -> bool {
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
    /// Whether this thread has interrupted a turn of its own.
    pub(crate) const fn is_within(&self) -> bool {
        self.holder.is_none()
    }

    /// Does `work`: again, if a signal handler took a turn within. For work that may be done twice, and that notes a
    /// system call that it makes in the map, in `noting`.
    pub(crate) fn alone<T>(self, noting: Span, mut work: impl FnMut() -> T) -> T {
        if self.holder.is_some() {
            self.turns.will_note(noting);
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
        self.holder.is_some() && self.turns.is_disturbed.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(own) = self.holder {
            // Unless it was taken away. Release, partner: the Acquire in `take`. Forbids that the next holder looks at
            // the map before this one's notes are in it.
            let _ = self.turns.holder.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Moves that have begun before there was a map. Each checks for a map after it was counted; whoever makes the map
/// waits for those that may not have seen it.
#[derive(Debug, Default)]
pub(crate) struct Early(AtomicUsize);

impl Early {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Counts a move until what is returned is dropped.
    pub(crate) fn begin(&self) -> EarlyMove<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // SeqCst, partner: the fence in `wait`. Forbids that this thread sees no map, and the one that has made it no
        // count.
        fence(Ordering::SeqCst);
        EarlyMove(self)
    }

    /// Waits until no move is counted that does not see the map, which this thread has just published. Not for longer
    /// than a lost turn: a child has no thread that would end what others of its parent have begun.
    pub(crate) fn wait(&self) {
        // SeqCst, partner: the fence in `begin`.
        fence(Ordering::SeqCst);
        for look in 0..Waiting::Asleep.looks() {
            // Acquire, partner: the Release in `drop`. Forbids that memory is frozen before it has moved.
            if self.0.load(Ordering::Acquire) == 0 {
                return;
            }
            pause(look, Waiting::Asleep);
        }
        self.0.store(0, Ordering::Relaxed);
    }
}

/// A counted move.
pub(crate) struct EarlyMove<'a>(&'a Early);

impl Drop for EarlyMove<'_> {
    fn drop(&mut self) {
        // Release, partner: the Acquire in `wait`. Not below zero, where nobody has waited for it any longer.
        let _ = self.0.0.try_update(Ordering::Release, Ordering::Relaxed, |count| count.checked_sub(1));
    }
}

/// Lets time pass between two looks.
fn pause(looks: usize, waiting: Waiting) {
    if waiting == Waiting::Asleep && looks >= SPINS {
        let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: NAP_NANOSECONDS };
        // Interrupted or not, it looks again.
        let _ = rustix::thread::nanosleep(&pause);
    } else {
        std::hint::spin_loop();
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
        let (turns, mut done) = (Turns::default(), Vec::new());
        let all = Span::new(0x1000, 0x2000);
        turns.take(Waiting::Asleep, sure).alone(all, || {
            if done.is_empty() {
                // As a handler does.
                turns.take(Waiting::Asleep, sure).alone(Span::new(0x5000, 0x6000), || done.push("handler"));
                assert_eq!(turns.noting(), all);
                assert_ne!(turns.holder.load(Ordering::Relaxed), 0, "the turn goes on");
            }
            done.push("interrupted");
        });
        assert_eq!(done, ["handler", "interrupted", "interrupted"]);
        assert_eq!(turns.holder.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn who_does_not_wait_gets_a_turn_only_if_nobody_has_one() {
        let turns = Turns::default();
        let own = turns.take(Waiting::Asleep, sure);
        assert!(!own.is_within() && turns.take(Waiting::Asleep, sure).is_within());
        assert!(turns.try_take().is_none(), "this thread has one");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| turns.try_take().is_some());
            assert!(!other.join().expect("it ends"), "another thread has one");
        });
        drop(own);
        drop(turns.try_take().expect("nobody has one"));
        assert_eq!(turns.holder.load(Ordering::Relaxed), 0);
    }

    /// Fails on: a wait that ends before the moves do, or never.
    #[test]
    fn early_moves_are_waited_for_and_lost_ones_only_for_a_while() {
        let (early, is_moved) = (Early::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let moving = early.begin();
            let (early, is_moved) = (&early, &is_moved);
            let waiting = scope.spawn(move || {
                early.wait();
                is_moved.load(Ordering::Relaxed)
            });
            std::thread::yield_now();
            is_moved.store(true, Ordering::Relaxed);
            drop(moving);
            assert!(waiting.join().expect("it ends"));
        });
        let lost = early.begin();
        early.wait();
        drop(lost);
        assert_eq!(early.0.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_turn_of_a_thread_that_is_gone_ends_and_what_it_did_is_in_doubt() {
        let lose = |turns: &Turns| {
            std::thread::scope(|scope| {
                let lost = || {
                    let turn = turns.take(Waiting::Asleep, sure);
                    turns.will_note(Span::new(0x1000, 0x2000));
                    std::mem::forget(turn);
                };
                scope.spawn(lost).join().expect("it ends");
            });
            assert!(turns.is_others_turn());
        };
        let (turns, mut doubtful) = (Turns::default(), Span::default());
        lose(&turns);
        drop(turns.take(Waiting::Briefly, |span| doubtful = span));
        assert_eq!((doubtful, turns.noting()), (Span::new(0x1000, 0x2000), Span::default()));
        assert_eq!(turns.holder.load(Ordering::Relaxed), 0);
        let (turns, mut doubtful) = (Turns::default(), Span::default());
        lose(&turns);
        turns.end_in_child(|span| doubtful = span);
        assert_eq!((doubtful, turns.holder.load(Ordering::Relaxed)), (Span::new(0x1000, 0x2000), 0));
    }
}

//! *Turns*: one thread at a time gives rights to frozen memory, moves it, freezes or thaws. Otherwise a guard that has
//! read the map could map new memory with rights that another thread has taken away since, or move memory away from
//! its entry. The kernel makes both calls whole, so that the rights of an `mprotect` stay, whichever comes first.
//!
//! A turn lasts from the look at the map to the mapping that follows from it, or from a system call to its note in the
//! map, or for a whole freeze, slice or thaw. It must cost nothing, need no system call of its own (a filter may forbid
//! it), and end whatever happens:
//!
//! * A signal handler that interrupts a turn of its own thread does not wait for it: it takes a turn *within*, and the
//!   interrupted work is done again ([`Turn::alone`]). It does not freeze.
//! * A turn whose holder does not go on is taken from it after a while: the holder is a thread that a forked child does
//!   not have, or one that has jumped out of such a handler. What it was about to note is not known, so that the map is
//!   unsure there. A holder that was only slow then works at the same time as its successor.
//! * Who freezes or thaws takes a turn before it holds anybody still, and holds nobody who has one.
//!
//! Threads that [move](super::moves) memory of which nothing is frozen need no turn among themselves.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::threads::own::control_block;

use super::moves::{Move, Moves};
use super::waiting::{SPINS, Waiting, pause};
use crate::clock::WallMoment;

/// After so many nanoseconds in which it does not go on, a turn of the asking thread itself has been left by a jump.
#[cfg(not(test))]
const LEFT_AFTER: u64 = 2_000_000_000;

/// Work that is disturbed is done again so many times at most: no handler comes that often, each time within.
const MOST_AGAIN: usize = 8;

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
    /// The thread pointer of a holder that freezes or thaws, 0 if nobody does.
    freezer: AtomicUsize,
    moves: Moves,
    suspect: Suspect,
}

/// How long who wants to freeze waits for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    /// Until they are done.
    Long,
    /// Hardly: it may freeze later.
    Short,
    /// Hardly, and takes what does not go on to have been left at once.
    #[cfg(test)]
    None,
}

impl Patience {
    const fn left_after(self) -> u64 {
        match self {
            #[cfg(not(test))]
            Self::Long | Self::Short => LEFT_AFTER,
            // Never, so that no slow machine decides a test.
            #[cfg(test)]
            Self::Long | Self::Short => u64::MAX,
            #[cfg(test)]
            Self::None => 0,
        }
    }
}

/// The calling thread's turn; ends when dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    /// The holder; `None` within another turn of the same thread.
    holder: Option<usize>,
}

/// A turn to freeze or to thaw: nobody moves memory, either.
pub(crate) struct FreezeTurn<'a> {
    turn: Turn<'a>,
}

/// How often any thread of a test has waited.
#[cfg(test)]
pub(crate) static WAITED: AtomicUsize = AtomicUsize::new(0);

impl Turns {
    pub(crate) const fn new() -> Self {
        Self {
            holder: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            is_disturbed: AtomicBool::new(false),
            noting: [const { AtomicUsize::new(0) }; 2],
            freezer: AtomicUsize::new(0),
            moves: Moves::new(),
            suspect: Suspect::new(),
        }
    }

    /// Waits for a turn. Who interrupted one of the same thread gets one within. Calls `doubt` with memory of which a
    /// lost holder has noted nothing.
    pub(crate) fn take(&self, waiting: Waiting, doubt: impl FnOnce(Span)) -> Turn<'_> {
        let own = control_block();
        let (mut looks, mut taken) = (0, self.taken.load(Ordering::Relaxed));
        // Acquire, partner: the Release in `drop`. Forbids looking at the map as it was before the last turn.
        while let Err(holder) = self.holder.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) {
            if holder == own {
                self.is_disturbed.store(true, Ordering::Relaxed);
                return Turn { turns: self, holder: None };
            }
            let now = self.taken.load(Ordering::Relaxed);
            (looks, taken) = if now == taken { (looks + 1, taken) } else { (0, now) };
            if looks >= waiting.looks()
                && let Some(doubtful) = self.seize(holder, own)
            {
                doubt(doubtful);
                return self.begun(own);
            }
            #[cfg(test)]
            WAITED.fetch_add(1, Ordering::Relaxed);
            pause(looks, waiting);
        }
        self.begun(own)
    }

    /// Waits for a turn to freeze, and for moves. Returns `None` if there is none for who has so little `patience`, or
    /// for who has interrupted a turn or a move of this thread. Calls `doubt` as [`take`](Self::take) does.
    pub(crate) fn freeze(&self, patience: Patience, doubt: impl Fn(Span)) -> Option<FreezeTurn<'_>> {
        let own = control_block();
        let turn = match patience {
            // This thread's own does not end while it waits.
            Patience::Long if self.holder.load(Ordering::Relaxed) != own => {
                Some(self.take(Waiting::Asleep, &doubt)).filter(|turn| turn.holder.is_some())?
            }
            _ => self.try_take(own, patience, &doubt)?,
        };
        let turn = FreezeTurn { turn };
        self.freezer.store(own, Ordering::Relaxed);
        // SeqCst, partner: the fence in `begin_move`. Forbids that a move sees no freezer, and the freezer no move.
        fence(Ordering::SeqCst);
        let looks = if patience == Patience::Long { Waiting::Asleep.looks() } else { SPINS };
        let is_left = |place, count| self.suspect.is_left(place + 1, count, patience.left_after());
        let is_lost = |looks, place, count, mover: usize| match patience {
            Patience::Long if mover != own => looks == Waiting::Asleep.looks(),
            _ => is_left(place, count),
        };
        self.moves.wait(own, looks, is_lost).then_some(turn)
    }

    /// Takes a turn that is free, or was left long ago.
    fn try_take(&self, own: usize, patience: Patience, doubt: impl FnOnce(Span)) -> Option<Turn<'_>> {
        for look in 0..SPINS {
            // Acquire: as in `take`.
            let Err(holder) = self.holder.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed) else {
                return Some(self.begun(own));
            };
            if holder == own {
                break;
            }
            pause(look, Waiting::Awake);
        }
        let (holder, taken) = (self.holder.load(Ordering::Relaxed), self.taken.load(Ordering::Relaxed));
        if holder == 0 || !self.suspect.is_left(Suspect::TURN, taken, patience.left_after()) {
            return None;
        }
        doubt(self.seize(holder, own)?);
        Some(self.begun(own))
    }

    /// Takes a turn from its holder, unless that has ended it after all. Returns where it has noted nothing.
    fn seize(&self, holder: usize, own: usize) -> Option<Span> {
        // Acquire: as in `take`, if the holder has done something meanwhile.
        self.holder.compare_exchange(holder, own, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // A lost freezer's, which forbids moves.
        self.freezer.store(0, Ordering::Relaxed);
        Some(self.noting())
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

    /// Begins a move of memory of which nothing is frozen: until it ends, nobody freezes. Returns `None` if somebody
    /// does, or is about to, or if too many move: then take a turn. Whether anything is frozen can be told only now.
    pub(crate) fn begin_move(&self) -> Option<Move<'_>> {
        let begun = self.moves.begin(control_block())?;
        // SeqCst, partner: the fence in `freeze`. Forbids that the freezer sees no move, and the move no freezer.
        fence(Ordering::SeqCst);
        // Acquire, partner: the Release in `drop` of a freezer's turn. Forbids looking at the map as it was before.
        (self.freezer.load(Ordering::Acquire) == 0).then_some(begun)
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

    /// Ends, in a child that was forked just now, turn and moves of threads that are not there, and calls `doubt` as
    /// [`take`](Self::take) does. Writes nothing without need, since the page would be copied, and asks the C library
    /// nothing, whose code there the child may need for nothing else.
    #[inline]
    pub(crate) fn end_in_child(&self, doubt: impl FnOnce(Span)) {
        let holder = self.holder.load(Ordering::Relaxed);
        if holder != 0 && holder != control_block() {
            doubt(self.noting());
            // Relaxed: there is one thread.
            self.freezer.store(0, Ordering::Relaxed);
            self.holder.store(0, Ordering::Relaxed);
        }
        self.moves.end_in_child(control_block);
    }
}

impl Turn<'_> {
    /// Does `work`: again, if a signal handler took a turn within. For work that may be done twice, and that notes a
    /// system call that it makes in the map, in `noting`.
    ///
    /// Another interposer's function may take a turn within each time: it calls the C library for what `work` has
    /// called it for. So there is an end.
    pub(crate) fn alone<T>(self, noting: Span, mut work: impl FnMut() -> T) -> T {
        self.will_note(noting);
        let mut done = work();
        for _ in 0..MOST_AGAIN {
            if !self.was_disturbed() {
                break;
            }
            done = work();
        }
        done
    }

    /// Says where this turn makes system calls and then notes them.
    pub(crate) fn will_note(&self, span: Span) {
        if self.holder.is_some() {
            self.turns.will_note(span);
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

impl Drop for FreezeTurn<'_> {
    fn drop(&mut self) {
        if let Some(own) = self.turn.holder {
            // Unless it was taken away. Release, partner: the Acquire in `begin_move`. Forbids that a move looks at the
            // map before what was frozen is in it.
            let _ = self.turn.turns.freezer.compare_exchange(own, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// A turn or move that did not go on when somebody asked: for who asks again, much later.
#[derive(Debug, Default)]
struct Suspect {
    /// Which: 0 for none, [`Self::TURN`], or the place of a move and 1.
    which: AtomicUsize,
    /// Its number, which rises with each turn or move.
    count: AtomicUsize,
    /// When it was first asked for, in nanoseconds.
    since: AtomicU64,
}

impl Suspect {
    const TURN: usize = usize::MAX;

    const fn new() -> Self {
        Self { which: AtomicUsize::new(0), count: AtomicUsize::new(0), since: AtomicU64::new(0) }
    }

    /// Whether this has not gone on for so many nanoseconds. The first who asks is told no.
    fn is_left(&self, which: usize, count: usize, nanos: u64) -> bool {
        let now = WallMoment::now().nanos();
        // Acquire, partner: the Release below. Forbids to read a time from before it was noted.
        let known = (self.which.load(Ordering::Acquire), self.count.load(Ordering::Relaxed));
        if known == (which, count) {
            return now.saturating_sub(self.since.load(Ordering::Relaxed)) >= nanos;
        }
        // Nobody takes a part of this for the whole: with another time it is a later one.
        self.since.store(now, Ordering::Relaxed);
        self.count.store(count, Ordering::Relaxed);
        self.which.store(which, Ordering::Release);
        false
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;

//! Only one thread at a time holds the others: two would hold each other, and the second would release those of the
//! first.
//!
//! # Protocol
//!
//! The *word* is zero, or names a thread: the one whose turn it is, or, with [`RESERVED`], the one whose turn is next.
//! The name includes the process, so that a forked child recognises that it is none of its own threads.
//!
//! Who has to wait takes a *seat*. Who ends a turn reserves the next one for the seats' next thread, in a circle: so no
//! thread takes a second turn while another waits for its first, and a thread in a loop of turns starves nobody. With
//! more threads than seats, the others wait for a seat.
//!
//! Threads may leave without a word: a signal handler jumps out of the wait, or is never scheduled again. So whoever
//! finds a turn reserved for [`PATIENCE`] takes it, and the seat away. A seat has the thread's name, not a place in a
//! line: a handler that interrupts the wait of its own thread may take the turn that is reserved for it, and the
//! interrupted wait takes a seat again.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::{StopError, nap};
use crate::caller::Caller;
use crate::threads::list::{PATIENCE, Wait};

/// The process's turns.
static TURNS: Turns<64> = Turns::new();

/// Marks a word: its thread may take the turn. The highest bit, which is zero in the name of a thread.
const RESERVED: u64 = 1 << 63;

/// The calling thread's turn; ends when dropped.
#[derive(Debug)]
pub(super) struct Turn;

impl Turn {
    /// Waits for a turn. Does not use the heap. Another thread may hold this one while it waits.
    pub(super) fn take() -> Result<Self, StopError> {
        let caller = Caller::current();
        let mut reserved: Option<(u64, Wait)> = None;
        loop {
            let word = match TURNS.ask(caller) {
                Asked::Taken => return Ok(Self),
                Asked::HasIt => return Err(StopError::Busy),
                Asked::Busy => 0,
                Asked::Reserved(word) => word,
            };
            match &mut reserved {
                Some((known, wait)) if *known == word && word != 0 => {
                    if wait.look() > PATIENCE {
                        TURNS.strike_out(word);
                    }
                }
                _ => reserved = Some((word, Wait::begin())),
            }
            nap();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURNS.end(Caller::current());
    }
}

/// What became of a thread's wish for a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    /// It has its turn now.
    Taken,
    /// It had it before.
    HasIt,
    /// It is another thread's.
    Busy,
    /// The next one is another thread's, as this word says.
    Reserved(u64),
}

/// The word and the seats. A seat is zero, or names a thread that waits; names of other processes are those of a forked
/// child's parent, and count as zero.
struct Turns<const SEATS: usize> {
    word: AtomicU64,
    seats: [AtomicU64; SEATS],
    /// The seat that was served last. Only who ends a turn uses it.
    served: AtomicUsize,
}

impl<const SEATS: usize> Turns<SEATS> {
    const fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            seats: [const { AtomicU64::new(0) }; SEATS],
            served: AtomicUsize::new(SEATS - 1),
        }
    }

    fn ask(&self, caller: Caller) -> Asked {
        let own = caller.to_word().get();
        loop {
            // Relaxed: only compared; the exchange orders.
            let present = self.word.load(Ordering::Relaxed);
            let named = named(present).filter(|thread| thread.is_same_process(caller));
            let is_reserved = present & RESERVED != 0;
            match named {
                Some(holder) if holder.is_same_thread(caller) && !is_reserved => return Asked::HasIt,
                Some(other) if !other.is_same_thread(caller) => {
                    self.sit_down(own, caller);
                    return if is_reserved { Asked::Reserved(present) } else { Asked::Busy };
                }
                _ => {}
            }
            // Acquire, partner: the Release in `end`. Forbids reading the table of threads as it was before the last
            // turn ended.
            if self.word.compare_exchange(present, own, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                self.stand_up(own);
                return Asked::Taken;
            }
        }
    }

    /// Ends the caller's turn.
    fn end(&self, caller: Caller) {
        let last = self.served.load(Ordering::Relaxed);
        let next = (1..=SEATS).map(|step| (last + step) % SEATS).find_map(|seat| {
            // Relaxed: who sits down now, and is not seen, is seen at the end of the next turn.
            let waiting = named(self.seats[seat].load(Ordering::Relaxed))?;
            waiting.is_same_process(caller).then_some((seat, waiting))
        });
        if let Some((seat, _)) = next {
            self.served.store(seat, Ordering::Relaxed);
        }
        let word = next.map_or(0, |(_, waiting)| waiting.to_word().get() | RESERVED);
        // Release, partner: the Acquire in `ask`.
        self.word.store(word, Ordering::Release);
    }

    /// Gives a turn that was reserved for a thread that does not come, as `word` says, to whoever asks first.
    fn strike_out(&self, word: u64) {
        self.stand_up(word & !RESERVED);
        // Acquire and Release: as in `ask` and `end`, whose turn this passes on.
        let _ = self.word.compare_exchange(word, 0, Ordering::AcqRel, Ordering::Relaxed);
    }

    // Relaxed, in both: a seat says only who waits.
    fn sit_down(&self, own: u64, caller: Caller) {
        if self.seats.iter().any(|seat| seat.load(Ordering::Relaxed) == own) {
            return;
        }
        for seat in &self.seats {
            let known = seat.load(Ordering::Relaxed);
            let is_taken = named(known).is_some_and(|waiting| waiting.is_same_process(caller));
            if !is_taken && seat.compare_exchange(known, own, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    fn stand_up(&self, own: u64) {
        for seat in &self.seats {
            let _ = seat.compare_exchange(own, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Returns the thread that a word names.
fn named(word: u64) -> Option<Caller> {
    NonZeroU64::new(word & !RESERVED).map(Caller::from_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a thread of this process, or of another.
    fn thread(process: u64, number: u64) -> Caller {
        Caller::from_word(NonZeroU64::new(process << 32 | number).expect("not zero"))
    }

    #[test]
    fn a_thread_cannot_wait_for_itself() {
        let turn = Turn::take().expect("nobody else's for ever");
        assert!(matches!(Turn::take(), Err(StopError::Busy)));
        drop(turn);
        drop(Turn::take().expect("it is over"));
    }

    /// Fails on: a thread that takes one turn after the other while others wait.
    #[test]
    fn who_waits_comes_before_who_had_a_turn() {
        let turns = Turns::<4>::new();
        let [first, second, third] = [1, 2, 3].map(|number| thread(7, number));
        assert_eq!(turns.ask(first), Asked::Taken);
        assert_eq!(turns.ask(first), Asked::HasIt);
        assert_eq!((turns.ask(second), turns.ask(third)), (Asked::Busy, Asked::Busy));
        let mut served = Vec::new();
        let mut holder = first;
        for _ in 0..6 {
            turns.end(holder);
            // In a loop of turns.
            assert!(matches!(turns.ask(holder), Asked::Reserved(_)), "{served:?}");
            let taken = |thread: &Caller| turns.ask(*thread) == Asked::Taken;
            holder = [first, second, third].into_iter().find(taken).expect("one of them");
            served.push(holder.to_word());
        }
        assert_eq!(served, [second, third, first, second, third, first].map(Caller::to_word));
    }

    #[test]
    fn a_reserved_turn_that_nobody_takes_is_passed_on() {
        let turns = Turns::<4>::new();
        let [first, gone] = [1, 2].map(|number| thread(7, number));
        assert_eq!((turns.ask(first), turns.ask(gone)), (Asked::Taken, Asked::Busy));
        turns.end(first);
        let Asked::Reserved(word) = turns.ask(first) else { panic!("it is the other one's") };
        turns.strike_out(word);
        assert_eq!(turns.ask(first), Asked::Taken);
        turns.end(first);
        assert_eq!(turns.ask(first), Asked::Taken, "its seat was taken away");
        // It was only slow.
        assert_eq!(turns.ask(gone), Asked::Busy);
        turns.end(first);
        turns.strike_out(word ^ 1);
        assert_eq!((turns.ask(gone), turns.ask(first)), (Asked::Taken, Asked::Busy));
    }

    /// Fails on: a handler that waits for the thread that it has interrupted.
    #[test]
    fn a_handler_takes_the_turn_of_the_wait_that_it_interrupts() {
        let turns = Turns::<4>::new();
        let [first, second] = [1, 2].map(|number| thread(7, number));
        assert_eq!((turns.ask(first), turns.ask(second)), (Asked::Taken, Asked::Busy));
        turns.end(first);
        // The handler's, and then that of the wait.
        for _ in 0..2 {
            assert_eq!(turns.ask(second), Asked::Taken);
            turns.end(second);
        }
    }

    #[test]
    fn a_child_has_none_of_its_parents_turns_and_seats() {
        let turns = Turns::<1>::new();
        let [holder, waiting] = [1, 2].map(|number| thread(7, number));
        assert_eq!((turns.ask(holder), turns.ask(waiting)), (Asked::Taken, Asked::Busy));
        let [child, other] = [8, 9].map(|number| thread(8, number));
        assert_eq!((turns.ask(child), turns.ask(other)), (Asked::Taken, Asked::Busy));
        turns.end(child);
        assert!(matches!(turns.ask(child), Asked::Reserved(_)));
        assert_eq!(turns.ask(other), Asked::Taken);
    }

    #[test]
    fn without_a_seat_a_thread_waits_as_well() {
        let turns = Turns::<1>::new();
        let [first, second, third] = [1, 2, 3].map(|number| thread(7, number));
        assert_eq!((turns.ask(first), turns.ask(second), turns.ask(third)), (Asked::Taken, Asked::Busy, Asked::Busy));
        turns.end(first);
        assert_eq!(turns.ask(second), Asked::Taken);
        assert_eq!(turns.ask(third), Asked::Busy, "it has the seat now");
        turns.end(second);
        assert!(matches!(turns.ask(second), Asked::Reserved(_)));
        assert_eq!(turns.ask(third), Asked::Taken);
    }
}

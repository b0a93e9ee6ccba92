//! Who asks for huge pages in a slice: the thread itself, or a [deputy](palimpsest_sys::threads::deputy), so that the
//! thread goes on meanwhile.
//!
//! A slice that has sent a deputy ends. The next one comes when the deputy is done, and looks at the same pieces again:
//! it finds them huge, and what the deputy was sent for counts as done. What is not huge by then, the thread asks for
//! itself, and so learns what became of each piece: whether the kernel has refused, or the program has split it again.
//!
//! A thread that sends a deputy waits until that has given up its rights, at first no longer than slices may take. If a
//! busy machine does not let it begin, the slice ends, and later ones try again, with more patience: asking for huge
//! pages would take the thread even longer there.
//!
//! Deputies run on another processor if there is one, so that their time is not taken from what slices have: a machine
//! with one processor shares it.

use std::time::Duration;

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::threads::child::NoChild;
use palimpsest_sys::threads::deputy::Errand;

use super::piece::PIECE;
use super::registry::Shared;
use super::sight::{LEAST_MENDING, Sight};
use crate::clock::{WallMoment, nanos};

/// Who asks in one slice, and what came of it.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    /// `None` if the thread itself asks.
    shared: Option<&'static Shared>,
    /// What the last deputy was sent for; and what of it is known to be made.
    last: Span,
    made: Span,
    /// Split pieces that it has mended.
    mended: usize,
    /// The processor time of deputies that is not accounted for, in nanoseconds.
    spent: u64,
}

/// What to send a deputy for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Request {
    run: Span,
    /// How many pieces of the run it is to make, and how many of these are known to be split.
    asked: usize,
    split: usize,
}

impl Request {
    /// Asks for all pieces of a run, of which `split` are known to be split.
    pub(super) const fn all(run: Span, split: usize) -> Self {
        Self { run, asked: run.len() / PIECE, split }
    }

    /// Asks for the `split` pieces of a run that are split; the others are whole, and take the kernel no time.
    pub(super) const fn split(run: Span, split: usize) -> Self {
        Self { run, asked: split, split }
    }
}

/// Who asks for huge pages in some pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    /// A deputy, while the thread goes on.
    Deputy,
    /// A deputy in a later slice: the machine is too busy for one.
    Later,
    /// The thread itself.
    Nobody,
}

/// Takes the answer of a deputy, if there is one, and notes what it has taken.
pub(crate) fn take_answer(shared: &'static Shared) -> Option<Errand> {
    shared.desk.answered().inspect(|errand| {
        shared.tending.note_unbooked(nanos(errand.spent));
        if errand.answer.is_ok() && has_mended(shared, errand) {
            shared.tending.took_errand(nanos(errand.spent), errand.asked);
        }
    })
}

/// Whether an errand has mended anything: it was sent only for what is split, where the kernel tells, or took too long
/// to have found all whole. One counts of which nobody knows how long it took.
fn has_mended(shared: &Shared, errand: &Errand) -> bool {
    let is_told = !shared.tending.counts_forks();
    is_told || errand.spent.is_zero() || nanos(errand.spent) >= LEAST_MENDING * errand.asked as u64
}

impl Sender {
    /// The thread itself asks.
    pub(crate) const fn own() -> Self {
        Self { shared: None, last: Span::new(0, 0), made: Span::new(0, 0), mended: 0, spent: 0 }
    }

    /// Deputies ask. None may be at work.
    pub(crate) fn deputies(shared: &'static Shared) -> Self {
        let errand = take_answer(shared);
        let none = Span::default();
        let (last, made, mended) = match errand {
            Some(errand @ Errand { span, answer: Ok(()), .. }) => {
                (span, span, if has_mended(shared, &errand) { shared.tending.errand() } else { 0 })
            }
            Some(Errand { span, answer: Err(_), .. }) if !shared.tending.was_late() => (span, none, 0),
            Some(_) | None => (none, none, 0),
        };
        Self { shared: Some(shared), last, made, mended, spent: shared.tending.take_unbooked() }
    }

    /// Returns the processor time of deputies since the last slice that asked, in nanoseconds.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Begins a look. Returns what the last deputy has made and no fork has met, where that is remembered.
    pub(super) fn begin(&mut self, sight: Sight) -> Span {
        if let (Some(shared), Sight::Remembered { forks }) = (self.shared, sight)
            && shared.tending.begin_errand(forks) == forks
        {
            return self.made;
        }
        self.made = Span::default();
        self.made
    }

    /// Whether the last deputy has made this piece, where that is remembered.
    pub(super) fn has_made(&self, piece: Span) -> bool {
        self.made.intersection(piece) == piece
    }

    /// Returns how many split pieces the last deputy has mended.
    pub(super) fn mended(&self) -> usize {
        self.mended
    }

    /// Whether a deputy is to ask for this piece, if one can be made.
    pub(super) fn sends(&self, piece: Span) -> bool {
        self.shared.is_some() && self.last.intersection(piece).is_empty()
    }

    /// Returns for how many pieces from this one on to ask at once, where the thread itself would ask for `own`, and
    /// slices take `budget`.
    pub(super) fn room(&self, piece: Span, own: usize, budget: Duration) -> usize {
        match self.shared {
            Some(shared) if self.sends(piece) => shared.tending.room_of_errand(budget),
            _ => own,
        }
    }

    /// Sends a deputy, in a slice that may take `budget` and has taken `elapsed` nanoseconds.
    pub(super) fn send(&self, request: Request, elapsed: u64, budget: Duration) -> Sent {
        let Request { run, asked, split } = request;
        let is_new = self.last.intersection(run).is_empty();
        let Some(shared) = self.shared.filter(|_| is_new) else { return Sent::Nobody };
        let started = WallMoment::now();
        match shared.desk.send(run, asked, shared.tending.patience(elapsed, budget)) {
            Ok(true) => {
                shared.tending.sent(split, started.elapsed());
                // So the next fork need not take a slice.
                shared.progress.gathered_in_wait();
                Sent::Deputy
            }
            Err(NoChild::Late) => {
                shared.progress.put_off(Duration::from_nanos(shared.tending.sent_in_vain(split, started.elapsed())));
                Sent::Later
            }
            _ => Sent::Nobody,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tending::Tending;

    /// Fails on: the time for some split pieces, divided by the whole ones between them, too: deputies would be sent
    /// for so many that they hold the lock of all mappings for much longer than a slice may.
    #[test]
    fn whole_pieces_between_split_ones_take_no_time() {
        let run = Span::new(PIECE, 58 * PIECE);
        let room = |request: Request| {
            let tending = Tending::default();
            tending.took_errand(28_000_000, request.asked);
            tending.room_of_errand(Duration::from_millis(2))
        };
        assert_eq!((room(Request::split(run, 8)), room(Request::all(run, 8))), (1, 8));
    }

    /// Fails on: what a deputy has made while a child was forked, and is taken for whole: the child shows it, too.
    #[test]
    fn what_a_deputy_has_made_is_known_unless_there_was_a_fork() {
        let shared = crate::engine::registry::known().expect("memory");
        let run = Span::new(PIECE, 3 * PIECE);
        let begin = |forks| {
            let mut sender = Sender { shared: Some(shared), last: run, made: run, ..Sender::own() };
            let made = sender.begin(Sight::Remembered { forks });
            assert_eq!(sender.has_made(Span::new(PIECE, 2 * PIECE)), !made.is_empty());
            made
        };
        assert_eq!([5, 5, 7, 7].map(begin), [Span::default(), run, Span::default(), run]);
        let mut sender = Sender { shared: Some(shared), last: run, made: run, ..Sender::own() };
        assert!(sender.begin(Sight::Told).is_empty() && !sender.has_made(run), "the kernel tells");
    }
}

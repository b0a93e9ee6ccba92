//! Figures that anybody may read at any time, also in a signal handler or from another process ([`figures`]).
//!
//! Relaxed, except for the sequence number: each is read by itself, and publishes nothing.
//!
//! [`figures`]: crate::figures

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::ledger::Ledger;
use super::piece::PIECE;
use super::progress::{Progress, Stage};
use crate::clock::nanos;
use crate::figures::{HEAD, WORDS, Word};

/// The figures. Zeroed memory is a valid one.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    words: [AtomicU64; WORDS],
}

impl Statistics {
    const fn word(&self, word: Word) -> &AtomicU64 {
        &self.words[word as usize]
    }

    fn get(&self, word: Word) -> u64 {
        self.word(word).load(Ordering::Relaxed)
    }

    fn set(&self, word: Word, value: u64) {
        self.word(word).store(value, Ordering::Relaxed);
    }

    fn count(&self, word: Word) {
        self.word(word).fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the bytes of address space that show frozen memory, as of the last round.
    pub(crate) fn frozen_bytes(&self) -> usize {
        self.get(Word::FrozenBytes) as usize
    }

    /// Returns how many extents are mapped.
    pub(crate) fn extents(&self) -> usize {
        self.get(Word::Extents) as usize
    }

    /// Returns how many pieces are left alone for now.
    pub(crate) fn hot_pieces(&self) -> usize {
        self.get(Word::HotPieces) as usize
    }

    /// Returns the forks by [`fork`](crate::fork()).
    pub(crate) fn forks(&self) -> u64 {
        self.get(Word::Forks)
    }

    /// Returns the repairs.
    pub(crate) fn repairs(&self) -> u64 {
        self.get(Word::Repairs)
    }

    /// Returns the nanoseconds that forks took beyond the clean time since the last freeze or repair.
    pub(crate) fn debt(&self) -> u64 {
        self.get(Word::Debt)
    }

    /// Returns the nanoseconds of a fork when nothing was written; 0 if there was none.
    pub(crate) fn clean(&self) -> u64 {
        self.get(Word::Clean)
    }

    /// Whether a fork that takes `taken` nanoseconds tells nothing new: neither that forks have become dearer, by more
    /// than they vary on a busy machine, nor that what counts as clean is too much.
    pub(crate) fn is_usual(&self, taken: u64) -> bool {
        let clean = self.clean();
        (clean - clean / 4..=clean + clean / 2).contains(&taken)
    }

    /// Returns the debt in nanoseconds at which a look or a repair follows.
    pub(crate) fn price(&self) -> u64 {
        self.get(Word::Price)
    }

    /// Whether the debt exceeds the price.
    pub(crate) fn is_due(&self) -> bool {
        self.debt() > self.price()
    }

    /// Whether there was a freeze or a repair.
    pub(super) fn has_rounds(&self) -> bool {
        self.get(Word::Rounds) > 0
    }

    /// Whether everything was thawed since the last freeze, so that nothing is accounted for.
    pub(crate) fn is_over(&self) -> bool {
        self.get(Word::Over) != 0
    }

    /// Notes that nothing is frozen any more.
    pub(crate) fn emptied(&self) {
        self.frozen(0, 0);
    }

    /// Notes that all that could be was thawed: repairs freeze nothing again.
    pub(crate) fn end(&self) {
        self.set(Word::Over, 1);
    }

    /// Notes a freeze.
    pub(crate) fn begin(&self) {
        self.set(Word::Over, 0);
    }

    /// Counts a fork.
    pub(crate) fn count_fork(&self) {
        self.count(Word::Forks);
    }

    /// Counts a repair.
    pub(crate) fn count_repair(&self) {
        self.count(Word::Repairs);
    }

    /// Counts a round.
    pub(crate) fn count_round(&self) {
        self.count(Word::Rounds);
    }

    /// Begins a child's own counts. Written only where they differ, since the page would be copied.
    pub(crate) fn born(&self) {
        for word in [Word::Forks, Word::Repairs] {
            if self.get(word) != 0 {
                self.set(word, 0);
            }
        }
    }

    /// Notes what is frozen now.
    pub(super) fn frozen(&self, bytes: usize, extents: usize) {
        self.set(Word::FrozenBytes, bytes as u64);
        self.set(Word::Extents, extents as u64);
    }

    /// Publishes what the ledger of `process` says now, and how far a freeze in slices is. The holder of the ledger
    /// calls it.
    pub(super) fn publish(&self, ledger: &Ledger, progress: &Progress, process: u64) {
        // A process that was forked while another thread was here goes on from an odd number.
        let odd = self.get(Word::Sequence) | 1;
        self.set(Word::Sequence, odd);
        // Release, partner: the system calls by which another process reads (`figures`), each of which takes locks of
        // the kernel. Forbids that it reads a word from below before the odd number.
        fence(Ordering::Release);
        for (word, value) in HEAD {
            self.set(word, value);
        }
        let account = ledger.account();
        for (word, value) in [
            (Word::Process, process),
            (Word::HotPieces, ledger.hot.resting() as u64),
            (Word::Debt, ledger.debt()),
            (Word::Clean, ledger.clean()),
            (Word::Price, ledger.price()),
            (Word::PerFork, ledger.saved()),
            (Word::Once, account.once),
            (Word::Repairing, account.repairing),
            (Word::Saved, account.saved),
            (Word::Lost, account.lost),
            (Word::UnderWay, u64::from(progress.stage == Stage::UnderWay)),
            (Word::Planned, progress.planned_bytes as u64),
            (Word::Longest, nanos(progress.longest)),
            (Word::GatheredBytes, (ledger.huge() * PIECE) as u64),
            (Word::Beside, account.beside),
        ] {
            self.set(word, value);
        }
        // Release, partner: the same calls. Forbids that the even number is read before a word from above.
        self.word(Word::Sequence).store(odd + 1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::span::Span;
    use palimpsest_sys::memory::vec::MappedVec;

    use super::*;
    use crate::engine::hot::HotPieces;
    use crate::engine::huge::Asked;
    use crate::engine::prices::Prices;
    use crate::figures::{Figures, WORD};

    #[test]
    fn what_is_published_can_be_read_by_its_bytes() {
        let statistics = Statistics::default();
        let mut ledger = Ledger::new(HotPieces::new(MappedVec::with_capacity(16).expect("memory")), Prices::new(4096));
        ledger.froze(1 << 20, 0, 500, Default::default());
        ledger.asked(Span::new(PIECE, 2 * PIECE), Asked::Made);
        ledger.gathered(0, 30, 7);
        statistics.frozen(1 << 20, 3);
        statistics.count_fork();
        let progress = Progress { stage: Stage::UnderWay, planned_bytes: 5 << 20, ..Progress::default() };
        statistics.publish(&ledger, &progress, 17);
        let bytes: Vec<u8> =
            statistics.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        assert_eq!(bytes.len(), WORDS * WORD);
        let figures = Figures::read(&bytes).expect("this version's");
        assert_eq!((figures.process, figures.frozen_bytes, figures.extents, figures.forks), (17, 1 << 20, 3, 1));
        assert_eq!((figures.once.as_nanos(), figures.is_under_way, figures.planned_bytes), (537, true, 5 << 20));
        assert_eq!((figures.gathered_bytes, figures.beside.as_nanos()), (PIECE as u64, 7));
        let sequence = || statistics.get(Word::Sequence);
        assert_eq!(sequence(), 2);
        // As in a child whose parent's other thread was publishing.
        statistics.set(Word::Sequence, 3);
        statistics.publish(&ledger, &Progress::default(), 18);
        assert_eq!(sequence(), 4);
    }
}

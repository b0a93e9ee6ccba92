//! Figures that anybody may read at any time, also in a signal handler.
//!
//! Relaxed everywhere: each is read for itself, and nothing is published with it.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::ledger::Ledger;

/// The figures. Zeroed memory is a valid one.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    frozen_bytes: AtomicUsize,
    extents: AtomicUsize,
    hot_pieces: AtomicUsize,
    rounds: AtomicU64,
    /// 1 once all was thawed.
    over: AtomicUsize,
    forks: AtomicU64,
    repairs: AtomicU64,
    /// Copies of the ledger's, written by who holds it.
    debt: AtomicU64,
    clean: AtomicU64,
    price: AtomicU64,
}

impl Statistics {
    /// Bytes of address space that show frozen memory, as of the last round.
    pub(crate) fn frozen_bytes(&self) -> usize {
        self.frozen_bytes.load(Ordering::Relaxed)
    }

    /// Extents that are mapped.
    pub(crate) fn extents(&self) -> usize {
        self.extents.load(Ordering::Relaxed)
    }

    /// Pieces that are left alone for now.
    pub(crate) fn hot_pieces(&self) -> usize {
        self.hot_pieces.load(Ordering::Relaxed)
    }

    /// Forks by [`fork`](crate::fork()).
    pub(crate) fn forks(&self) -> u64 {
        self.forks.load(Ordering::Relaxed)
    }

    /// Repairs.
    pub(crate) fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }

    /// Nanoseconds that forks took above the clean time since the last freeze or repair.
    pub(crate) fn debt(&self) -> u64 {
        self.debt.load(Ordering::Relaxed)
    }

    /// Nanoseconds of a fork when nothing was written; 0 for none.
    pub(crate) fn clean(&self) -> u64 {
        self.clean.load(Ordering::Relaxed)
    }

    /// Whether a fork that takes so many nanoseconds tells nothing new: neither that it has become dearer, by more than
    /// it varies on a busy machine, nor that what counts as a clean one is too much.
    pub(crate) fn is_usual(&self, taken: u64) -> bool {
        let clean = self.clean();
        (clean - clean / 4..=clean + clean / 2).contains(&taken)
    }

    /// Nanoseconds of debt from which on there is a look or a repair.
    pub(crate) fn price(&self) -> u64 {
        self.price.load(Ordering::Relaxed)
    }

    /// Whether the debt exceeds the price.
    pub(crate) fn is_due(&self) -> bool {
        self.debt() > self.price()
    }

    /// Whether there was a freeze or a repair.
    pub(super) fn has_rounds(&self) -> bool {
        self.rounds.load(Ordering::Relaxed) > 0
    }

    /// Whether all was thawed since the last freeze, so that nothing is accounted for.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) != 0
    }

    /// Nothing is frozen any more.
    pub(crate) fn emptied(&self) {
        self.frozen(0, 0);
    }

    /// All is thawed that could be: repairs freeze nothing again.
    pub(crate) fn end(&self) {
        self.over.store(1, Ordering::Relaxed);
    }

    /// There was a freeze.
    pub(crate) fn begin(&self) {
        self.over.store(0, Ordering::Relaxed);
    }

    /// Counts a fork.
    pub(crate) fn count_fork(&self) {
        self.forks.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a repair.
    pub(crate) fn count_repair(&self) {
        self.repairs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a round.
    pub(super) fn count_round(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// What is frozen by now.
    pub(super) fn frozen(&self, bytes: usize, extents: usize) {
        self.frozen_bytes.store(bytes, Ordering::Relaxed);
        self.extents.store(extents, Ordering::Relaxed);
    }

    /// What the ledger says by now.
    pub(super) fn publish(&self, ledger: &Ledger) {
        self.hot_pieces.store(ledger.hot.resting(), Ordering::Relaxed);
        self.debt.store(ledger.debt(), Ordering::Relaxed);
        self.clean.store(ledger.clean(), Ordering::Relaxed);
        self.price.store(ledger.price(), Ordering::Relaxed);
    }
}

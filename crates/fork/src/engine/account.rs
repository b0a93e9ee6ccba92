//! What freezing has cost this process and what it has saved. For reports only: nothing is decided by it.
//!
//! Times are in nanoseconds.

/// The sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Account {
    /// Time of freezes.
    pub(super) once: u64,
    /// Time of repairs, and of looks whether one pays.
    pub(super) repairing: u64,
    /// Time that forks have saved.
    pub(super) saved: u64,
    /// Time that forks took beyond what they would have taken without freezing.
    pub(super) lost: u64,
    /// The part of `once` and `repairing` that deputies took, while the program went on.
    pub(super) beside: u64,
}

impl Account {
    pub(super) const NEW: Self = Self { once: 0, repairing: 0, saved: 0, lost: 0, beside: 0 };

    /// Adds a freeze that took `taken`.
    pub(super) const fn froze(&mut self, taken: u64) {
        self.once = self.once.saturating_add(taken);
    }

    /// Adds a repair, or a look, that took `taken`.
    pub(super) const fn repaired(&mut self, taken: u64) {
        self.repairing = self.repairing.saturating_add(taken);
    }

    /// Adds what deputies took of the time that was added last.
    pub(super) const fn had_deputies(&mut self, beside: u64) {
        self.beside = self.beside.saturating_add(beside);
    }

    /// Adds a fork that took `above` more than the quickest; without freezing it would have taken `spared` more than
    /// that.
    pub(super) const fn forked(&mut self, spared: u64, above: u64) {
        self.saved = self.saved.saturating_add(spared.saturating_sub(above));
        self.lost = self.lost.saturating_add(above.saturating_sub(spared));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_save_or_lose_against_plain_ones() {
        let mut account = Account::NEW;
        account.froze(500);
        account.forked(100, 0);
        account.forked(100, 30);
        account.forked(100, 140);
        account.repaired(7);
        account.had_deputies(3);
        assert_eq!(account, Account { once: 500, repairing: 7, saved: 170, lost: 40, beside: 3 });
    }
}

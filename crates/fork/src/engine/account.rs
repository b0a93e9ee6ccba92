//! What freezing has cost this process and what it has saved, for who looks at it. Nothing is decided by it.
//!
//! Times are in nanoseconds.

/// The sums.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Account {
    /// What freezes took.
    pub(super) once: u64,
    /// What repairs took, and looks.
    pub(super) repairing: u64,
    /// What forks have saved.
    pub(super) saved: u64,
    /// What forks have taken more than without freezing.
    pub(super) lost: u64,
}

impl Account {
    pub(super) const NEW: Self = Self { once: 0, repairing: 0, saved: 0, lost: 0 };

    /// A freeze took so long.
    pub(super) const fn froze(&mut self, taken: u64) {
        self.once = self.once.saturating_add(taken);
    }

    /// A repair, or a look, took so long.
    pub(super) const fn repaired(&mut self, taken: u64) {
        self.repairing = self.repairing.saturating_add(taken);
    }

    /// A fork took `above` more than the quickest; without freezing, every one would take `spared` more than that.
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
        assert_eq!(account, Account { once: 500, repairing: 7, saved: 170, lost: 40 });
    }
}

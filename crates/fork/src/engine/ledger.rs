//! When to repair: an account of what forks take, what repairs cost, and what is not worth repairing.
//!
//! # The policy
//!
//! Memory that the parent writes to makes forks slower, and a repair takes time too. It is the ski-rental problem: what
//! each fork takes above a clean one is debt, and when the debt exceeds the price of a repair, one is bought. So the
//! time lost is at most about twice of what the best choice in hindsight would have lost.
//!
//! Forks are measured by the CPU time of the thread, since on a busy machine the clock on the wall tells of the
//! neighbours. A clean fork is what a repair can reach: the quickest since the last repair, or the first one after it
//! if that is slower, by half. Else what no repair can take away (`pthread_atfork` handlers, memory that is hot, noise)
//! would be debt for ever.
//!
//! The price depends on how much was written, and finding that out takes time by itself. So when the debt exceeds the
//! time of the last look, there is another one, which gives a quote; from then on the debt is compared with the quote.
//! Right before the repair there is a look again, so that none is bought that has become dearer. Quotes are corrected
//! by what the last repairs took indeed. A repair that gains nothing doubles the price of the next one.
//!
//! Nothing here asks the kernel or reads a clock: whoever has the ledger tells it what things took. All times are in
//! nanoseconds.

use super::hot::HotPieces;

/// The longest patience: how many times its price a repair must be worth after many that gained nothing. More would
/// save next to nothing, and put off the repair that does gain something when a program becomes quiet.
const MOST_PATIENCE: u64 = 1 << 5;
/// The unit of [`Ledger::scale`].
const SCALE: u64 = 1 << 10;
/// What a mapping takes that replaces one with present pages.
const MAPPING: u64 = 6_000;
/// What copying a MiB takes, where no freeze was big enough to tell: a cautious guess.
const CAUTIOUS: u64 = 1_000_000;
/// From how many MiB on a freeze tells what copying takes.
const TELLING: usize = 16;

/// The account.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What forks took above the clean time since the last repair.
    debt: u64,
    /// A fork when nothing was written; 0 before the first.
    clean: u64,
    /// What the last look at what is written took.
    look: u64,
    /// What a repair will take, as the last look told; 0 before the first since the last repair.
    quote: u64,
    /// What copying a MiB took when it was frozen; 0 before that was seen.
    per_mib: u64,
    /// By what quotes are multiplied, in units of [`SCALE`].
    scale: u64,
    /// How many times its price a repair must be worth; doubled by each that gained nothing.
    patience: u64,
    /// The last fork; 0 if that was the first since a repair.
    last: u64,
    /// The quicker of the last two forks.
    typical: u64,
    /// What was typical before the last repair; 0 once it has been compared with the first fork after.
    before_repair: u64,
    /// What is left alone.
    pub(super) hot: HotPieces,
}

/// How much there is to do, as an inventory tells.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Work {
    /// Mappings to be replaced.
    pub(crate) mappings: usize,
    /// Bytes to be copied.
    pub(crate) bytes: usize,
}

impl Ledger {
    pub(super) const fn new(hot: HotPieces) -> Self {
        Self {
            debt: 0,
            clean: 0,
            look: 0,
            quote: 0,
            per_mib: 0,
            scale: SCALE,
            patience: 1,
            last: 0,
            typical: 0,
            before_repair: 0,
            hot,
        }
    }

    /// What forks took above [`clean`](Self::clean) since the last freeze or repair.
    pub(crate) const fn debt(&self) -> u64 {
        self.debt
    }

    /// A fork when nothing was written; 0 if there was none.
    pub(crate) const fn clean(&self) -> u64 {
        self.clean
    }

    /// The debt from which on there is a look or, if there was one, a repair.
    pub(crate) fn price(&self) -> u64 {
        let price = if self.quote == 0 { self.look.max(1) } else { self.quote };
        price.saturating_mul(self.patience)
    }

    /// Whether the debt exceeds the price.
    #[cfg(test)]
    fn is_due(&self) -> bool {
        self.debt > self.price()
    }

    /// What a repair may take at most to be worth it.
    pub(crate) const fn most(&self) -> u64 {
        self.debt / self.patience
    }

    /// What the work will take, in the light of how the last quotes have turned out.
    pub(crate) fn quote(&self, work: Work) -> u64 {
        let (mappings, kib) = (work.mappings as u64, work.bytes as u64 >> 10);
        let plain = mappings.saturating_mul(MAPPING).saturating_add(kib.saturating_mul(self.per_mib >> 10));
        plain.saturating_mul(self.scale) / SCALE
    }

    /// A freeze has copied so many bytes in `taken`, of which the look took `looked`. Forks count from here on.
    pub(crate) fn froze(&mut self, bytes: usize, looked: u64, taken: u64) {
        self.per_mib = match bytes >> 20 {
            mib if mib >= TELLING => taken / mib as u64,
            _ if self.per_mib == 0 => CAUTIOUS,
            _ => self.per_mib,
        };
        (self.debt, self.clean, self.quote, self.look) = (0, 0, 0, looked);
        (self.scale, self.patience, self.before_repair) = (SCALE, 1, 0);
    }

    /// Forks that do nothing take `clean` after a freeze.
    pub(crate) const fn measured(&mut self, clean: u64) {
        self.clean = clean;
    }

    /// A fork took so long.
    pub(crate) fn forked(&mut self, taken: u64) {
        let before = std::mem::take(&mut self.before_repair);
        let mut clean = if self.clean == 0 { taken } else { self.clean.min(taken) };
        if before != 0 {
            // The first fork since a repair tells what that was worth, and what a repair cannot take away.
            clean = u64::midpoint(clean, taken);
            let gained = taken < before - before / 4;
            self.patience = if gained { 1 } else { (self.patience * 2).min(MOST_PATIENCE) };
        }
        // Of two, since after one outlier any repair would look like a gain; but the first fork after a repair is not
        // one of them.
        let previous = std::mem::replace(&mut self.last, if before == 0 { taken } else { 0 });
        self.typical = if previous == 0 { taken } else { taken.min(previous) };
        self.clean = clean;
        self.debt = self.debt.saturating_add(taken.saturating_sub(clean));
    }

    /// This is a child: the debt was the parent's.
    pub(crate) const fn inherited(&mut self) {
        self.debt = 0;
    }

    /// A look took so long and gave a quote that is too high.
    pub(crate) fn declined(&mut self, quote: u64, taken: u64) {
        self.look = taken;
        // The next look, which is a part of the repair, must have been earned again.
        self.quote = quote.max(self.debt.saturating_add(taken) / self.patience);
    }

    /// A repair was refused after so long. Whatever forbids it, the next trial must be worth twice as much, and starts
    /// from nothing.
    pub(crate) fn refused(&mut self, taken: u64) {
        self.debt = 0;
        self.look = self.look.max(taken);
        self.patience = (self.patience * 2).min(MOST_PATIENCE);
    }

    /// A repair was made: the look and the work took so long, and the work had been expected to take `quote`.
    pub(crate) fn repaired(&mut self, quote: u64, looked: u64, worked: u64) {
        (self.debt, self.quote, self.look) = (0, 0, looked.max(1));
        self.scale = corrected(self.scale, quote, worked);
        self.before_repair = self.typical;
    }
}

/// The scale of quotes, moved half-way to where this one would have been right.
fn corrected(scale: u64, quote: u64, taken: u64) -> u64 {
    let right = u128::from(scale) * u128::from(taken) / u128::from(quote.max(1));
    let right = u64::try_from(right).unwrap_or(u64::MAX).clamp(SCALE / 8, SCALE * 8);
    u64::midpoint(scale, right)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

//! When to repair: an account of what forks take, what repairs cost, and what is not worth a repair.
//!
//! # The policy
//!
//! Memory that the parent writes to makes forks slower, and a repair takes time too. This is the ski-rental problem:
//! what a fork takes beyond a clean one is debt, and when the debt exceeds the price of a repair, one is bought. So the
//! time lost is at most about twice what the best choice in hindsight would lose.
//!
//! Forks and repairs are measured in CPU time of the thread, since wall-clock time includes what other processes do. A
//! clean fork is what a repair can reach: the quickest fork so far, or, if the first fork after a repair is slower,
//! half-way between the two. Otherwise what no repair can remove (`pthread_atfork` handlers, hot memory, noise) would
//! be debt for ever.
//!
//! The price depends on how much was written, and finding that out takes time as well. So when the debt exceeds the
//! time of the last look, another look gives a quote, and from then on the debt is compared with the quote. Right
//! before the repair there is one more look, so that no repair is bought that has become dearer. What the last repairs
//! really took corrects later quotes. A repair that gains nothing doubles the price of the next one.
//!
//! A repair in slices looks as it goes, and has no quote: its price is what the last one took. It is bought as a whole.
//!
//! If forks and repairs together took more, from one repair to the next, than forks would have taken without freezing,
//! and again the next time, freezing does not pay.
//!
//! Hot memory rests in huge pages if these can be had ([`hot`](super::hot)); they cost each fork a little, too. While a
//! huge page rests, its cost is part of a clean fork; afterwards it is debt, so that a round is bought which freezes
//! what has become cold.
//!
//! Nothing here asks the kernel or reads a clock: whoever has the ledger reports what things took. All times are in
//! nanoseconds.

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::vec::Full;

use super::account::Account;
use super::agenda::{Gathering, Step, Where};
use super::hot::HotPieces;
use super::huge::{Asked, Rests, Supply};
use super::prices::{Memory, Prices};
use crate::hazards::HugePages;
use crate::options::{Pages, Pays};

/// The longest patience: how many times its price a repair must be worth after many that gained nothing. More would
/// save next to nothing, and put off the repair that gains something when the program becomes quiet.
const MOST_PATIENCE: u64 = 1 << 5;
/// The unit of [`Ledger::scale`].
const SCALE: u64 = 1 << 10;
/// What replacing a mapping with present pages takes.
const MAPPING: u64 = 6_000;
/// Freezing is given up once it has cost more than it saved this many times in a row, from repair to repair.
const MOST_LOSSES: u32 = 2;

/// This many forks after a freeze in slices tell what it saves: one may be slow by chance.
const TELLING_FORKS: u64 = 3;

/// Less memory that is new, in bytes, does not keep slices from repairing what is written all the time.
const LEAST_GROWTH: usize = 4 << 20;

/// How many times its expected time a repair in parts may take, at most.
const MOST_WORK: u64 = 4;

/// The account.
#[derive(Debug)]
pub(crate) struct Ledger {
    account: Account,
    /// What forks took beyond the clean time since the last repair.
    debt: u64,
    /// A fork when nothing was written; 0 before the first.
    clean: u64,
    /// What the last look at written memory took.
    look: u64,
    /// What a repair will take, by the last look; 0 before the first look since the last repair.
    quote: u64,
    /// The factor for quotes, in units of [`SCALE`].
    scale: u64,
    /// How many times its price a repair must be worth; doubled by each that gained nothing.
    patience: u64,
    /// The last fork; 0 if it was the first since a repair.
    last: u64,
    /// The quicker of the last two forks.
    typical: u64,
    /// `typical` before the last repair; 0 once it was compared with the first fork after it.
    before_repair: u64,
    /// Whether the next fork sets the clean time anew, since huge pages were made.
    is_clean_anew: bool,
    /// What is frozen.
    frozen: Memory,
    /// The quickest fork since the last freeze; 0 before the first.
    floor: u64,
    /// The last forks of this plan before anything was frozen or gathered; 0 for none, and once they have told. Not all
    /// of them: the program may have grown meanwhile.
    plain: [u64; TELLING_FORKS as usize],
    /// Forks since the last freeze or repair; and the time of these and of looks in vain.
    forks: u64,
    spent: u64,
    /// How many times in a row freezing has cost more than it saved.
    losses: u32,
    /// The repair of which a part was made, if there is one.
    bought: Option<Bought>,
    /// The pass under way that repairs in slices, if there is one.
    pass: Option<Pass>,
    /// Whether slices have met what only a round may repair.
    is_for_round: bool,
    /// The anonymous memory, in bytes, of which a plan has known.
    planned_for: usize,
    pub(super) prices: Prices,
    /// The pieces that are left alone.
    pub(super) hot: HotPieces,
    pub(super) huge: Supply,
}

/// How much there is to do, by an inventory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Amount {
    /// Mappings to replace.
    pub(crate) mappings: usize,
    /// Bytes to copy.
    pub(crate) bytes: usize,
}

impl Amount {
    /// Adds the two.
    #[must_use]
    pub(super) const fn and(self, other: Self) -> Self {
        Self { mappings: self.mappings + other.mappings, bytes: self.bytes + other.bytes }
    }
}

/// A repair that is made in parts.
#[derive(Clone, Copy, Debug)]
struct Bought {
    /// How long the whole repair was expected to take.
    quote: u64,
    /// How long it has taken so far.
    worked: u64,
    /// How long a fork took before the first part.
    typical: u64,
    /// How many huge pages its parts have made.
    huge: usize,
}

/// A pass over frozen memory that repairs it in slices.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// How long it has taken so far.
    taken: u64,
    /// How long a fork took before it.
    typical: u64,
}

/// A finished repair.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Repair {
    /// What the work was expected to take.
    pub(crate) quote: u64,
    /// What the look took.
    pub(crate) looked: u64,
    /// What the work took.
    pub(crate) worked: u64,
    /// The part of that for freezing new memory. It counts as no loss, or a growing program would always be at a loss.
    pub(crate) froze: u64,
    /// What forks took for memory that was frozen only now.
    pub(crate) fresh: u64,
    /// Huge pages made or mended.
    pub(crate) huge: usize,
    /// What is frozen now.
    pub(crate) frozen: Memory,
}

impl Ledger {
    pub(super) const fn new(hot: HotPieces, prices: Prices) -> Self {
        Self {
            account: Account::NEW,
            debt: 0,
            clean: 0,
            look: 0,
            quote: 0,
            scale: SCALE,
            patience: 1,
            last: 0,
            typical: 0,
            before_repair: 0,
            is_clean_anew: false,
            frozen: Memory { bytes: 0, huge: 0, extents: 0 },
            floor: 0,
            plain: [0; TELLING_FORKS as usize],
            forks: 0,
            spent: 0,
            losses: 0,
            bought: None,
            pass: None,
            is_for_round: false,
            planned_for: 0,
            prices,
            hot,
            huge: Supply::new(),
        }
    }

    /// Begins a round: passes what rests to `rests`. `pays` is the option, `huge` whether huge pages are wanted.
    pub(crate) fn begin_round(
        &mut self,
        pays: Pays,
        huge: HugePages,
        rests: impl FnMut(Span) -> Result<(), Full>,
    ) -> Result<(), Full> {
        self.huge.begin(huge);
        let rest = self.huge_rest(pays);
        self.hot.begin(rest, rests)
    }

    /// Notes what came of asking for a huge page in place of a written piece. Returns whether it rests from now on.
    pub(super) fn asked(&mut self, piece: Span, came: Asked) -> Rests {
        match came {
            Asked::Made => {
                self.huge.made();
                let rested = self.hot.rests(piece);
                // If the table has no room for it, the next round freezes it.
                match self.hot.note_huge(piece) {
                    Ok(()) if !rested => return Rests::Newly,
                    _ => {}
                }
            }
            Asked::Refused => self.huge.refused(),
            Asked::Unfit => {}
        }
        Rests::AsBefore
    }

    /// Begins a pass between forks.
    pub(super) fn begin_pass(&mut self, pays: Pays) {
        self.huge.begin_pass();
        let rest = self.huge_rest(pays);
        self.hot.begin_pass(rest);
    }

    fn huge_rest(&self, pays: Pays) -> u64 {
        match pays {
            Pays::Anyway => self.prices.huge_rest(),
            // Freezing it after such a long rest would not pay soon enough.
            Pays::Within(_) => u64::MAX,
        }
    }

    /// Returns what a fork of this length takes beyond a clean one.
    pub(crate) const fn excess(&self, taken: u64) -> u64 {
        taken.saturating_sub(self.clean)
    }

    /// Returns what freezing has cost and saved so far.
    pub(super) const fn account(&self) -> Account {
        self.account
    }

    /// Returns how many huge pages we made, split ones included.
    pub(crate) const fn huge(&self) -> usize {
        self.hot.huge()
    }

    /// Returns what forks took beyond [`clean`](Self::clean) since the last freeze or repair.
    pub(crate) const fn debt(&self) -> u64 {
        self.debt
    }

    /// Returns the time of a fork when nothing was written; 0 if there was none.
    pub(crate) const fn clean(&self) -> u64 {
        self.clean
    }

    /// Returns the debt at which a look follows, or, after a look, a repair.
    pub(crate) fn price(&self) -> u64 {
        if self.bought.is_some() || self.pass.is_some() {
            return 0;
        }
        let price = if self.quote == 0 { self.look.max(1) } else { self.quote };
        price.saturating_mul(self.patience)
    }

    /// Whether the debt exceeds the price.
    #[cfg(test)]
    fn is_due(&self) -> bool {
        self.debt > self.price()
    }

    /// Whether a repair was made in part, so that the next fork makes another part.
    pub(crate) const fn is_repairing(&self) -> bool {
        self.bought.is_some()
    }

    /// Returns the longest that a worthwhile repair may take.
    pub(crate) const fn most(&self) -> u64 {
        if self.bought.is_some() { u64::MAX } else { self.debt / self.patience }
    }

    /// Returns what the work will take, corrected by how the last quotes turned out.
    pub(crate) fn quote(&self, work: Amount) -> u64 {
        let mappings = (work.mappings as u64).saturating_mul(MAPPING);
        mappings.saturating_add(self.prices.copying(work.bytes)).saturating_mul(self.scale) / SCALE
    }

    /// Notes a freeze that copied this many bytes in `taken`, of which the look took `looked`, and what is frozen now.
    /// Forks count from here on.
    pub(crate) fn froze(&mut self, bytes: usize, looked: u64, taken: u64, frozen: Memory) {
        self.account.froze(taken);
        self.prices.froze(bytes, taken);
        (self.bought, self.pass) = (None, None);
        (self.debt, self.clean, self.quote, self.look) = (0, 0, 0, looked);
        (self.scale, self.patience, self.before_repair) = (SCALE, 1, 0);
        (self.frozen, self.floor, self.forks, self.spent, self.losses) = (frozen, 0, 0, 0, 0);
    }

    /// Notes that gathering this many bytes, before a freeze of the rest, took `taken`, and deputies `beside`.
    pub(crate) fn gathered(&mut self, bytes: usize, taken: u64, beside: u64) {
        let all = taken.saturating_add(beside);
        self.account.froze(all);
        self.prices.gathered(bytes, all);
        self.account.had_deputies(beside);
    }

    /// Returns the first step of a freeze in slices.
    pub(crate) fn first_step(&mut self, wish: (Pages, Pays), place: Where) -> Step {
        match wish {
            (Pages::Gather, Pays::Within(forks)) if self.huge.is_open() => {
                if self.prices.is_better_huge(forks) {
                    return Step::Gather(Gathering::new(place));
                }
                // A plan that looks for memory to gather everywhere asks again when that is listed.
                if place == Where::Planned {
                    self.prices.gathers_nothing();
                }
                Step::Freeze
            }
            _ => Step::Freeze,
        }
    }

    /// Whether freezing this much pays.
    pub(crate) fn pays(&self, bytes: usize, pays: Pays) -> bool {
        match pays {
            Pays::Anyway => true,
            Pays::Within(forks) => {
                Prices::of_first(self.prices.worth(Memory::to_freeze(bytes, 0, bytes))).pays_within(forks)
            }
        }
    }

    /// Notes the same where more has come to what was frozen before: what is known of that stays, and forks go on to
    /// count.
    pub(crate) fn froze_more(&mut self, bytes: usize, looked: u64, taken: u64, frozen: Memory) {
        self.account.froze(taken);
        self.prices.froze(bytes, taken);
        (self.bought, self.pass) = (None, None);
        (self.debt, self.quote, self.look, self.frozen) = (0, 0, looked, frozen);
    }

    /// Corrects prices: forks took `before`, take `clean` now, and the freeze was expected to save `expected`.
    pub(crate) fn measured(&mut self, expected: u64, before: u64, clean: u64) {
        self.clean = clean;
        self.prices.gained(expected, before.saturating_sub(clean));
    }

    /// Notes that something else takes the place of a plan: forks of its time tell nothing of another freeze.
    pub(super) const fn drops_plan(&mut self) {
        self.plain = [0; TELLING_FORKS as usize];
    }

    /// Notes a fork that took `taken` while a freeze is under way that has frozen nothing so far: if nothing was
    /// gathered either, it tells what forks take without.
    pub(crate) fn forked_plainly(&mut self, taken: u64) {
        if self.frozen.bytes == 0 && self.hot.huge() == 0 {
            self.plain.rotate_left(1);
            self.plain[TELLING_FORKS as usize - 1] = taken;
        }
    }

    /// Notes a fork that took `taken`.
    pub(crate) fn forked(&mut self, taken: u64) {
        self.floor = if self.floor == 0 { taken } else { self.floor.min(taken) };
        if self.forks + 1 == TELLING_FORKS
            && let Some(before) = std::mem::take(&mut self.plain).into_iter().filter(|plain| *plain != 0).min()
        {
            // The quickest of some tells what a freeze in slices saves, as timed forks do after one in one go.
            self.prices.gained(self.saved(), before.saturating_sub(self.floor));
        }
        self.account.forked(self.saved(), taken - self.floor);
        (self.forks, self.spent) = (self.forks.saturating_add(1), self.spent.saturating_add(taken));
        let before = std::mem::take(&mut self.before_repair);
        let mut clean = if self.clean == 0 { taken } else { self.clean.min(taken) };
        if before != 0 {
            // The first fork since a repair tells what that was worth, and what no repair can remove.
            clean = u64::midpoint(clean, taken);
            if std::mem::take(&mut self.is_clean_anew) {
                clean = taken;
            }
            let gained = taken < before - before / 4;
            self.patience = if gained { 1 } else { (self.patience * 2).min(MOST_PATIENCE) };
        }
        // The quicker of two, since after one outlier every repair would look like a gain; without the first fork after
        // a repair.
        let previous = std::mem::replace(&mut self.last, if before == 0 { taken } else { 0 });
        self.typical = if previous == 0 { taken } else { taken.min(previous) };
        self.clean = clean;
        // The price has the same factor, but earlier repairs that gained nothing say nothing of this one.
        let rent = (self.hot.forked() as u64).saturating_mul(self.prices.rent()).saturating_mul(self.patience);
        self.debt = self.debt.saturating_add(taken.saturating_sub(clean)).saturating_add(rent);
    }

    /// Begins a child's account: the debt was the parent's.
    pub(crate) const fn inherited(&mut self) {
        self.account = Account::NEW;
        (self.debt, self.bought, self.pass) = (0, None, None);
        self.drops_plan();
    }

    /// Notes a look that took `taken` and gave a quote that is too high.
    pub(crate) fn declined(&mut self, quote: u64, taken: u64) {
        (self.is_for_round, self.pass) = (false, None);
        self.account.repaired(taken);
        self.look = taken;
        self.spent = self.spent.saturating_add(taken);
        // The next look, as part of a repair, must be earned first.
        self.quote = quote.max(self.debt.saturating_add(taken) / self.patience);
    }

    /// Notes a repair that was refused after `taken`. Whatever forbids it, the next trial must be worth twice as much,
    /// and its debt starts from nothing.
    pub(crate) fn refused(&mut self, taken: u64) {
        (self.is_for_round, self.pass) = (false, None);
        self.account.repaired(taken);
        (self.debt, self.bought) = (0, None);
        self.look = self.look.max(taken);
        self.patience = (self.patience * 2).min(MOST_PATIENCE);
    }

    /// Notes that a slice between forks worked for `taken`, and deputies for `beside`.
    pub(crate) fn worked_between_forks(&mut self, taken: u64, beside: u64) {
        self.account.repaired(taken.saturating_add(beside));
        self.account.had_deputies(beside);
    }

    /// Notes that this was in place of a repair: spends the debt that would have bought one for `taken`.
    pub(crate) fn tended(&mut self, taken: u64) {
        self.debt = self.debt.saturating_sub(taken);
        self.spent = self.spent.saturating_add(taken);
    }

    /// Notes a slice that took `taken`, and froze `refrozen` mappings again. Returns whether it is a part of a repair:
    /// a pass is one from there on, and goes on to its end, with a slice at each fork. Of what it took, forks have
    /// `paid` this much: slices at waits take time that nobody misses.
    pub(crate) fn repaired_in_slice(&mut self, taken: u64, refrozen: usize, paid: u64) -> bool {
        let first = (refrozen > 0).then_some(Pass { taken: 0, typical: self.typical });
        let Some(pass) = self.pass.or(first) else { return false };
        self.pass = Some(Pass { taken: pass.taken.saturating_add(taken), ..pass });
        self.spent = self.spent.saturating_add(paid);
        true
    }

    /// Notes that slices have met something that only a round may repair.
    pub(crate) const fn leaves_to_round(&mut self) {
        self.is_for_round = true;
    }

    /// Whether they have, since the last round.
    pub(crate) const fn is_for_round(&self) -> bool {
        self.is_for_round
    }

    /// Notes that a plan knows of so much anonymous memory.
    pub(crate) const fn plans_for(&mut self, anonymous: usize) {
        self.planned_for = anonymous;
    }

    /// Whether so much anonymous memory is clearly more than the last plan has known of.
    pub(crate) fn has_grown(&self, anonymous: usize) -> bool {
        anonymous.saturating_sub(self.planned_for) > LEAST_GROWTH.max(self.frozen.bytes / 8)
    }

    /// Ends such a pass before its time.
    pub(crate) const fn breaks_off(&mut self) {
        self.pass = None;
    }

    /// Notes the end of such a pass, and what is frozen now. The next one is expected to take as long.
    pub(crate) fn passed(&mut self, frozen: Memory) {
        let Some(Pass { typical, taken }) = self.pass.take() else { return };
        (self.look, self.quote) = (taken.max(1), 0);
        self.hot.end_pass();
        let own = self.floor.saturating_mul(self.forks);
        self.ends_repair(self.spent.saturating_sub(own), frozen);
        (self.debt, self.before_repair) = (0, typical);
    }

    /// Notes what forks and repairs have cost since the last repair, beyond what forks without writes would have, and
    /// begins anew.
    fn ends_repair(&mut self, cost: u64, frozen: Memory) {
        let is_lost = cost > self.forks.saturating_mul(self.saved());
        // Without a fork nothing can have been saved yet.
        if self.forks > 0 {
            self.losses = if is_lost { self.losses + 1 } else { 0 };
        }
        (self.forks, self.spent, self.frozen) = (0, 0, frozen);
    }

    /// Notes a finished repair.
    pub(crate) fn repaired(&mut self, repair: Repair) {
        (self.is_for_round, self.pass) = (false, None);
        let Repair { quote, looked, worked, froze, fresh, huge, frozen } = repair;
        self.account.repaired(looked.saturating_add(worked));
        let whole = self.bought.take().unwrap_or(self.begun(quote));
        // Not the debt, which leaves out what no repair can remove: thawing could remove it.
        let own = self.floor.saturating_add(fresh).saturating_mul(self.forks);
        let cost = self.spent.saturating_sub(own).saturating_add(looked).saturating_add(worked.saturating_sub(froze));
        self.ends_repair(cost, frozen);
        (self.debt, self.quote, self.look) = (0, 0, looked.max(1));
        self.scale = corrected(self.scale, whole.quote, whole.worked.saturating_add(worked));
        (self.before_repair, self.is_clean_anew) = (whole.typical, whole.huge + huge > 0);
    }

    /// Returns a repair that is about to begin.
    const fn begun(&self, quote: u64) -> Bought {
        Bought { quote, worked: 0, typical: self.typical, huge: 0 }
    }

    /// Whether a repair goes on after this part. It would never end if the program undid the parts between forks as
    /// fast as they are made.
    pub(crate) fn goes_on(&self, part: &Repair) -> bool {
        let so_far = self.bought.unwrap_or(self.begun(part.quote));
        so_far.worked.saturating_add(part.worked) <= so_far.quote.saturating_mul(MOST_WORK)
    }

    /// Ends a repair after a part that was not the last. It counts as finished, and its parts as a round.
    pub(crate) fn gives_up(&mut self, part: Repair) {
        self.hot.end();
        self.repaired(part);
    }

    /// Notes that a part of a repair was made. Once bought, a repair goes on to its end, a part at each fork.
    pub(crate) fn repaired_in_part(&mut self, repair: Repair) {
        self.pass = None;
        let Repair { quote, looked, worked, froze, huge, frozen, .. } = repair;
        let taken = looked.saturating_add(worked);
        self.account.repaired(taken);
        self.spent = self.spent.saturating_add(looked).saturating_add(worked.saturating_sub(froze));
        let before = self.bought.unwrap_or(self.begun(quote));
        let worked = before.worked.saturating_add(worked);
        self.bought = Some(Bought { worked, huge: before.huge + huge, ..before });
        (self.look, self.frozen) = (looked.max(1), frozen);
    }

    /// Returns what each fork would take more without frozen memory and without the huge pages we made.
    pub(crate) fn saved(&self) -> u64 {
        let frozen = u64::try_from(self.prices.worth(self.frozen).per_fork.as_nanos()).unwrap_or(u64::MAX);
        frozen.saturating_add((self.hot.huge() as u64).saturating_mul(self.prices.saved_by_huge()))
    }

    /// Whether forks and repairs took more than forks without freezing would have, again and again.
    pub(crate) const fn has_lost(&self) -> bool {
        self.losses >= MOST_LOSSES
    }

    /// Notes that this much of what was frozen is not any more, since it is in huge pages of ours: each fork is spared
    /// once for it.
    pub(super) fn no_longer_frozen(&mut self, bytes: usize, extents: usize) {
        self.frozen.bytes = self.frozen.bytes.saturating_sub(bytes);
        self.frozen.extents = extents;
    }

    /// Notes that nothing is frozen any more.
    pub(crate) fn thawed(&mut self) {
        (self.debt, self.quote, self.before_repair, self.bought, self.pass) = (0, 0, 0, None, None);
        (self.frozen, self.forks, self.spent, self.losses) = (Memory::default(), 0, 0, 0);
    }
}

/// Moves the factor for quotes half-way to the one that would have been right this time.
fn corrected(scale: u64, quote: u64, taken: u64) -> u64 {
    let right = u128::from(scale) * u128::from(taken) / u128::from(quote.max(1));
    let right = u64::try_from(right).unwrap_or(u64::MAX).clamp(SCALE / 8, SCALE * 8);
    u64::midpoint(scale, right)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "mix_tests.rs"]
mod mixes;

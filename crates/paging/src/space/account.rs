//! Charges for tables and pages; see [`Accounting`].

use super::{Accounting, Locked};
use crate::address::{Frame, Level, PAGE};
use crate::entry::load;
use crate::format::{Entry, Format};
use crate::machine::{Charge, Machine};

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Charges the space for `pages` pages more (or fewer, if negative).
    pub(crate) fn charge_pages(&self, pages: i64) {
        if pages != 0 {
            self.machine.charge(self.id, Charge { pages, tables: 0 });
        }
    }

    /// Charges the space for a table that only it refers to now.
    pub(crate) fn own(&self, frame: Frame, level: Level) {
        let meta = self.meta(frame);
        if meta.owner() == Some(self.id) {
            return;
        }
        meta.set_owner(Some(self.id));
        let pages = match self.options.accounting {
            Accounting::Deferred => self.pages_in(frame, level),
            Accounting::Exact => 0,
        };
        self.machine.charge(self.id, Charge { pages, tables: 1 });
    }

    /// Charges the space only for a table: it is charged for the pages already.
    pub(crate) fn own_unfilled(&self, frame: Frame) {
        self.meta(frame).set_owner(Some(self.id));
        self.machine.charge(self.id, Charge { pages: 0, tables: 1 });
    }

    /// Ends the charge for a table; the space may keep its pages.
    pub(crate) fn disown(&self, frame: Frame, level: Level) {
        let meta = self.meta(frame);
        if meta.owner() == Some(self.id) {
            meta.set_owner(None);
            let pages = match self.options.accounting {
                Accounting::Deferred => self.pages_in(frame, level),
                Accounting::Exact => 0,
            };
            self.machine.charge(self.id, Charge { pages: -pages, tables: -1 });
        }
    }

    /// Ends the charges for a tree of tables to which the space no longer refers.
    pub(crate) fn disown_tree(&self, frame: Frame, level: Level) {
        self.each_table(frame, level, &mut |frame, level| {
            self.disown(frame, level);
            if self.options.accounting == Accounting::Exact {
                self.charge_pages(-self.pages_in(frame, level));
            }
        });
    }

    /// Charges the space `to` for the pages of a tree of tables that this space has made.
    pub(crate) fn charge_tree(&self, frame: Frame, level: Level, to: super::SpaceId) {
        if self.options.accounting == Accounting::Exact {
            self.each_table(frame, level, &mut |frame, level| {
                self.machine.charge(to, Charge { pages: self.pages_in(frame, level), tables: 0 });
            });
        }
    }

    fn each_table(&self, frame: Frame, level: Level, visit: &mut dyn FnMut(Frame, Level)) {
        visit(frame, level);
        let Some(below) = level.below() else { return };
        for entry in &self.table(frame).0 {
            if let Entry::Table { frame, .. } = F::decode(level, load(entry)) {
                self.each_table(frame, below, visit);
            }
        }
    }

    /// Returns the 4 KiB pages that a table's own leaves map.
    fn pages_in(&self, frame: Frame, level: Level) -> i64 {
        if level == Level::LAST {
            return i64::from(self.meta(frame).populated());
        }
        let leaves = self.table(frame).0.iter().filter(|entry| matches!(F::decode(level, load(entry)), Entry::Leaf(_)));
        leaves.count() as i64 * pages_of(level)
    }
}

/// Returns the 4 KiB pages that one leaf of this level maps.
#[inline]
pub(crate) const fn pages_of(level: Level) -> i64 {
    (level.entry_bytes() / PAGE) as i64
}

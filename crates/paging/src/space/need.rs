//! Counts the tables that an operation needs, before it starts.

use core::ops::Range;

use super::{Locked, slots, whole_entries};
use crate::address::{Frame, Level, VirtAddr};
use crate::format::{Entry, Format};
use crate::machine::Machine;

/// What an operation will do to a range.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Fill every empty entry, by entries of at most this level, as high as the alignment allows.
    Fill(Level),
    /// Change pages one by one; large pages within the range as a whole.
    Change,
    /// Remove pages and whole tables.
    Remove,
    /// Reach every page as one of 4 KiB.
    Small,
}

/// Whether a table on the way is shared: then, once that is copied, all below it are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Above {
    Own,
    Shared,
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Returns the maximum number of tables that `purpose` needs: new ones, copies of shared ones, and those of split
    /// large pages.
    ///
    /// While the lock is held the count can only decrease, since others can share tables only if they have a reference.
    pub(crate) fn need(&self, range: Range<VirtAddr>, purpose: Purpose) -> usize {
        self.need_in(self.root(), F::TOP, range, purpose, Above::Own)
    }

    fn need_in(&self, table: Frame, level: Level, range: Range<VirtAddr>, purpose: Purpose, above: Above) -> usize {
        let Some(below) = level.below() else { return 0 };
        let mut need = 0;
        for slot in slots(level, range) {
            need += match self.entry(table, level, slot.index) {
                Entry::Empty => match purpose {
                    Purpose::Fill(highest) => new_tables(level, slot.range, highest),
                    Purpose::Change | Purpose::Remove | Purpose::Small => 0,
                },
                Entry::Leaf(_) if slot.whole && purpose != Purpose::Small => 0,
                // It is split; its parts may have to be split again.
                Entry::Leaf(_) => 1 + split_tables(below, slot.range, purpose),
                Entry::Table { frame, .. }
                    if slot.whole && purpose == Purpose::Remove && self.meta(frame).replica().is_none() =>
                {
                    0
                }
                // Pages are small there already.
                Entry::Table { .. } if purpose == Purpose::Small && below == Level::LAST => 0,
                Entry::Table { frame, .. } => {
                    let is_shared = above == Above::Shared || self.meta(frame).shares() > 1;
                    let above = if is_shared { Above::Shared } else { Above::Own };
                    usize::from(is_shared) + self.need_in(frame, below, slot.range, purpose, above)
                }
            };
        }
        need
    }
}

/// Returns the tables needed below an empty entry of `level`, to fill `range` of what it translates.
fn new_tables(level: Level, range: Range<VirtAddr>, highest: Level) -> usize {
    let Some(below) = level.below() else { return 0 };
    let bytes = level.entry_bytes();
    let whole = range.start.0 & (bytes - 1) == 0 && range.end.0.wrapping_sub(range.start.0) == bytes;
    if whole && level <= highest {
        return 0;
    }
    // Most entries become pages, which need no tables.
    let pages = if below <= highest { whole_entries(below, &range) } else { range.end..range.end };
    let parts = [range.start..pages.start, pages.end..range.end];
    1 + parts
        .into_iter()
        .flat_map(|part| slots(below, part))
        .map(|slot| new_tables(below, slot.range, highest))
        .sum::<usize>()
}

/// Returns the tables needed below a large page of the level above `level` that is split to reach `range` of it.
fn split_tables(level: Level, range: Range<VirtAddr>, purpose: Purpose) -> usize {
    let Some(below) = level.below() else { return 0 };
    slots(level, range)
        .filter(|slot| !slot.whole || purpose == Purpose::Small)
        .map(|slot| 1 + split_tables(below, slot.range, purpose))
        .sum()
}

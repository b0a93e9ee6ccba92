//! Runs of units: free ones in lists by size, merged with their neighbours when they come back.
//!
//! A free run is noted at both of its ends, so that a neighbour finds it on whichever side it is. Its first `dirty`
//! units may hold old bytes, the rest reads as zeros: unused memory at the end of the arena joins the run before it
//! without losing that knowledge.

use super::unit::{Kind, NONE, Units};

/// Lists: one for each power of two.
const LISTS: usize = 32;

/// How many runs to look at in the list whose runs may or may not be long enough.
const LOOKS: usize = 32;

/// The free runs.
#[derive(Default)]
pub(super) struct Runs {
    heads: [u32; LISTS],
    /// Bit `i` tells whether list `i` has a run.
    filled: u32,
    /// Units in all of them.
    pub(super) free: u32,
}

/// Units taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Taken {
    pub(super) first: u32,
    /// This many of the first units may hold old bytes.
    pub(super) dirty: u32,
}

impl Runs {
    /// Takes `len` units, the first at a multiple of `align` units counted from `origin`: the number of units before
    /// the first in the address space, modulo `align`.
    pub(super) fn take(&mut self, units: &Units, len: u32, align: u32, origin: u32) -> Option<Taken> {
        let wanted = len.checked_add(align - 1).filter(|wanted| *wanted < 1 << (LISTS - 1))?;
        let run = self.find(units, len, align, origin, wanted)?;
        let (total, dirty) = (units.get(run).len.get(), units.get(run).dirty.get());
        let first = aligned(run, align, origin);
        self.unlink(units, run);
        let before = first - run;
        let after = total - before - len;
        if before > 0 {
            self.link(units, run, before, dirty.min(before));
        }
        if after > 0 {
            self.link(units, first + len, after, dirty.saturating_sub(before + len));
        }
        mark(units, first, len, Kind::Run);
        Some(Taken { first, dirty: dirty.saturating_sub(before).min(len) })
    }

    fn find(&self, units: &Units, len: u32, align: u32, origin: u32, wanted: u32) -> Option<u32> {
        for list in list_of(len)..=list_of(wanted) {
            let mut run = self.heads[list];
            for _ in 0..LOOKS {
                if run == NONE {
                    break;
                }
                let unit = units.get(run);
                if aligned(run, align, origin) - run + len <= unit.len.get() {
                    return Some(run);
                }
                run = unit.next.get();
            }
        }
        // Every run of a list above that of `wanted` is long enough.
        let above = self.filled & (u32::MAX << (list_of(wanted) + 1));
        (above != 0).then(|| self.heads[above.trailing_zeros() as usize])
    }

    /// Gives back `len` units, of which the first `dirty` may hold something other than zeros. Returns the free run
    /// that they join.
    pub(super) fn give(&mut self, units: &Units, first: u32, len: u32, dirty: u32) -> u32 {
        let (mut start, mut total, mut soiled) = (first, len, dirty);
        let behind = first + len;
        if behind < units.count() && units.get(behind).kind() == Kind::Free && units.get(behind).len.get() > 0 {
            let next = units.get(behind);
            self.unlink(units, behind);
            let next_dirty = next.dirty.get();
            soiled = if next_dirty > 0 { total + next_dirty } else { soiled };
            total += next.len.get();
            next.len.set(0);
        }
        let last = units.get(first - 1);
        if first > 1 && last.kind() == Kind::Free && last.len.get() > 0 {
            let before = units.get(last.head.get());
            let before_len = before.len.get();
            start = last.head.get();
            self.unlink(units, start);
            soiled = if soiled > 0 { before_len + soiled } else { before.dirty.get() };
            total += before_len;
            last.len.set(0);
        }
        self.link(units, start, total, soiled);
        start
    }

    /// Takes `more` units directly behind a run in use, if they are free. Returns how many of them may hold old bytes.
    pub(super) fn extend(&mut self, units: &Units, first: u32, len: u32, more: u32) -> Option<u32> {
        let behind = first.checked_add(len)?;
        if behind >= units.count() || units.get(behind).kind() != Kind::Free {
            return None;
        }
        let (total, dirty) = (units.get(behind).len.get(), units.get(behind).dirty.get());
        let rest = total.checked_sub(more)?;
        if total == 0 {
            return None;
        }
        self.unlink(units, behind);
        if rest > 0 {
            self.link(units, behind + more, rest, dirty.saturating_sub(more));
        }
        mark(units, first, len + more, Kind::Run);
        Some(dirty.min(more))
    }

    /// Returns the length of the free run that ends before unit `end`; 0 if that is in use.
    pub(super) fn free_before(&self, units: &Units, end: u32) -> u32 {
        if end < 2 {
            return 0;
        }
        let last = units.get(end - 1);
        if last.kind() == Kind::Free { last.len.get() } else { 0 }
    }

    /// Calls `visit` with the first unit and the length of each free run.
    pub(super) fn each(&self, units: &Units, mut visit: impl FnMut(u32, u32)) {
        for &head in &self.heads {
            let mut run = head;
            while run != NONE {
                visit(run, units.get(run).len.get());
                run = units.get(run).next.get();
            }
        }
    }

    /// Returns the first unit and the dirty units of the next free run after unit `last` that may hold old bytes.
    pub(super) fn next_dirty(&self, units: &Units, last: u32) -> Option<(u32, u32)> {
        let mut next = None;
        self.each(units, |first, _| {
            if first > last && units.get(first).dirty.get() > 0 && next.is_none_or(|found| first < found) {
                next = Some(first);
            }
        });
        next.map(|first| (first, units.get(first).dirty.get()))
    }

    /// Returns the length of the longest free run, in units.
    pub(super) fn longest(&self, units: &Units) -> u32 {
        let mut longest = 0;
        self.each(units, |_, len| longest = longest.max(len));
        longest
    }

    fn link(&mut self, units: &Units, first: u32, len: u32, dirty: u32) {
        let list = list_of(len);
        let next = self.heads[list];
        mark(units, first, len, Kind::Free);
        let unit = units.get(first);
        unit.dirty.set(dirty);
        unit.previous.set(NONE);
        unit.next.set(next);
        if next != NONE {
            units.get(next).previous.set(first);
        }
        self.heads[list] = first;
        self.filled |= 1 << list;
        self.free += len;
    }

    fn unlink(&mut self, units: &Units, first: u32) {
        let unit = units.get(first);
        let (list, previous, next) = (list_of(unit.len.get()), unit.previous.get(), unit.next.get());
        if next != NONE {
            units.get(next).previous.set(previous);
        }
        if previous == NONE {
            self.heads[list] = next;
            if next == NONE {
                self.filled &= !(1 << list);
            }
        } else {
            units.get(previous).next.set(next);
        }
        self.free -= unit.len.get();
    }
}

/// Writes kind and length at both ends.
pub(super) fn mark(units: &Units, first: u32, len: u32, kind: Kind) {
    for index in [first, first + len - 1] {
        let unit = units.get(index);
        unit.set_kind(kind);
        unit.head.set(first);
        unit.len.set(len);
    }
}

fn list_of(len: u32) -> usize {
    len.ilog2() as usize
}

/// Returns the first aligned unit from `index` on.
fn aligned(index: u32, align: u32, origin: u32) -> u32 {
    let place = origin.wrapping_add(index);
    index + (place.wrapping_neg() & (align - 1))
}

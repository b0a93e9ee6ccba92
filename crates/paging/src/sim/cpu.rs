//! A CPU: the translations that it remembers, and its walks through the tables.

use std::ops::Range;

use super::mmu::{AfterFault, Allowed, Descriptor, Marks, Mmu};
use crate::access::{Access, AccessKind};
use crate::address::{Frame, Level, PAGE, VirtAddr};
use crate::id::SpaceId;
use crate::machine::Node;

/// A translation in the TLB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Translation {
    pub(super) start: u64,
    pub(super) level: Level,
    pub(super) frame: u64,
    pub(super) allowed: Allowed,
    pub(super) dirty: bool,
}

impl Translation {
    fn range(&self) -> (u64, u64) {
        (self.start, self.start + (self.level.entry_bytes() - 1))
    }

    /// Returns the physical address of `address`'s frame.
    pub(super) fn physical(&self, address: VirtAddr) -> u64 {
        self.frame + ((address.0 - self.start) & !(PAGE - 1))
    }
}

/// A part of a walk: the table of `level` for the addresses from `start` on, and what all entries above it allow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) start: u64,
    pub(super) level: Level,
    pub(super) table: Frame,
    pub(super) allowed: Allowed,
}

impl Part {
    fn range(&self) -> (u64, u64) {
        (self.start, self.start + (self.level.table_bytes() - 1))
    }
}

/// A walk under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Walk {
    pub(super) address: VirtAddr,
    pub(super) access: Access,
    /// The table to read next; `None` before the first step.
    pub(super) at: Option<Part>,
}

/// The report of an access that does not pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trap {
    /// The address.
    pub address: VirtAddr,
    /// The access.
    pub access: Access,
}

/// The result of a step of a walk.
pub(super) enum Step {
    More(Walk),
    Done(Translation),
    Trapped(Trap),
}

/// What must leave the TLB and the walk cache.
#[derive(Clone, Debug)]
pub(super) enum Ranges {
    All,
    /// Whole walks to these addresses.
    Walks(Vec<Range<VirtAddr>>),
    /// Only their last entries: parts of walks stay.
    Leaves(Vec<Range<VirtAddr>>),
}

impl Ranges {
    /// Returns the whole walk to one page.
    fn page(address: VirtAddr) -> Self {
        let start = VirtAddr(address.0 & !(PAGE - 1));
        Self::Walks(std::iter::once(start..VirtAddr(start.0.saturating_add(PAGE))).collect())
    }
}

#[derive(Debug)]
pub(super) struct Cpu {
    pub(super) node: Node,
    pub(super) running: Option<(SpaceId, Frame)>,
    pub(super) tlb: Vec<Translation>,
    pub(super) parts: Vec<Part>,
    pub(super) walk: Option<Walk>,
    pub(super) inbox: Vec<(SpaceId, Ranges)>,
    next: usize,
}

/// Entries of the TLB, and of the walk cache.
const TLB: usize = 16;
const PARTS: usize = 12;

/// Memory of tables, for a walker.
pub(super) trait Memory {
    /// Reads an entry; `None` if the table is not allocated.
    fn read(&self, table: Frame, index: usize) -> Option<u64>;
    /// Sets bits if the entry is still as it was read.
    fn set(&self, table: Frame, index: usize, seen: u64, set: u64) -> bool;
}

fn overlap(range: (u64, u64), other: &Range<VirtAddr>) -> bool {
    other.start.0 <= range.1 && range.0 < other.end.0
}

impl Cpu {
    pub(super) fn new(node: Node) -> Self {
        Self { node, running: None, tlb: Vec::new(), parts: Vec::new(), walk: None, inbox: Vec::new(), next: 0 }
    }

    pub(super) fn switch(&mut self, to: Option<(SpaceId, Frame)>) {
        self.running = to;
        self.forget(&Ranges::All);
    }

    /// Takes all interrupts that have arrived.
    pub(super) fn take_interrupts(&mut self) {
        for (space, ranges) in std::mem::take(&mut self.inbox) {
            if self.running.is_some_and(|(running, _)| running == space) {
                self.forget(&ranges);
            }
        }
    }

    /// Drops the translations of addresses in these ranges; a walk under way to them starts again.
    pub(super) fn forget(&mut self, ranges: &Ranges) {
        match ranges {
            Ranges::All => {
                self.tlb.clear();
                self.parts.clear();
                self.walk = self.walk.map(|walk| Walk { at: None, ..walk });
            }
            Ranges::Leaves(ranges) => {
                self.tlb.retain(|entry| !ranges.iter().any(|range| overlap(entry.range(), range)));
            }
            Ranges::Walks(ranges) => {
                let hit = |of: (u64, u64)| ranges.iter().any(|range| overlap(of, range));
                self.tlb.retain(|entry| !hit(entry.range()));
                self.parts.retain(|part| !hit(part.range()));
                self.walk = self.walk.map(|walk| match walk.at {
                    Some(part) if hit(part.range()) => Walk { at: None, ..walk },
                    _ => walk,
                });
            }
        }
    }

    /// Returns a translation in the TLB that lets the access pass. One that does not lets it trap; one whose page must
    /// be marked first is dropped.
    pub(super) fn look_up(
        &mut self,
        address: VirtAddr,
        access: Access,
        mmu: &Mmu,
    ) -> Option<Result<Translation, Trap>> {
        let holds = |entry: &Translation| entry.range().0 <= address.0 && address.0 <= entry.range().1;
        let index = self.tlb.iter().position(holds)?;
        let entry = self.tlb[index];
        if !entry.allowed.allows(access) {
            if mmu.after_fault == AfterFault::Evicted {
                self.forget(&Ranges::page(address));
            }
            return Some(Err(Trap { address, access }));
        }
        if access.kind == AccessKind::Write && !entry.dirty {
            self.tlb.swap_remove(index);
            return None;
        }
        Some(Ok(entry))
    }

    /// Does one step of a walk: reads one entry.
    pub(super) fn step(&mut self, walk: Walk, mmu: &Mmu, memory: &impl Memory) -> Step {
        let trap = Trap { address: walk.address, access: walk.access };
        let Some((_, root)) = self.running.filter(|_| (mmu.is_valid)(walk.address)) else { return Step::Trapped(trap) };
        let part = walk.at.unwrap_or_else(|| self.deepest(walk.address, mmu, root));
        let index = part.level.index(walk.address);
        let Some(bits) = memory.read(part.table, index) else { return Step::Trapped(trap) };
        match (mmu.read)(part.level.number(), bits) {
            Descriptor::Invalid => Step::Trapped(trap),
            Descriptor::Table { address, allowed } => {
                let Some(level) = part.level.below() else { return Step::Trapped(trap) };
                let start = walk.address.0 & !(level.table_bytes() - 1);
                let below =
                    Part { start, level, table: Frame::containing(address), allowed: part.allowed.and(allowed) };
                let next = self.turn(PARTS);
                remember(&mut self.parts, below, next);
                Step::More(Walk { at: Some(below), ..walk })
            }
            Descriptor::Page { address, allowed, accessed, dirty } => {
                let allowed = allowed.and(part.allowed);
                let store = walk.access.kind == AccessKind::Write;
                let passes = allowed.allows(walk.access);
                let mut now_dirty = dirty;
                match mmu.marks {
                    Marks::Kernel if !accessed || store && !dirty => return self.fault(trap, mmu),
                    Marks::Kernel => {}
                    Marks::Walker { accessed: accessed_bit, dirty: dirty_bit } => {
                        let set = if store && passes { accessed_bit | dirty_bit } else { accessed_bit };
                        now_dirty = (bits | set) & dirty_bit != 0;
                        if bits & set != set && !memory.set(part.table, index, bits, set) {
                            // The entry has changed meanwhile: reads it again.
                            return Step::More(Walk { at: Some(part), ..walk });
                        }
                    }
                }
                let bytes = part.level.entry_bytes();
                let entry = Translation {
                    start: walk.address.0 & !(bytes - 1),
                    level: part.level,
                    frame: address,
                    allowed,
                    dirty: now_dirty,
                };
                if !passes {
                    if mmu.after_fault == AfterFault::Kept {
                        self.remember(entry);
                    }
                    return self.fault(trap, mmu);
                }
                self.remember(entry);
                Step::Done(entry)
            }
        }
    }

    /// Handles a fault. On x86-64 it drops the address's translation (Intel SDM volume 3, 5.10.4.1); elsewhere it does
    /// nothing.
    fn fault(&mut self, trap: Trap, mmu: &Mmu) -> Step {
        if mmu.after_fault == AfterFault::Evicted {
            self.forget(&Ranges::page(trap.address));
        }
        Step::Trapped(trap)
    }

    /// Returns where a walk can start: at the lowest remembered table, or at the root.
    fn deepest(&self, address: VirtAddr, mmu: &Mmu, root: Frame) -> Part {
        let fits = self.parts.iter().filter(|part| part.range().0 <= address.0 && address.0 <= part.range().1);
        let root_start = address.0 & !(mmu.top.table_bytes() - 1);
        fits.min_by_key(|part| part.level).copied().unwrap_or(Part {
            start: root_start,
            level: mmu.top,
            table: root,
            allowed: Allowed::ALL,
        })
    }

    fn remember(&mut self, entry: Translation) {
        self.tlb.retain(|old| old.range().1 < entry.start || entry.range().1 < old.start);
        let next = self.turn(TLB);
        remember(&mut self.tlb, entry, next);
    }

    fn turn(&mut self, of: usize) -> usize {
        self.next = self.next.wrapping_add(1);
        self.next % of
    }
}

/// Adds an item to a list of limited length; replaces item `next` when the list is full.
fn remember<T: Copy + PartialEq + Limited>(list: &mut Vec<T>, item: T, next: usize) {
    if list.contains(&item) {
        return;
    }
    if list.len() < T::LIMIT { list.push(item) } else { list[next] = item }
}

trait Limited {
    const LIMIT: usize;
}

impl Limited for Translation {
    const LIMIT: usize = TLB;
}

impl Limited for Part {
    const LIMIT: usize = PARTS;
}

//! Compares the CPUs' memory and the counts with the tables.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::Ordering;

use super::cpu::{Cpu, Part, Translation};
use super::mmu::{Allowed, Descriptor, Marks};
use super::{Computer, Failure, lock, pages};
use crate::address::{ENTRIES, Frame, Level, VirtAddr};
use crate::format::Entry;
use crate::id::SpaceId;

/// The bits of all allocated tables at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot(BTreeMap<Frame, Box<[u64]>>);

impl Snapshot {
    /// Counts the entries that differ; entries of new tables are compared with empty ones.
    pub fn entries_written_until(&self, later: &Self) -> usize {
        let changed = |(frame, bits): (&Frame, &[u64])| match self.0.get(frame) {
            Some(before) => before.iter().zip(bits.iter()).filter(|(old, new)| old != new).count(),
            None => bits.iter().filter(|&&new| new != 0).count(),
        };
        later.0.iter().map(|(frame, bits)| changed((frame, bits.as_ref()))).sum()
    }

    /// Returns the number of tables.
    pub fn tables(&self) -> usize {
        self.0.len()
    }
}

impl Computer {
    /// Returns the bits of all tables.
    pub fn snapshot(&self) -> Snapshot {
        let frames = self.tables.iter().flat_map(|tables| tables.frames());
        let bits = |frame: Frame| self.table_at(frame).0.0.iter().map(|entry| entry.load(Ordering::Acquire)).collect();
        Snapshot(frames.map(|frame| (frame, bits(frame))).collect())
    }

    /// Notes a failure for each translation of a space that a CPU remembers but the tables do not have. Call it while
    /// no flush of the space is due.
    pub fn expect_coherent(&self, space: SpaceId) {
        for (number, cpu) in self.cpus.iter().enumerate() {
            let mut cpu = lock(cpu);
            let Some((_, root)) = cpu.running.filter(|(running, _)| *running == space) else { continue };
            let walking = cpu.walk.and_then(|walk| walk.at);
            let stale = |address| Failure::Stale { cpu: number, address: VirtAddr(address) };
            let entries = cpu.tlb.iter().filter(|entry| !self.is_current(root, entry)).map(|entry| stale(entry.start));
            let parts = cpu.parts.iter().chain(&walking).filter(|part| !self.is_part(root, part));
            let failures: Vec<_> = entries.chain(parts.map(|part| stale(part.start))).collect();
            if failures.is_empty() {
                continue;
            }
            // Reports each once.
            forget_all(&mut cpu);
            drop(cpu);
            failures.into_iter().for_each(|failure| self.failed(failure));
        }
    }

    /// Returns what the tables now say about `address`: the table of `until` on the way, or the page's entry.
    fn look(&self, root: Frame, address: u64, until: Level) -> Option<(Frame, Allowed)> {
        let (mut table, mut level, mut allowed) = (root, self.mmu.top, Allowed::ALL);
        while level > until {
            let bits = self.table_at(table).0.0[level.index(VirtAddr(address))].load(Ordering::Acquire);
            let Descriptor::Table { address, allowed: here } = (self.mmu.read)(level.number(), bits) else {
                return None;
            };
            (table, level, allowed) = (Frame::containing(address), level.below()?, allowed.and(here));
        }
        Some((table, allowed))
    }

    fn is_part(&self, root: Frame, part: &Part) -> bool {
        self.look(root, part.start, part.level)
            .is_some_and(|(table, allowed)| table == part.table && part.allowed.is_within(allowed))
    }

    fn is_current(&self, root: Frame, entry: &Translation) -> bool {
        let Some((table, above)) = self.look(root, entry.start, entry.level) else { return false };
        let bits = self.table_at(table).0.0[entry.level.index(VirtAddr(entry.start))].load(Ordering::Acquire);
        let Descriptor::Page { address, allowed, accessed, dirty } = (self.mmu.read)(entry.level.number(), bits) else {
            return false;
        };
        // The walker may have set marks in another node's copy of the table before this CPU knew its own copy; so marks
        // of all copies count.
        let marked = match self.mmu.marks {
            Marks::Kernel => accessed,
            Marks::Walker { .. } => self.tables.len() > 1 || accessed && (dirty || !entry.dirty),
        };
        address == entry.frame && entry.allowed.is_within(allowed.and(above)) && marked
    }

    /// Counts the entries that refer to each table and page, from the first roots of all spaces, and notes a failure
    /// for each count that differs, and for everything that is allocated but not referred to. Call it while no flush is
    /// due.
    pub fn expect_counted(&self, roots: &[Frame]) {
        let mut count = Count { tables: HashMap::new(), pages: HashMap::new(), copies: HashSet::new() };
        for &root in roots {
            *count.tables.entry(root).or_default() += 1;
            self.count(root, self.mmu.top, &mut count);
        }
        for tables in &self.tables {
            for frame in tables.frames() {
                let referred = count.tables.get(&frame).copied().unwrap_or(0);
                let shares = self.table_at(frame).1.shares();
                if count.copies.contains(&frame) {
                    continue;
                }
                if referred == 0 {
                    self.failed(Failure::Leak { frame });
                } else if referred != shares {
                    self.failed(Failure::Count { frame });
                }
            }
        }
        let live: Vec<_> = lock(&self.pages).live().collect();
        for (frame, references, _) in live {
            match count.pages.remove(&frame).unwrap_or(0) {
                0 if references > 0 => self.failed(Failure::Leak { frame }),
                referred if referred != references => self.failed(Failure::Count { frame }),
                _ => {}
            }
        }
        // Pages that are left in the count are referred to, although they are free.
        for frame in count.pages.into_keys() {
            self.failed(Failure::FreeFrame { frame });
        }
    }

    fn count(&self, table: Frame, level: Level, count: &mut Count) {
        let (entries, meta) = self.table_at(table);
        let copies: Vec<_> = std::iter::successors(meta.replica(), |&copy| self.table_at(copy).1.replica()).collect();
        count.copies.extend(&copies);
        for index in 0..ENTRIES {
            match (self.mmu.decode)(level, entries.0[index].load(Ordering::Acquire)) {
                Entry::Empty => {}
                Entry::Leaf(leaf) => {
                    count.page(leaf.frame, level);
                    for &copy in &copies {
                        let bits = self.table_at(copy).0.0[index].load(Ordering::Acquire);
                        if let Entry::Leaf(there) = (self.mmu.decode)(level, bits)
                            && there.frame != leaf.frame
                        {
                            count.page(there.frame, level);
                        }
                    }
                }
                Entry::Table { frame, .. } => {
                    let seen = count.tables.entry(frame).or_default();
                    *seen += 1;
                    if let (1, Some(below)) = (*seen, level.below()) {
                        self.count(frame, below, count);
                    }
                }
            }
        }
    }

    /// Notes a failure for all that is still allocated or charged after all spaces are gone.
    pub fn expect_empty(&self) {
        self.expect_counted(&[]);
        for (&space, charge) in lock(&self.charges).iter() {
            if charge.pages != 0 || charge.tables != 0 {
                self.failed(Failure::Charge { space, charge: *charge });
            }
        }
    }
}

struct Count {
    tables: HashMap<Frame, u32>,
    pages: HashMap<Frame, u32>,
    copies: HashSet<Frame>,
}

impl Count {
    fn page(&mut self, frame: Frame, level: Level) {
        if frame.address() >= pages::DEVICE {
            return;
        }
        for part in 0..level.entry_bytes() / crate::address::PAGE {
            *self.pages.entry(frame.offset(part * crate::address::PAGE)).or_default() += 1;
        }
    }
}

fn forget_all(cpu: &mut Cpu) {
    cpu.forget(&super::cpu::Ranges::All);
}

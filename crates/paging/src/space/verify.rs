//! Checks that a space keeps its own rules. For tests, and for kernels in doubt.

use super::{AddressSpace, Locked};
use crate::address::{Frame, Level};
use crate::attributes::{Rights, Stores};
use crate::entry::load;
use crate::format::{Entry, Format, Leaf, ShareMode};
use crate::machine::Machine;

/// A violated rule.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Inconsistency {
    /// A table has other references, but the entry that leads there lets stores pass.
    #[error("{table} has {shares} references, and an entry of {above} lets stores to it pass")]
    SharedIsWritable {
        /// The shared table.
        table: Frame,
        /// The table with the entry.
        above: Frame,
        /// References to the shared table.
        shares: u32,
    },
    /// A table has other references, but the hardware lets stores to one of its private pages pass.
    #[error("{table} has {shares} references, and its entry {index} lets stores to a private page pass")]
    SharedLeafIsWritable {
        /// The shared table.
        table: Frame,
        /// The page's entry.
        index: usize,
        /// References to the table.
        shares: u32,
    },
    /// A table's count of entries is wrong.
    #[error("{table} counts {counted} entries and has {present}")]
    Count {
        /// The table.
        table: Frame,
        /// The count in its meta data.
        counted: u16,
        /// The number of its entries.
        present: u16,
    },
    /// A node's copy differs from the first table.
    #[error("entry {index} of {copy} differs from that of {table}, of which it is a copy, in more than a frame")]
    Copy {
        /// The first table.
        table: Frame,
        /// The copy.
        copy: Frame,
        /// The entry.
        index: usize,
    },
}

impl<F: Format, M: Machine> AddressSpace<F, M> {
    /// Walks all tables and checks them.
    ///
    /// # Errors
    ///
    /// The first violated rule.
    pub fn verify(&self) -> Result<(), Inconsistency> {
        let locked = self.lock();
        locked.verify_table(locked.root(), F::TOP)
    }
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    fn verify_table(&self, table: Frame, level: Level) -> Result<(), Inconsistency> {
        let meta = self.meta(table);
        let entries = &self.table(table).0;
        let mut present = 0;
        for (index, entry) in entries.iter().enumerate() {
            let entry = F::decode(level, load(entry));
            present += u16::from(entry != Entry::Empty);
            let copies = core::iter::successors(meta.replica(), |&copy| self.meta(copy).replica());
            for copy in copies {
                if !self.is_copy(&entry, &self.entry(copy, level, index)) {
                    return Err(Inconsistency::Copy { table, copy, index });
                }
            }
            match (entry, level.below()) {
                (Entry::Leaf(leaf), _) => {
                    let shares = meta.shares();
                    let passes = leaf.stores == Stores::Pass && leaf.attributes.rights.contains(Rights::WRITE);
                    let private = super::exclusive::is_copied_on_write(&leaf);
                    if F::SHARE_MODE == ShareMode::LeafProtect && shares > 1 && passes && private {
                        return Err(Inconsistency::SharedLeafIsWritable { table, index, shares });
                    }
                }
                (Entry::Table { frame, stores }, Some(below)) => {
                    let shares = self.meta(frame).shares();
                    if F::SHARE_MODE == ShareMode::TableProtect && shares > 1 && stores == Stores::Pass {
                        return Err(Inconsistency::SharedIsWritable { table: frame, above: table, shares });
                    }
                    self.verify_table(frame, below)?;
                }
                _ => {}
            }
        }
        if present != meta.populated() {
            return Err(Inconsistency::Count { table, counted: meta.populated(), present });
        }
        Ok(())
    }

    /// Returns whether a copy's entry is right.
    fn is_copy(&self, first: &Entry, copy: &Entry) -> bool {
        match (first, copy) {
            (Entry::Table { frame, .. }, Entry::Table { frame: there, .. }) => {
                let ring = core::iter::successors(self.meta(*frame).replica(), |&copy| self.meta(copy).replica());
                // A table that is not ringed is the same; a ringed one has copies.
                let mut ring = ring.peekable();
                if ring.peek().is_none() { frame == there } else { ring.any(|copy| copy == *there) }
            }
            // The node gets its page when it first uses it.
            (Entry::Leaf(first), Entry::Empty) => !first.attributes.rights.contains(Rights::WRITE),
            (Entry::Leaf(first), Entry::Leaf(copy)) => {
                let unmarked = |leaf: &Leaf| Leaf { frame: Frame::default(), accessed: false, dirty: false, ..*leaf };
                unmarked(first) == unmarked(copy)
            }
            (first, copy) => first == copy,
        }
    }
}

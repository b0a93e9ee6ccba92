//! Data of the kernel's, to which stores must not fault.
//!
//! A shared table lets no store pass until it has been copied by a fault, or makes its pages so. A kernel cannot take such a fault on its stack, or while it
//! holds the lock that the fault takes. So no table on the way to a page that the kernel can write, and user mode cannot reach, is shared by a
//! fork: it is copied at once. Those tables are marked when such a page appears in them, and stay so until they are freed.

use core::ops::Range;

use super::{Locked, slots};
use crate::address::{Frame, Level, VirtAddr};
use crate::attributes::{Attributes, Privilege, Rights};
use crate::format::{Entry, Format};
use crate::machine::Machine;

/// Whether stores to such a page must not fault.
pub(crate) fn is_kernel_data(attributes: &Attributes) -> bool {
    attributes.privilege == Privilege::Kernel && attributes.rights.contains(Rights::WRITE)
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Marks the tables on the way to data of the kernel's in `range`. They are this space's own, since the data was just put there.
    pub(crate) fn mark_kernel_data(&self, range: Range<VirtAddr>) {
        self.mark_in(self.root(), F::TOP, range);
    }

    fn mark_in(&self, table: Frame, level: Level, range: Range<VirtAddr>) -> bool {
        let mut found = false;
        for slot in slots(level, range) {
            found |= match (self.entry(table, level, slot.index), level.below()) {
                (Entry::Leaf(leaf), _) => is_kernel_data(&leaf.attributes),
                (Entry::Table { frame, .. }, Some(below)) => self.mark_in(frame, below, slot.range),
                _ => false,
            };
        }
        if found {
            self.meta(table).set_must_not_fault();
        }
        found
    }
}

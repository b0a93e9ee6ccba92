//! Pages of the kernel.
//!
//! # Data, to which stores must not fault
//!
//! A shared table, or its pages, let no store pass until a fault has copied it. A kernel cannot take such a fault on
//! its stack, or while it holds the lock that the fault takes. So a fork shares no table on the way to a page that the
//! kernel can write and user mode cannot reach: it copies such a table at once, and the page too if it is private.
//!
//! # What safe code must leave alone
//!
//! The program that calls this crate may itself run through the space's tables. Removing its pages, or rights to them,
//! is undefined behaviour like freeing its memory. Such pages belong to the kernel, and safe operations refuse them;
//! operations named `..._kernel` are unsafe.
//!
//! Tables are marked when such a page appears in them or below, and stay marked until they are freed.

use core::ops::Range;

use super::{Locked, slots};
use crate::address::{Frame, Level, VirtAddr};
use crate::attributes::{Attributes, Privilege, Rights};
use crate::error::ChangeError;
use crate::format::{Entry, Format};
use crate::machine::Machine;

/// Returns whether stores to such a page must not fault.
pub(crate) fn is_kernel_data(attributes: &Attributes) -> bool {
    is_kernel(attributes) && attributes.rights.contains(Rights::WRITE)
}

/// Returns whether user mode cannot reach such a page.
#[inline]
pub(crate) fn is_kernel(attributes: &Attributes) -> bool {
    attributes.privilege == Privilege::Kernel
}

/// The pages that an operation may change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// User mode's.
    User,
    /// The kernel's too.
    Kernel,
}

/// Kernel pages that were found.
#[derive(Clone, Copy, Default)]
struct Found {
    kernel: bool,
    data: bool,
}

impl<F: Format, M: Machine> Locked<'_, F, M> {
    /// Marks the tables on the way to pages of the kernel in `range`. They are this space's own, since the pages were
    /// just mapped there.
    pub(crate) fn mark_kernel(&self, range: Range<VirtAddr>) {
        self.mark_in(self.root(), F::TOP, range);
    }

    fn mark_in(&self, table: Frame, level: Level, range: Range<VirtAddr>) -> Found {
        let mut found = Found::default();
        for slot in slots(level, range) {
            let here = match (self.entry(table, level, slot.index), level.below()) {
                (Entry::Leaf(leaf), _) => {
                    Found { kernel: is_kernel(&leaf.attributes), data: is_kernel_data(&leaf.attributes) }
                }
                (Entry::Table { frame, .. }, Some(below)) => self.mark_in(frame, below, slot.range),
                _ => Found::default(),
            };
            found = Found { kernel: found.kernel | here.kernel, data: found.data | here.data };
        }
        if found.kernel {
            self.meta(table).set_kernel();
        }
        if found.data {
            self.meta(table).set_must_not_fault();
        }
        found
    }

    /// Fails if an operation of this reach may not change a page of `range`.
    #[inline]
    pub(crate) fn refuse_kernel(&self, range: &Range<VirtAddr>, reach: Reach) -> Result<(), ChangeError> {
        if reach == Reach::Kernel || !self.meta(self.root()).is_kernel() {
            return Ok(());
        }
        match self.first_kernel(self.root(), F::TOP, range.clone()) {
            Some(address) => Err(ChangeError::Kernel { address }),
            None => Ok(()),
        }
    }

    fn first_kernel(&self, table: Frame, level: Level, range: Range<VirtAddr>) -> Option<VirtAddr> {
        slots(level, range).find_map(|slot| match (self.entry(table, level, slot.index), level.below()) {
            (Entry::Leaf(leaf), _) => is_kernel(&leaf.attributes).then_some(slot.range.start),
            (Entry::Table { frame, .. }, Some(below)) if self.meta(frame).is_kernel() => {
                self.first_kernel(frame, below, slot.range)
            }
            _ => None,
        })
    }
}

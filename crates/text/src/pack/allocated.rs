//! Code with its data in place, owned by a handle or known by its addresses.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::data::Data;
use super::error::ReleaseError;
use super::group::{Group, Ownership};
use super::handle::Packs;
use super::parts::{Part, Parts};
use super::program::Program;

/// An [`Allocation`](super::Allocation) in place. Dropping it retires all its parts; after [`keep`](Self::keep),
/// [`Packs::release`] retires them.
pub struct Allocated {
    held: Held,
    /// # Invariants
    ///
    /// 1. Made for this value alone.
    group: Arc<Group>,
}

/// The parts. Dropping them retires them: first what refers to the others.
pub(super) struct Held {
    pub(super) code: Option<Program>,
    pub(super) read_only: Option<Data>,
    pub(super) read_write: Option<Data>,
}

impl Allocated {
    /// # Safety
    ///
    /// 1. `group` was made for this call.
    pub(super) unsafe fn new(held: Held, group: Arc<Group>) -> Self {
        Self { held, group }
    }

    /// Returns where a part is; an empty range if there is no such part.
    pub fn range(&self, part: Part) -> Range<usize> {
        self.group.ranges().get(part).clone()
    }

    /// Returns the code.
    pub fn code(&self) -> Option<&Program> {
        self.held.code.as_ref()
    }

    /// Returns the data that the code reads.
    pub fn read_only(&self) -> Option<&Data> {
        self.held.read_only.as_ref()
    }

    /// Returns the data that the code reads and writes.
    pub fn read_write(&self) -> Option<&Data> {
        self.held.read_write.as_ref()
    }

    /// Leaves the parts in place until one of their addresses is [released](Packs::release), even when the packs' last
    /// handle is gone. Returns where they are.
    pub fn keep(self) -> Parts<Range<usize>> {
        let Self { held, group } = self;
        // SAFETY: 1. this value's own (invariant 1), which is gone now.
        unsafe { group.keep(Box::new(held)) };
        group.ranges().clone()
    }
}

impl Packs {
    /// Releases an allocation that was [kept](Allocated::keep), by the first address of any of its parts: retires all
    /// parts, as if a handle had been dropped. In a forked child the memory stays the parent's; for the child, what the
    /// parent kept is gone.
    ///
    /// Lock-free, except for what dropping a [`Program`] may do.
    ///
    /// # Errors
    ///
    /// See [`ReleaseError`]; nothing is changed then. If several threads release one address, one succeeds.
    pub fn release(&self, address: usize) -> Result<(), ReleaseError> {
        let held = {
            let found = self.lookup(address).ok_or(ReleaseError::NotFound { address })?;
            if found.offset() != 0 {
                return Err(ReleaseError::Inside { address, start: found.address() });
            }
            let group = found.group().ok_or(ReleaseError::Held { address })?;
            group.take().map_err(|owner| match owner {
                Ownership::Released => ReleaseError::Released { address },
                Ownership::Handle | Ownership::Kept => ReleaseError::Held { address },
            })?
        };
        // After the look-up, which keeps what is retired from being reclaimed.
        drop(held);
        Ok(())
    }
}

impl fmt::Debug for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocated")
            .field("code", &self.held.code)
            .field("read_only", &self.held.read_only)
            .field("read_write", &self.held.read_write)
            .finish()
    }
}

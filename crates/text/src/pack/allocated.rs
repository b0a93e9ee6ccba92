//! Code with its data in place, held by a handle or by its addresses.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::data::Data;
use super::error::ReleaseError;
use super::group::{Group, Ownership};
use super::handle::Packs;
use super::parts::{Part, Parts};
use super::program::Program;

/// An [`Allocation`](super::Allocation) in place. Dropping it retires all its parts; [`keep`](Self::keep) leaves that
/// to [`Packs::release`].
pub struct Allocated {
    held: Held,
    group: Arc<Group>,
}

/// The parts, which are retired on drop: first what refers to the others.
pub(super) struct Held {
    pub(super) code: Option<Program>,
    pub(super) read_only: Option<Data>,
    pub(super) read_write: Option<Data>,
}

impl Allocated {
    pub(super) fn new(held: Held, group: Arc<Group>) -> Self {
        Self { held, group }
    }

    /// Where a part is; an empty range if there is no such part.
    pub fn range(&self, part: Part) -> Range<usize> {
        self.group.ranges().get(part).clone()
    }

    /// The code.
    pub fn code(&self) -> Option<&Program> {
        self.held.code.as_ref()
    }

    /// The data that the code reads.
    pub fn read_only(&self) -> Option<&Data> {
        self.held.read_only.as_ref()
    }

    /// The data that the code reads and writes.
    pub fn read_write(&self) -> Option<&Data> {
        self.held.read_write.as_ref()
    }

    /// Leaves it in place until an address of it is [released](Packs::release), also when the packs' last handle is
    /// gone; where its parts are.
    pub fn keep(self) -> Parts<Range<usize>> {
        let Self { held, group } = self;
        group.keep(Box::new(held));
        group.ranges().clone()
    }
}

impl Packs {
    /// Releases what was [kept](Allocated::keep), by the first address of any of its parts: all parts are retired, as
    /// if a handle had been dropped. In a forked child the memory stays the parent's, and what it has kept is gone for
    /// the child.
    ///
    /// Lock-free but for what a drop of a [`Program`] may do.
    ///
    /// # Errors
    ///
    /// See [`ReleaseError`]; nothing is changed then. Of several threads that release one address, one succeeds.
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
        // Behind the look-up, which keeps what is retired from being reclaimed.
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

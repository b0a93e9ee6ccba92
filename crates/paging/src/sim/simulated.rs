//! Mapping by safe calls, on the software machine.

use std::ops::Range;

use super::trial::Host;
use crate::address::{Frame, PageSize, VirtAddr};
use crate::attributes::Attributes;
use crate::error::MapError;
use crate::format::Format;
use crate::space::{AddressSpace, CursorMapError, CursorMut, PageSizes};

/// [`AddressSpace::map`] on a software machine, which notes a [`Failure`](super::Failure) if its contract is broken.
pub trait MapSimulated {
    /// Does what [`AddressSpace::map`] does.
    ///
    /// # Errors
    ///
    /// [`MapError`]; nothing is mapped.
    fn map_simulated(
        &self,
        range: Range<VirtAddr>,
        first: Frame,
        attributes: Attributes,
        sizes: PageSizes,
    ) -> Result<(), MapError>;
}

impl<F: Format, M: Host> MapSimulated for AddressSpace<F, M> {
    fn map_simulated(
        &self,
        range: Range<VirtAddr>,
        first: Frame,
        attributes: Attributes,
        sizes: PageSizes,
    ) -> Result<(), MapError> {
        // SAFETY: 1, 2. frames are only numbers to the computer, and only its CPUs use these tables (`Host`, 1).
        unsafe { self.map(range, first, attributes, sizes) }
    }
}

/// [`CursorMut::map`] on a software machine.
pub trait MapNextSimulated {
    /// Does what [`CursorMut::map`] does.
    ///
    /// # Errors
    ///
    /// [`CursorMapError`]; nothing is mapped.
    fn map_simulated(&mut self, frame: Frame, size: PageSize, attributes: Attributes) -> Result<(), CursorMapError>;
}

impl<F: Format, M: Host> MapNextSimulated for CursorMut<'_, F, M> {
    fn map_simulated(&mut self, frame: Frame, size: PageSize, attributes: Attributes) -> Result<(), CursorMapError> {
        // SAFETY: 1, 2. as for `AddressSpace`.
        unsafe { self.map(frame, size, attributes) }
    }
}

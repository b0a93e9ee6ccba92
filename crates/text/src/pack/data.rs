//! Data beside code: within reach of its pc-relative addressing, and never executable.

use std::fmt;

use super::block::Block;
use super::error::FinalizeError;
use super::memory::Kind;
use super::program::Tenant;

/// What a program may do with data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataAccess {
    /// Read it.
    ReadOnly,
    /// Read and write it.
    ReadWrite,
}

impl DataAccess {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::ReadOnly => Kind::ReadOnlyData,
            Self::ReadWrite => Kind::ReadWriteData,
        }
    }
}

/// A place for data, and a private image of it, at first zeros. Dropping it gives the place back.
pub struct StagedData {
    block: Block,
    image: Vec<u8>,
}

impl StagedData {
    pub(super) fn new(block: Block) -> Self {
        let image = vec![0; block.len()];
        Self { block, image }
    }

    /// Returns where the data will be.
    pub fn address(&self) -> usize {
        self.block.address().get()
    }

    /// Returns the image that will be copied into place.
    pub fn image(&mut self) -> &mut [u8] {
        &mut self.image
    }

    /// Copies the image into place.
    ///
    /// # Errors
    ///
    /// See [`FinalizeError`]; the place is free again.
    pub fn finalize(mut self) -> Result<Data, FinalizeError> {
        if !self.block.store().fork.is_same_process() {
            return Err(FinalizeError::Forked { address: self.block.address() });
        }
        self.block.write(&self.image)?;
        Ok(Data::new(self.block.publish(None)))
    }
}

/// Data in place. Dropping it retires it, as with a [`Program`](super::Program): pinned threads may still use it.
pub struct Data(Tenant);

impl Data {
    pub(super) fn new(tenant: Tenant) -> Self {
        Self(tenant)
    }

    /// Returns the first address.
    pub fn address(&self) -> usize {
        self.0.meta().address().get()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.0.meta().len as usize
    }

    /// Returns false: empty data cannot be placed.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the first byte; writable if staged so.
    pub fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.address())
    }
}

impl fmt::Debug for StagedData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StagedData({} bytes at {:#x})", self.image.len(), self.address())
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Data({} bytes at {:#x})", self.len(), self.address())
    }
}

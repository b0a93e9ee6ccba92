//! The memory of an interpreted program: regions of bytes at addresses that the host chooses.

use alloc::vec::Vec;

use crate::insn::Size;

/// What an access wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To read.
    Read,
    /// To write, or to read and write.
    Write,
}

/// An access to memory that is not there, or must not be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot {} {len} bytes at {address:#x}", match access { Access::Read => "read", Access::Write => "write" })]
pub struct MemoryFault {
    /// Where.
    pub address: u64,
    /// Bytes.
    pub len: usize,
    /// What it wanted.
    pub access: Access,
}

/// Why a region cannot be added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// It reaches beyond the last address.
    #[error("{len} bytes at {address:#x} reach beyond the end of the address space")]
    Beyond {
        /// Where.
        address: u64,
        /// Bytes.
        len: usize,
    },
    /// Something is there.
    #[error("{len} bytes at {address:#x} overlap a region of {other_len} bytes at {other:#x}")]
    Overlap {
        /// Where.
        address: u64,
        /// Bytes.
        len: usize,
        /// Where the other begins.
        other: u64,
        /// Its bytes.
        other_len: usize,
    },
}

#[derive(Debug)]
enum Bytes<'a> {
    ReadOnly(&'a [u8]),
    Writable(&'a mut [u8]),
    Owned(Vec<u8>),
}

impl Bytes<'_> {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::ReadOnly(bytes) => bytes,
            Self::Writable(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }

    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::ReadOnly(_) => None,
            Self::Writable(bytes) => Some(bytes),
            Self::Owned(bytes) => Some(bytes),
        }
    }
}

/// Regions of bytes, none of which overlap. An access lies in one of them or is a fault.
#[derive(Debug, Default)]
pub struct Memory<'a> {
    /// Sorted by address.
    regions: Vec<(u64, Bytes<'a>)>,
}

impl<'a> Memory<'a> {
    /// Memory with nothing in it.
    pub const fn new() -> Self {
        Self { regions: Vec::new() }
    }

    /// Adds bytes that the program may read and write. None at all are no region.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    pub fn add(&mut self, address: u64, bytes: &'a mut [u8]) -> Result<(), RegionError> {
        self.insert(address, Bytes::Writable(bytes))
    }

    /// Adds bytes that the program may read.
    ///
    /// # Errors
    ///
    /// [`RegionError`].
    pub fn add_read_only(&mut self, address: u64, bytes: &'a [u8]) -> Result<(), RegionError> {
        self.insert(address, Bytes::ReadOnly(bytes))
    }

    /// Adds `len` zeros.
    pub(super) fn add_zeros(&mut self, address: u64, len: usize) -> Result<(), RegionError> {
        self.insert(address, Bytes::Owned(alloc::vec![0; len]))
    }

    /// Takes the region that begins at `address` away.
    pub(super) fn remove(&mut self, address: u64) {
        self.regions.retain(|(start, _)| *start != address);
    }

    fn insert(&mut self, address: u64, bytes: Bytes<'a>) -> Result<(), RegionError> {
        let len = bytes.as_slice().len();
        if len == 0 {
            return Ok(());
        }
        let last = address.checked_add(len as u64 - 1).ok_or(RegionError::Beyond { address, len })?;
        let place = self.regions.partition_point(|(start, _)| *start <= last);
        if let Some((other, bytes)) = place.checked_sub(1).and_then(|before| self.regions.get(before)) {
            let other_len = bytes.as_slice().len();
            if other + (other_len as u64 - 1) >= address {
                return Err(RegionError::Overlap { address, len, other: *other, other_len });
            }
        }
        self.regions.insert(place, (address, bytes));
        Ok(())
    }

    fn region(&self, address: u64) -> Option<(usize, usize)> {
        let place = self.regions.partition_point(|(start, _)| *start <= address).checked_sub(1)?;
        Some((place, usize::try_from(address - self.regions[place].0).ok()?))
    }

    /// `len` bytes at `address`, for reading.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`] if they are not all in one region.
    pub fn bytes(&self, address: u64, len: usize) -> Result<&[u8], MemoryFault> {
        let found = self.region(address).and_then(|(place, offset)| {
            let bytes = self.regions[place].1.as_slice();
            bytes.get(offset..offset.checked_add(len)?)
        });
        found.ok_or(MemoryFault { address, len, access: Access::Read })
    }

    /// `len` bytes at `address`, for writing.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`] if they are not all in one region, or must not be written.
    pub fn bytes_mut(&mut self, address: u64, len: usize) -> Result<&mut [u8], MemoryFault> {
        let region = self.region(address);
        let found = region.and_then(|(place, offset)| {
            let bytes = self.regions[place].1.as_mut_slice()?;
            bytes.get_mut(offset..offset.checked_add(len)?)
        });
        found.ok_or(MemoryFault { address, len, access: Access::Write })
    }

    /// The number of `size` bytes at `address`, in the host's order.
    pub(super) fn load(&self, address: u64, size: Size) -> Result<u64, MemoryFault> {
        let bytes = self.bytes(address, size.bytes())?;
        let mut wide = [0; 8];
        let at = if cfg!(target_endian = "little") { 0 } else { 8 - bytes.len() };
        wide[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(u64::from_ne_bytes(wide))
    }

    /// Stores the low `size` bytes of `value` at `address`, in the host's order.
    pub(super) fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), MemoryFault> {
        let bytes = self.bytes_mut(address, size.bytes())?;
        let wide = value.to_ne_bytes();
        let at = if cfg!(target_endian = "little") { 0 } else { 8 - bytes.len() };
        bytes.copy_from_slice(&wide[at..at + bytes.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn an_access_lies_in_one_region() {
        let (mut low, high) = ([1, 2, 3, 4], [5, 6, 7, 8]);
        let mut memory = Memory::new();
        memory.add(0x1000, &mut low).expect("free");
        memory.add_read_only(0x1004, &high).expect("free");
        assert_eq!(memory.load(0x1000, Size::Word), Ok(u32::from_ne_bytes([1, 2, 3, 4]).into()));
        assert_eq!(memory.load(0x1007, Size::Byte), Ok(8));
        for (address, size) in
            [(0xfff, Size::Half), (0x1002, Size::Word), (0x1008, Size::Byte), (u64::MAX, Size::Double)]
        {
            let fault = MemoryFault { address, len: size.bytes(), access: Access::Read };
            assert_eq!(memory.load(address, size), Err(fault), "{address:#x}");
        }
        assert_eq!(memory.store(0x1002, Size::Half, 0xffff), Ok(()));
        let fault = memory.store(0x1004, Size::Byte, 1).expect_err("it is read-only");
        assert_eq!(fault.to_string(), "cannot write 1 bytes at 0x1004");
        drop(memory);
        assert_eq!(low, [1, 2, 0xff, 0xff]);
    }

    #[test]
    fn regions_do_not_overlap() {
        let (mut one, mut other, mut third) = ([0; 8], [0; 8], [0; 8]);
        let mut memory = Memory::new();
        memory.add(0x1000, &mut one).expect("free");
        let error = memory.add(0x1007, &mut other).expect_err("occupied").to_string();
        assert_eq!(error, "8 bytes at 0x1007 overlap a region of 8 bytes at 0x1000");
        let error = memory.add(u64::MAX - 6, &mut third).expect_err("too far up");
        assert_eq!(error, RegionError::Beyond { address: u64::MAX - 6, len: 8 });
    }
}

//! The memory of an interpreted program: regions of bytes at addresses that the host chooses.

use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use super::HelperError;
use crate::insn::Size;
use crate::map::cells::WORD;

/// Records, locks and objects that programs hold at once: on one thread, those of all programs that it runs.
pub(crate) const MOST_HELD: usize = 64;

/// What an access wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To read.
    Read,
    /// To write, or to read and write.
    Write,
}

/// An access to memory that does not exist, or must not be written.
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
    /// Another region is there.
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
    /// Of a map: others may write at the same time.
    Shared(&'a [AtomicU64]),
}

impl Bytes<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Shared(words) => size_of_val(*words),
            _ => self.as_slice().map_or(0, <[u8]>::len),
        }
    }

    fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Self::ReadOnly(bytes) => Some(bytes),
            Self::Writable(bytes) => Some(bytes),
            Self::Owned(bytes) => Some(bytes),
            Self::Shared(_) => None,
        }
    }

    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match self {
            Self::ReadOnly(_) | Self::Shared(_) => None,
            Self::Writable(bytes) => Some(bytes),
            Self::Owned(bytes) => Some(bytes),
        }
    }
}

/// Regions of bytes that do not overlap. An access lies in one of them or is a fault.
#[derive(Debug, Default)]
pub struct Memory<'a> {
    /// Sorted by address.
    regions: Vec<(u64, Bytes<'a>)>,
    /// Records that helpers have reserved and not given back.
    held: Vec<u64>,
    /// Within which addresses instructions may store, in their order; others may wherever there is memory.
    kept: Vec<(u32, Range<u64>)>,
    /// The CPU that the program runs on, if whoever runs it says so.
    cpu: Option<u32>,
}

impl<'a> Memory<'a> {
    /// Memory with nothing in it.
    pub const fn new() -> Self {
        Self { regions: Vec::new(), held: Vec::new(), kept: Vec::new(), cpu: None }
    }

    /// Keeps stores of some instructions, which come in order, within addresses.
    pub(crate) fn keep_stores(&mut self, kept: impl Iterator<Item = (u32, Range<u64>)>) {
        self.kept = kept.collect();
    }

    /// Whether the instruction with this number may store `size` bytes at `address`.
    pub(super) fn may_store(&self, instruction: usize, address: u64, size: Size) -> Result<(), MemoryFault> {
        let Ok(place) = self.kept.binary_search_by_key(&instruction, |(number, _)| *number as usize) else {
            return Ok(());
        };
        let (range, len) = (&self.kept[place].1, size.bytes());
        let last = (range.end - range.start).checked_sub(len as u64);
        let is_inside = last.is_some_and(|last| address.wrapping_sub(range.start) <= last);
        if is_inside { Ok(()) } else { Err(MemoryFault { address, len, access: Access::Write }) }
    }

    /// Says on which CPU the program runs.
    pub(crate) const fn set_cpu(&mut self, cpu: Option<u32>) {
        self.cpu = cpu;
    }

    /// Returns the CPU on which the program runs, if that was said.
    pub(crate) const fn cpu(&self) -> Option<u32> {
        self.cpu
    }

    /// Adds bytes that the program may read and write. An empty region is ignored.
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

    /// Adds words of a map, which the program may read and write.
    pub(crate) fn add_shared(&mut self, address: u64, words: &'a [AtomicU64]) -> Result<(), RegionError> {
        self.insert(address, Bytes::Shared(words))
    }

    /// Notes that a record is to be given back. As many as compiled programs can hold.
    pub(crate) fn hold(&mut self, record: u64) -> Result<(), HelperError> {
        if self.held.len() == MOST_HELD {
            return Err(HelperError::Held { most: MOST_HELD });
        }
        self.held.push(record);
        Ok(())
    }

    /// Notes that a record is given back.
    pub(crate) fn let_go(&mut self, record: u64) {
        self.held.retain(|held| *held != record);
    }

    /// Records that are to be given back.
    pub(crate) fn held(&self) -> &[u64] {
        &self.held
    }

    /// Returns the words of a map, and the offset in bytes, if `address` lies there.
    fn shared(&self, address: u64, len: usize) -> Option<(&'a [AtomicU64], usize)> {
        let (place, offset) = self.region(address)?;
        match self.regions[place].1 {
            Bytes::Shared(words) if offset.checked_add(len)? <= size_of_val(words) => Some((words, offset)),
            _ => None,
        }
    }

    /// Copies bytes out.
    pub(crate) fn copy_out(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault> {
        let Some((words, offset)) = self.shared(address, bytes.len()) else {
            bytes.copy_from_slice(self.bytes(address, bytes.len())?);
            return Ok(());
        };
        for (at, byte) in (offset..).zip(bytes) {
            // Relaxed: nothing is published by what programs write.
            *byte = words[at / WORD].load(Ordering::Relaxed).to_ne_bytes()[at % WORD];
        }
        Ok(())
    }

    /// Copies bytes in.
    pub(crate) fn copy_in(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        let Some((words, offset)) = self.shared(address, bytes.len()) else {
            self.bytes_mut(address, bytes.len())?.copy_from_slice(bytes);
            return Ok(());
        };
        for (at, byte) in (offset..).zip(bytes) {
            let change = |word: u64| {
                let mut word = word.to_ne_bytes();
                word[at % WORD] = *byte;
                Some(u64::from_ne_bytes(word))
            };
            // Relaxed: as above.
            let _ = words[at / WORD].fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
        }
        Ok(())
    }

    /// Whether `len` bytes at `address` may be read.
    pub(crate) fn may_read(&self, address: u64, len: usize) -> Result<(), MemoryFault> {
        if self.shared(address, len).is_some() {
            return Ok(());
        }
        self.bytes(address, len).map(|_| ())
    }

    /// Whether `len` bytes at `address` may be written.
    pub(super) fn may_write(&mut self, address: u64, len: usize) -> Result<(), MemoryFault> {
        if self.shared(address, len).is_some() {
            return Ok(());
        }
        self.bytes_mut(address, len).map(|_| ())
    }

    /// Adds `len` zeros.
    pub(super) fn add_zeros(&mut self, address: u64, len: usize) -> Result<(), RegionError> {
        self.insert(address, Bytes::Owned(alloc::vec![0; len]))
    }

    /// Removes the region that begins at `address`.
    pub(super) fn remove(&mut self, address: u64) {
        self.regions.retain(|(start, _)| *start != address);
    }

    fn insert(&mut self, address: u64, bytes: Bytes<'a>) -> Result<(), RegionError> {
        let len = bytes.len();
        if len == 0 {
            return Ok(());
        }
        let last = address.checked_add(len as u64 - 1).ok_or(RegionError::Beyond { address, len })?;
        let place = self.regions.partition_point(|(start, _)| *start <= last);
        if let Some((other, bytes)) = place.checked_sub(1).and_then(|before| self.regions.get(before)) {
            let other_len = bytes.len();
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

    /// Returns `len` bytes at `address`, for reading.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`] if they are not all in one region, or belong to a map.
    pub fn bytes(&self, address: u64, len: usize) -> Result<&[u8], MemoryFault> {
        let found = self.region(address).and_then(|(place, offset)| {
            let bytes = self.regions[place].1.as_slice()?;
            bytes.get(offset..offset.checked_add(len)?)
        });
        found.ok_or(MemoryFault { address, len, access: Access::Read })
    }

    /// Returns `len` bytes at `address`, for writing.
    ///
    /// # Errors
    ///
    /// [`MemoryFault`] if they are not all in one region, must not be written, or belong to a map.
    pub fn bytes_mut(&mut self, address: u64, len: usize) -> Result<&mut [u8], MemoryFault> {
        let region = self.region(address);
        let found = region.and_then(|(place, offset)| {
            let bytes = self.regions[place].1.as_mut_slice()?;
            bytes.get_mut(offset..offset.checked_add(len)?)
        });
        found.ok_or(MemoryFault { address, len, access: Access::Write })
    }

    /// Returns the number of `size` bytes at `address`, in the host's order.
    pub(super) fn load(&self, address: u64, size: Size) -> Result<u64, MemoryFault> {
        let (mut wide, len) = ([0; 8], size.bytes());
        let at = if cfg!(target_endian = "little") { 0 } else { 8 - len };
        self.copy_out(address, &mut wide[at..at + len])?;
        Ok(u64::from_ne_bytes(wide))
    }

    /// Stores the low `size` bytes of `value` at `address`, in the host's order.
    pub(super) fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), MemoryFault> {
        let (wide, len) = (value.to_ne_bytes(), size.bytes());
        let at = if cfg!(target_endian = "little") { 0 } else { 8 - len };
        self.copy_in(address, &wide[at..at + len])
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

//! One call of a helper: its arguments as what its signature says they are.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::interp::{Answer, HelperError, Memory, MemoryFault};
use crate::map::Map;
use crate::verify::{Argument, Signature};

/// The memory that a program can reach.
pub(crate) trait Space {
    /// Copies bytes out.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault>;

    /// Copies bytes in.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault>;
}

impl Space for Memory<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault> {
        self.copy_out(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.copy_in(address, bytes)
    }
}

/// The negative number of an error, as programs get it.
pub(super) const fn failed(errno: i64) -> Result<Answer, HelperError> {
    Ok(Answer::Value(-errno as u64))
}

/// Bytes that fit where no memory is allocated for them.
pub(super) const SMALL: usize = 64;

/// One call of a helper.
pub struct Call<'a> {
    arguments: [u64; 5],
    signature: &'a Signature,
    maps: &'a [Arc<Map>],
    space: &'a mut dyn Space,
}

impl core::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Call").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    pub(super) fn new(
        arguments: [u64; 5],
        signature: &'a Signature,
        maps: &'a [Arc<Map>],
        space: &'a mut dyn Space,
    ) -> Self {
        Self { arguments, signature, maps, space }
    }

    /// The argument with this number, from 0; 0 for one that the signature does not have.
    pub fn number(&self, index: usize) -> u64 {
        if index < self.signature.arguments().len() { self.arguments[index] } else { 0 }
    }

    fn kind(&self, index: usize) -> Result<Argument, HelperError> {
        self.signature.arguments().get(index).copied().ok_or(HelperError::NoArgument { index })
    }

    /// The map among the arguments.
    pub(super) fn map(&self) -> Result<&'a Arc<Map>, HelperError> {
        let arguments = self.signature.arguments();
        let place = arguments.iter().position(|argument| matches!(argument, Argument::Map(_)));
        let index = place.ok_or(HelperError::NoArgument { index: 0 })?;
        super::index(self.arguments[index])
            .and_then(|map| self.maps.get(map as usize))
            .ok_or(HelperError::NoArgument { index })
    }

    /// All ring buffers: a record tells which one it is of by where it lies.
    pub(super) fn rings(&self) -> impl Iterator<Item = &'a crate::map::Ring> {
        self.maps.iter().filter_map(|map| map.ring())
    }

    /// How many bytes the argument with this number has.
    ///
    /// # Errors
    ///
    /// [`HelperError::NoArgument`] for one that is no address of bytes.
    pub fn len(&self, index: usize) -> Result<usize, HelperError> {
        let len = match self.kind(index)? {
            Argument::Bytes | Argument::BytesOut => {
                // The verifier has seen that it is a number of 32 bits.
                self.arguments[index + 1] as u32
            }
            Argument::Key => self.map()?.definition().key_len,
            Argument::Value | Argument::ValueOut => self.map()?.definition().value_len,
            Argument::NumberOut => 8,
            _ => return Err(HelperError::NoArgument { index }),
        };
        Ok(len as usize)
    }

    /// Copies as many bytes of the argument with this number as there are and fit; how many.
    ///
    /// # Errors
    ///
    /// [`HelperError`].
    pub fn read(&self, index: usize, bytes: &mut [u8]) -> Result<usize, HelperError> {
        let len = self.len(index)?.min(bytes.len());
        self.space.read(self.arguments[index], &mut bytes[..len])?;
        Ok(len)
    }

    /// Copies the bytes of the argument with this number.
    ///
    /// # Errors
    ///
    /// [`HelperError`].
    pub fn bytes(&self, index: usize) -> Result<Vec<u8>, HelperError> {
        let mut bytes = alloc::vec![0; self.len(index)?];
        self.space.read(self.arguments[index], &mut bytes)?;
        Ok(bytes)
    }

    /// Copies at most `most` bytes of the read-only text that the argument with this number points at: up to the end of
    /// the value that it is in.
    pub(super) fn text(&self, index: usize, most: usize) -> Result<Vec<u8>, HelperError> {
        if self.kind(index)? != Argument::Text {
            return Err(HelperError::NoArgument { index });
        }
        let start = self.arguments[index];
        let rest = self.maps.iter().find_map(|map| map.rest_of_value(start));
        let len = rest.ok_or(HelperError::NoArgument { index })?.min(most as u64);
        let mut bytes = alloc::vec![0; len as usize];
        self.space.read(start, &mut bytes)?;
        Ok(bytes)
    }

    /// Gives the bytes of the argument with this number to `take`, without allocation if they are few.
    pub(super) fn with<T>(&self, index: usize, take: impl FnOnce(&[u8]) -> T) -> Result<T, HelperError> {
        let len = self.len(index)?;
        if len > SMALL {
            return self.bytes(index).map(|bytes| take(&bytes));
        }
        let mut bytes = [0; SMALL];
        self.space.read(self.arguments[index], &mut bytes[..len])?;
        Ok(take(&bytes[..len]))
    }

    /// Copies as many of `bytes` as fit to where the argument with this number points; how many.
    ///
    /// # Errors
    ///
    /// [`HelperError`]; [`HelperError::NoArgument`] for one that is not to be written.
    pub fn write(&mut self, index: usize, bytes: &[u8]) -> Result<usize, HelperError> {
        if !matches!(self.kind(index)?, Argument::BytesOut | Argument::ValueOut | Argument::NumberOut) {
            return Err(HelperError::NoArgument { index });
        }
        let len = self.len(index)?.min(bytes.len());
        self.space.write(self.arguments[index], &bytes[..len])?;
        Ok(len)
    }
}

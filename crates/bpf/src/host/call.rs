//! One call of a helper, with its arguments as its signature describes them.

use alloc::sync::Arc;
use alloc::vec::Vec;
#[cfg(feature = "std")]
use core::any::Any;

#[cfg(feature = "std")]
use super::objects;
use super::{Entry, Shared};
use crate::interp::{Answer, HelperError, Memory, MemoryFault};
use crate::map::value::PIECE;
use crate::map::{Far, Kind, MOST_KEY, Map, OpError, Out, Owner, Value};
use crate::verify::{Argument, Signature, Unproven};

/// The memory that a program can reach.
pub(crate) trait Space {
    /// Copies bytes out.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault>;

    /// Copies bytes in.
    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault>;

    /// Checks that `len` bytes can be read.
    fn reaches(&self, address: u64, len: usize) -> Result<(), MemoryFault>;

    /// Copies what there is at an unproven address. Returns how many bytes.
    fn peek(&self, address: u64, bytes: &mut [u8]) -> usize;

    /// Notes that the program holds a record, until it gives it back or the host does after ending the program.
    fn hold(&mut self, record: u64) -> Result<(), HelperError>;

    /// Notes that a record was given back.
    fn let_go(&mut self, record: u64);

    /// Whose values of per-CPU maps the program works on.
    fn cpu(&self) -> u32;

    /// Has the program in `index` of `map` run when this one has returned. Returns whether it will.
    fn tail_call(&self, map: &Map, index: u32) -> bool {
        let _ = (map, index);
        false
    }

    /// Whether the program is compiled, not interpreted.
    #[cfg(feature = "std")]
    fn is_compiled(&self) -> bool {
        false
    }
}

impl Space for Memory<'_> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryFault> {
        self.copy_out(address, bytes)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), MemoryFault> {
        self.copy_in(address, bytes)
    }

    fn reaches(&self, address: u64, len: usize) -> Result<(), MemoryFault> {
        self.may_read(address, len)
    }

    fn peek(&self, address: u64, bytes: &mut [u8]) -> usize {
        let mut bytes = (0_u64..).zip(bytes.iter_mut()).map(|(offset, byte)| {
            let at = address.wrapping_add(offset);
            self.copy_out(at, core::slice::from_mut(byte)).is_ok()
        });
        bytes.by_ref().take_while(|is_there| *is_there).count()
    }

    fn hold(&mut self, record: u64) -> Result<(), HelperError> {
        Memory::hold(self, record)
    }

    fn let_go(&mut self, record: u64) {
        Memory::let_go(self, record);
    }

    fn cpu(&self) -> u32 {
        Memory::cpu(self).unwrap_or_else(crate::map::this_cpu)
    }
}

/// Answers with the negative number of an error, as programs get it.
pub(super) const fn failed(errno: i64) -> Result<Answer, HelperError> {
    Ok(Answer::Value(-errno as u64))
}

/// What programs get for a result: 0, or the negative number of the error.
pub(super) fn status(result: Result<(), OpError>) -> u64 {
    result.map_or_else(|error| -error.errno() as u64, |()| 0)
}

/// Bytes of most keys and values.
const TINY: usize = 16;

/// Bytes of a program.
struct FarBytes<'a> {
    space: &'a dyn Space,
    address: u64,
    len: usize,
}

impl Far for FarBytes<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn copy(&self, at: usize, piece: &mut [u8]) {
        let done = self.space.read(self.address + at as u64, piece);
        debug_assert!(done.is_ok(), "whoever has made this has checked that all of it can be read: {done:?}");
    }
}

/// One call of a helper.
pub struct Call<'a> {
    arguments: [u64; 5],
    signature: &'a Signature,
    shared: &'a Shared,
    /// Which argument is one of its maps.
    map: u8,
    space: &'a mut dyn Space,
    /// How many bytes of each argument were written.
    written: [usize; 5],
    rest: Rest,
    unproven: Unproven,
}

/// What happens at the end of a call to room that the helper has not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rest {
    /// Nothing: the helper is known to write all of it.
    Kept,
    /// It is zeroed: the verifier counts it as written, however the call ends.
    Zeroed,
}

impl Drop for Call<'_> {
    /// Not earlier: what a helper reads and what it writes may overlap. Also if it panics.
    #[inline]
    fn drop(&mut self) {
        if self.rest == Rest::Zeroed {
            self.end();
        }
    }
}

impl core::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Call").field("arguments", &self.arguments).finish_non_exhaustive()
    }
}

impl<'a> Call<'a> {
    #[inline]
    pub(super) fn new(arguments: [u64; 5], entry: &'a Entry, space: &'a mut dyn Space, rest: Rest) -> Self {
        let Entry { signature, shared, unproven, map, .. } = entry;
        Self { arguments, signature, shared, map: *map, space, written: [0; 5], rest, unproven: *unproven }
    }

    /// Whether the argument with this number is room to write to.
    fn is_room(&self, index: usize) -> Result<bool, HelperError> {
        Ok(match self.kind(index)? {
            Argument::BytesOut | Argument::NumberOut | Argument::DynptrOut => true,
            // A bloom filter's value is read.
            Argument::ValueOut => self.map()?.definition().kind != Kind::BloomFilter,
            _ => false,
        })
    }

    /// Zeroes all room that was not written, and gives back what is still held.
    #[inline(never)]
    fn end(&mut self) {
        for index in 0..self.signature.arguments().len() {
            // What does not exist could not be written either.
            let _ = self.zero_rest(index);
            // The verifier counts it as given back, too.
            #[cfg(feature = "std")]
            if matches!(self.signature.arguments()[index], Argument::Release(_)) {
                drop(self.release(index));
            }
        }
    }

    fn zero_rest(&mut self, index: usize) -> Result<(), HelperError> {
        if !self.is_room(index)? {
            return Ok(());
        }
        let (len, mut at) = (self.len(index)?, self.written[index]);
        while at < len {
            let part = (len - at).min(PIECE);
            self.space.write(self.arguments[index] + at as u64, &[0; PIECE][..part])?;
            at += part;
        }
        Ok(())
    }

    /// Returns the argument with this number, from 0; 0 for one that the signature does not have.
    pub fn number(&self, index: usize) -> u64 {
        if index < self.signature.arguments().len() { self.arguments[index] } else { 0 }
    }

    fn kind(&self, index: usize) -> Result<Argument, HelperError> {
        self.signature.arguments().get(index).copied().ok_or(HelperError::NoArgument { index })
    }

    /// Returns the map among the arguments.
    #[inline]
    pub(super) fn map(&self) -> Result<&'a Arc<Map>, HelperError> {
        let index = usize::from(self.map);
        let handle = self.arguments.get(index).ok_or(HelperError::NoArgument { index: 0 })?;
        super::find(&self.shared.maps, *handle).ok_or(HelperError::NoArgument { index })
    }

    /// Returns all ring buffers: a record's address tells which one it is of.
    pub(super) fn rings(&self) -> impl Iterator<Item = &'a crate::map::Ring> {
        self.shared.maps.iter().filter_map(|map| map.ring())
    }

    /// All maps of the host.
    pub(super) fn maps(&self) -> &'a [Arc<Map>] {
        &self.shared.maps
    }

    /// Has the program hold an object. Returns the number by which it knows it.
    #[cfg(feature = "std")]
    pub(super) fn acquire(&mut self, object: Arc<dyn Any + Send + Sync>) -> Result<u64, HelperError> {
        let number = objects::put(object)?;
        self.space.hold(number).inspect_err(|_| drop(objects::take(number)))?;
        Ok(number)
    }

    /// Returns the object that the argument with this number stands for.
    #[cfg(feature = "std")]
    pub(super) fn object(&self, index: usize) -> Result<Option<Arc<dyn Any + Send + Sync>>, HelperError> {
        objects::get(self.number(index))
    }

    /// Takes the object from the program that the argument with this number stands for.
    #[cfg(feature = "std")]
    pub(super) fn release(&mut self, index: usize) -> Result<Option<Arc<dyn Any + Send + Sync>>, HelperError> {
        let number = self.number(index);
        let object = objects::take(number)?;
        if object.is_some() {
            self.space.let_go(number);
        }
        Ok(object)
    }

    /// Whether the program is compiled, not interpreted.
    #[cfg(feature = "std")]
    pub(super) fn is_compiled(&self) -> bool {
        self.space.is_compiled()
    }

    /// Copies bytes of memory that dynptrs mean, as if all were read before any is written.
    pub(super) fn copy_memory(&mut self, from: u64, to: u64, len: usize) -> Result<(), HelperError> {
        let mut piece = [0; PIECE];
        let pieces = len.div_ceil(PIECE);
        for number in 0..pieces {
            // What is written comes behind what is still to be read, or before it.
            let number = if to > from { pieces - 1 - number } else { number };
            let at = number * PIECE;
            let piece = &mut piece[..PIECE.min(len - at)];
            self.space.read(from + at as u64, piece)?;
            self.space.write(to + at as u64, piece)?;
        }
        Ok(())
    }

    /// Returns where the bytes of the argument with this number lie.
    pub(super) fn address(&self, index: usize) -> u64 {
        self.arguments[index]
    }

    /// Copies bytes to this offset of the room to which the argument with this number points.
    pub(super) fn write_at(&mut self, index: usize, at: usize, bytes: &[u8]) -> Result<(), HelperError> {
        if !self.is_room(index)? || at + bytes.len() > self.len(index)? {
            return Err(HelperError::NoArgument { index });
        }
        Ok(self.space.write(self.arguments[index] + at as u64, bytes)?)
    }

    /// Zeroes the room to which the argument with this number points, from this offset on.
    pub(super) fn zero_from(&mut self, index: usize, at: usize) -> Result<(), HelperError> {
        self.written[index] = at;
        self.zero_rest(index)
    }

    /// Copies bytes from an unproven address, if the program may read from such. Returns how many there were.
    pub(super) fn peek_at(&self, address: u64, bytes: &mut [u8]) -> usize {
        if self.unproven == Unproven::Probe { self.space.peek(address, bytes) } else { 0 }
    }

    /// Returns whether the program may read from unproven addresses.
    #[cfg(feature = "std")]
    pub(super) fn may_probe(&self) -> bool {
        self.unproven == Unproven::Probe
    }

    /// Returns the number of the CPU that the program runs on.
    pub(super) fn processor(&self) -> u32 {
        self.space.cpu()
    }

    /// Returns whose values of `map` the program works on. Asks the runner only if that makes a difference.
    pub(super) fn cpu(&self, map: &Map) -> u32 {
        map.share_of(|| self.space.cpu())
    }

    /// Has the program in `index` of `map` run when this one has returned. Returns whether it will.
    pub(super) fn tail_call(&self, map: &Map, index: u32) -> bool {
        self.space.tail_call(map, index)
    }

    /// Returns who takes locks for the program.
    pub(super) fn owner(&self) -> Owner {
        Owner::here(|| self.space.cpu())
    }

    /// Notes that the program gets a record, or a lock.
    pub(super) fn hold(&mut self, record: u64) -> Result<(), HelperError> {
        self.space.hold(record)
    }

    /// Notes that the program gives a record or a lock back.
    pub(super) fn let_go(&mut self, record: u64) {
        self.space.let_go(record);
    }

    /// Returns how many bytes the argument with this number has.
    ///
    /// # Errors
    ///
    /// [`HelperError::NoArgument`] if it is not an address of bytes.
    pub fn len(&self, index: usize) -> Result<usize, HelperError> {
        let len = match self.kind(index)? {
            Argument::Bytes | Argument::BytesOut | Argument::MapBytes | Argument::PrintedBytes => {
                // The verifier has checked that it is a number of 32 bits.
                self.arguments[index + 1] as u32
            }
            Argument::Key => self.map()?.definition().key_len,
            Argument::Value | Argument::ValueOut => self.map()?.definition().value_len,
            Argument::NumberOut => 8,
            Argument::DynptrOut | Argument::Dynptr | Argument::RecordDynptr => 16,
            _ => return Err(HelperError::NoArgument { index }),
        };
        Ok(len as usize)
    }

    /// Copies as many bytes of the argument with this number as there are and fit. Returns how many.
    ///
    /// # Errors
    ///
    /// [`HelperError`].
    pub fn read(&self, index: usize, bytes: &mut [u8]) -> Result<usize, HelperError> {
        let len = self.len(index)?.min(bytes.len());
        self.space.read(self.arguments[index], &mut bytes[..len])?;
        Ok(len)
    }

    /// Copies the bytes of the argument with this number to memory of the allocator. Helpers that must not allocate,
    /// since a signal handler may run their program, have [`read`](Self::read).
    ///
    /// # Errors
    ///
    /// [`HelperError`].
    pub fn bytes(&self, index: usize) -> Result<Vec<u8>, HelperError> {
        let mut bytes = alloc::vec![0; self.len(index)?];
        self.space.read(self.arguments[index], &mut bytes)?;
        Ok(bytes)
    }

    /// Returns where the read-only text lies at which the argument with this number points, and how many bytes there
    /// are up to the end of the value that it is in.
    pub(super) fn text(&self, index: usize) -> Result<(u64, u64), HelperError> {
        if self.kind(index)? != Argument::Text {
            return Err(HelperError::NoArgument { index });
        }
        let start = self.arguments[index];
        let rest = self.shared.maps.iter().find_map(|map| map.rest_of_value(start));
        Ok((start, rest.ok_or(HelperError::NoArgument { index })?))
    }

    /// Copies bytes of an argument, or of a text that [`text`](Self::text) has found.
    pub(super) fn read_at(&self, address: u64, bytes: &mut [u8]) -> Result<(), HelperError> {
        Ok(self.space.read(address, bytes)?)
    }

    /// Passes a key, which the argument with this number points at, to `take`.
    pub(super) fn with_key<T>(&self, index: usize, take: impl FnOnce(&[u8]) -> T) -> Result<T, HelperError> {
        let len = self.len(index)?;
        if len > TINY {
            return self.with_long_key(index, len, take);
        }
        // Most keys: zeroing more would take as long as all the rest.
        let mut bytes = [0; TINY];
        self.space.read(self.arguments[index], &mut bytes[..len])?;
        Ok(take(&bytes[..len]))
    }

    #[inline(never)]
    fn with_long_key<T>(&self, index: usize, len: usize, take: impl FnOnce(&[u8]) -> T) -> Result<T, HelperError> {
        let mut bytes = [0; MOST_KEY as usize];
        let bytes = bytes.get_mut(..len).ok_or(HelperError::NoArgument { index })?;
        self.space.read(self.arguments[index], bytes)?;
        Ok(take(bytes))
    }

    /// Passes the bytes of the argument with this number to `take`: near if they are few.
    pub(super) fn with_value<T>(&self, index: usize, take: impl FnOnce(Value<'_>) -> T) -> Result<T, HelperError> {
        let (address, len) = (self.arguments[index], self.len(index)?);
        if len > TINY {
            self.space.reaches(address, len)?;
            return Ok(take(Value::Far(&FarBytes { space: &*self.space, address, len })));
        }
        let mut bytes = [0; TINY];
        self.space.read(address, &mut bytes[..len])?;
        Ok(take(Value::Near(&bytes[..len])))
    }

    /// Passes the room to which the argument with this number points to `give`, which writes to it. The rest is zeroed.
    pub(super) fn receive<T>(&mut self, index: usize, give: impl FnOnce(&mut Out<'_>) -> T) -> Result<T, HelperError> {
        if !self.is_room(index)? {
            return Err(HelperError::NoArgument { index });
        }
        let (len, start) = (self.len(index)?, self.arguments[index]);
        let (mut end, mut written) = (0, Ok(()));
        let space = &mut *self.space;
        let given = give(&mut |at, piece| {
            let piece = &piece[..piece.len().min(len.saturating_sub(at))];
            if written.is_ok() {
                written = space.write(start + at as u64, piece);
                end = end.max(at + piece.len());
            }
        });
        written?;
        self.zero_from(index, end)?;
        Ok(given)
    }

    /// Copies as many of `bytes` as fit to where the argument with this number points. Returns how many. What is never
    /// written there is zero after the call, even after an error or a panic.
    ///
    /// # Errors
    ///
    /// [`HelperError`]; [`HelperError::NoArgument`] for an argument that must not be written.
    pub fn write(&mut self, index: usize, bytes: &[u8]) -> Result<usize, HelperError> {
        if !self.is_room(index)? {
            return Err(HelperError::NoArgument { index });
        }
        let len = self.len(index)?.min(bytes.len());
        self.space.write(self.arguments[index], &bytes[..len])?;
        self.written[index] = self.written[index].max(len);
        Ok(len)
    }
}

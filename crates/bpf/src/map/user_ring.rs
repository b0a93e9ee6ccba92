//! User ring buffers: samples from a producer of the host, or of another process, to programs.
//!
//! # Memory
//!
//! As Linux lays it out (`kernel/bpf/ringbuf.c`), so that libbpf's producer would do:
//!
//! | bytes | |
//! |---|---|
//! | 0 | the consumer's position, 8 bytes; the rest of 4096 is unused |
//! | 4096 | the producer's position, 8 bytes; the rest of 4096 is unused |
//! | 8192 | samples: as many bytes as the map has entries |
//!
//! Positions count bytes for ever and are multiples of 8. A sample lies at its position modulo the length and may go
//! over the end, to the beginning (who maps the memory maps the samples twice, one behind the other). It is a header of
//! 8 bytes, whose low half is its length in bytes, with bit 31 while it is being written and bit 30 if it is to be
//! skipped; then the bytes, up to a multiple of 8.
//!
//! # Protocol
//!
//! | producer | consumer |
//! |---|---|
//! | P1 reads the consumer's position, acquire | C1 reads the producer's position, acquire |
//! | P2 header: length, being written | C2 reads the header, acquire |
//! | P3 producer's position forward, release | C3 copies the bytes |
//! | P4 bytes | C4 consumer's position forward, release |
//! | P5 header: length, release | |
//!
//! C1 reads what P3 wrote: C2 sees P2 or P5. C2 reads what P5 wrote: C3 sees P4. P1 reads what C4 wrote: P4 comes
//! after C3.
//!
//! The producer is not trusted: whoever maps the memory writes what he likes, at any time. So the consumer keeps its
//! own position, and only publishes it; it reads each header once, checks it, and copies the sample before a program
//! sees it. What is wrong is an error, and what is outside the memory is not reached.

use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::cells::{WORD, address, words};
use super::memory::Memory;
use super::{Definition, MapError};

/// Where the producer's position is, in bytes.
const PRODUCER: usize = 4096;
/// Where samples begin, in bytes.
const SAMPLES: usize = 2 * PRODUCER;
/// Bytes of a header.
const HEADER: u64 = 8;
/// In a header: it is being written.
const BUSY: u32 = 1 << 31;
/// In a header: it is to be skipped.
const SKIP: u32 = 1 << 30;
/// Words of the copy that say where its bytes are, and how many: what a program knows memory by that is checked.
const DYNPTR: usize = 2;

/// A user ring buffer.
pub struct UserRing {
    memory: Memory,
    /// Bytes of samples; a power of 2.
    len: u64,
    /// The consumer's position. Who drains changes it.
    position: AtomicU64,
    /// The sample that a program sees, behind [`DYNPTR`]. Who drains writes it, and so does the program.
    copy: Box<[AtomicU64]>,
    /// Set by who drains, cleared when that one has done.
    is_drained: AtomicBool,
    /// Set by who becomes the producer, cleared when that one is dropped.
    has_producer: AtomicBool,
    waker: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for UserRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserRing").field("len", &self.len).finish_non_exhaustive()
    }
}

/// What the producer has written that is wrong. Programs get Linux's numbers, negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// Its position is no multiple of 8, or a sample goes beyond it.
    Position,
    /// A sample is longer than all there is.
    Length,
}

impl Wrong {
    pub(crate) const fn errno(self) -> i64 {
        match self {
            Self::Position => 22,
            Self::Length => 7,
        }
    }
}

/// What comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// A sample, which was copied; what a program knows it by.
    Sample(u64),
    /// One that was to be skipped.
    Skipped,
    /// Nothing that is there yet.
    Nothing,
}

impl UserRing {
    fn memory_len(definition: &Definition) -> u64 {
        SAMPLES as u64 + u64::from(definition.max_entries)
    }

    /// Bytes that it takes.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        Self::memory_len(definition) + u64::from(definition.max_entries) + (DYNPTR * WORD) as u64
    }

    pub(super) fn new(definition: &Definition) -> Result<Self, MapError> {
        let len = u64::from(definition.max_entries);
        Ok(Self {
            memory: Memory::new(definition, Self::memory_len(definition))?,
            len,
            position: AtomicU64::new(0),
            copy: words(definition, DYNPTR as u64 + len / WORD as u64)?,
            is_drained: AtomicBool::new(false),
            has_producer: AtomicBool::new(false),
            waker: None,
        })
    }

    /// Puts it into memory that other processes can map.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError`](palimpsest_sys::memory::words::SharedWordsError); it stays as it was.
    #[cfg(feature = "std")]
    pub(super) fn share(&mut self, name: &str) -> Result<(), palimpsest_sys::memory::words::SharedWordsError> {
        self.memory = Memory::shared(name, SAMPLES as u64 + self.len)?;
        Ok(())
    }

    /// What other processes map, if they can.
    #[cfg(feature = "std")]
    pub fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.memory.descriptor()
    }

    pub(super) fn set_waker(&mut self, waker: Box<dyn Fn() + Send + Sync>) {
        self.waker = Some(waker);
    }

    /// What programs reach: the copy.
    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.copy
    }

    /// The word at this position among the samples.
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.memory[(SAMPLES + (position & (self.len - 1)) as usize) / WORD]
    }

    /// The one who puts samples in; `None` while there is one. Another process may be one beside it, and then both do
    /// harm to each other's samples and to nothing else.
    pub fn take_producer(&self) -> Option<Producer<'_>> {
        // Acquire: with the release of `Producer::drop`, so that positions go on where they were.
        let was = self.has_producer.swap(true, Ordering::Acquire);
        (!was).then_some(Producer { ring: self })
    }

    /// Becomes the one who drains it; false while somebody else does.
    pub(crate) fn begin(&self) -> bool {
        // Acquire: with the release of `end`; what the last one has copied and where it was is there.
        !self.is_drained.swap(true, Ordering::Acquire)
    }

    /// Is no longer the one who drains it; `wakes` the producer's host.
    pub(crate) fn end(&self, wakes: bool) {
        // Release: with the acquire of `begin`.
        self.is_drained.store(false, Ordering::Release);
        if let Some(waker) = self.waker.as_ref().filter(|_| wakes) {
            waker();
        }
    }

    /// Takes the next sample, for who drains it.
    pub(crate) fn take(&self) -> Result<Next, Wrong> {
        // C1. Acquire: with the release of P3; without it the header could be what was there before.
        let end = self.memory[PRODUCER / WORD].load(Ordering::Acquire);
        // Relaxed: who drains is one at a time.
        let position = self.position.load(Ordering::Relaxed);
        if !end.is_multiple_of(WORD as u64) {
            return Err(Wrong::Position);
        }
        if position >= end {
            return Ok(Next::Nothing);
        }
        // C2. Acquire: with the release of P5; without it some bytes could be those of before.
        let header = self.word(position).load(Ordering::Acquire) as u32;
        let len = u64::from(header & !(BUSY | SKIP));
        let total = (len + HEADER).next_multiple_of(WORD as u64);
        if total > end - position {
            return Err(Wrong::Position);
        }
        if total > self.len {
            return Err(Wrong::Length);
        }
        if header & SKIP != 0 {
            self.move_on(position + total);
            return Ok(Next::Skipped);
        }
        if header & BUSY != 0 {
            return Ok(Next::Nothing);
        }
        let bytes = &self.copy[DYNPTR..];
        for (index, to) in bytes[..(total - HEADER) as usize / WORD].iter().enumerate() {
            // C3. Relaxed: C2 has seen what was published; what is written meanwhile is a wrong sample.
            let from = self.word(position + HEADER + (index * WORD) as u64).load(Ordering::Relaxed);
            to.store(from, Ordering::Relaxed);
        }
        self.copy[0].store(address(bytes), Ordering::Relaxed);
        self.copy[1].store(len, Ordering::Relaxed);
        self.move_on(position + total);
        Ok(Next::Sample(address(&self.copy)))
    }

    fn move_on(&self, position: u64) {
        self.position.store(position, Ordering::Relaxed);
        // C4. Release: with the acquire of P1; without it the producer could write before this has copied.
        self.memory[0].store(position, Ordering::Release);
    }
}

/// Why there is no room for a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReserveError {
    /// Programs have not taken enough yet.
    #[error("{len} bytes find no room until programs have taken samples")]
    Full {
        /// Bytes.
        len: u64,
    },
    /// There is never room.
    #[error("a sample of {len} bytes never fits into a buffer of {most}, with its header of 8")]
    Long {
        /// Bytes.
        len: u64,
        /// Bytes that the buffer has.
        most: u64,
    },
}

/// The one who puts samples into a user ring buffer.
#[derive(Debug)]
pub struct Producer<'a> {
    ring: &'a UserRing,
}

impl<'a> Producer<'a> {
    /// Takes room for a sample of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    pub fn reserve(&mut self, len: u64) -> Result<Sample<'a, '_>, ReserveError> {
        let ring = self.ring;
        // The length stands in 30 bits.
        let total = len.saturating_add(HEADER).checked_next_multiple_of(WORD as u64);
        let Some(total) = total.filter(|total| *total <= ring.len) else {
            return Err(ReserveError::Long { len, most: ring.len });
        };
        let end = &ring.memory[PRODUCER / WORD];
        // Relaxed: there is one producer. Somebody outside may have written anything, here and below.
        let position = end.load(Ordering::Relaxed) & !(HEADER - 1);
        // P1. Acquire: with the release of C4; without it the consumer could copy what is written here.
        let taken = ring.memory[0].load(Ordering::Acquire);
        let next = position.wrapping_add(total);
        if next.wrapping_sub(taken) > ring.len {
            return Err(ReserveError::Full { len });
        }
        // P2. Relaxed: P3 publishes.
        ring.word(position).store(u64::from(len as u32 | BUSY), Ordering::Relaxed);
        // P3. Release: with the acquire of C1.
        end.store(next, Ordering::Release);
        Ok(Sample { ring, position, len, is_done: false, _producer: core::marker::PhantomData })
    }

    /// Puts a sample with these bytes in.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), ReserveError> {
        let mut sample = self.reserve(bytes.len() as u64)?;
        sample.write(bytes);
        sample.submit();
        Ok(())
    }

    /// Bytes that programs have not taken yet, with their headers.
    pub fn pending(&self) -> u64 {
        let end = self.ring.memory[PRODUCER / WORD].load(Ordering::Relaxed);
        end.wrapping_sub(self.ring.memory[0].load(Ordering::Relaxed))
    }
}

impl Drop for Producer<'_> {
    fn drop(&mut self) {
        // Release: with the acquire of `take_producer`.
        self.ring.has_producer.store(false, Ordering::Release);
    }
}

/// Room for a sample. Programs skip it if it is dropped.
#[derive(Debug)]
pub struct Sample<'a, 'b> {
    ring: &'a UserRing,
    position: u64,
    len: u64,
    is_done: bool,
    _producer: core::marker::PhantomData<&'b mut ()>,
}

impl Sample<'_, '_> {
    /// Writes its bytes from the beginning, as many as fit; the others of its last word are zero.
    pub fn write(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.len as usize)];
        for (index, chunk) in bytes.chunks(WORD).enumerate() {
            let mut word = [0; WORD];
            word[..chunk.len()].copy_from_slice(chunk);
            // P4. Relaxed: P5 publishes.
            let position = self.position.wrapping_add(HEADER).wrapping_add((index * WORD) as u64);
            let place = self.ring.word(position);
            place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    /// Gives it to programs.
    pub fn submit(mut self) {
        self.finish(0);
    }

    fn finish(&mut self, skip: u32) {
        self.is_done = true;
        // P5. Release: with the acquire of C2; without it the consumer could copy bytes of before.
        self.ring.word(self.position).store(u64::from(self.len as u32 | skip), Ordering::Release);
    }
}

impl Drop for Sample<'_, '_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.finish(SKIP);
        }
    }
}

//! User ring buffers: a producer, in the host or in another process, sends samples to programs.
//!
//! # Memory
//!
//! The same as Linux's (`kernel/bpf/ringbuf.c`), so that libbpf's producer could fill it:
//!
//! | bytes | |
//! |---|---|
//! | 0 | the consumer's position, 8 bytes; the rest of 4096 is unused |
//! | 4096 | the producer's position, 8 bytes; the rest of 4096 is unused |
//! | 8192 | samples: as many bytes as the map has entries |
//!
//! Positions count bytes, never go back, and are multiples of 8. A sample lies at its position modulo the length, and
//! may go on from the end to the beginning (other processes map the samples twice, one mapping behind the other). It
//! has a header of 8 bytes, then its bytes, padded to a multiple of 8. The header's low half is the length in bytes,
//! with bit 31 set while the sample is being written, and bit 30 if it is to be skipped.
//!
//! # Protocol
//!
//! | producer | consumer |
//! |---|---|
//! | P1 reads the consumer's position, acquire | C1 reads the producer's position, acquire |
//! | P2 writes the header: length, being written | C2 reads the header, acquire |
//! | P3 moves the producer's position, release | C3 copies the bytes |
//! | P4 writes the bytes | C4 moves the consumer's position, release |
//! | P5 writes the header: length, release | |
//!
//! If C1 reads what P3 wrote, C2 sees P2 or P5. If C2 reads what P5 wrote, C3 sees P4. If P1 reads what C4 wrote, P4
//! comes after C3.
//!
//! The producer is not trusted: whoever maps the memory may write anything, at any time. So the consumer keeps its own
//! position and only publishes it; it reads each header once, checks it, and copies the sample before a program sees
//! it. Wrong contents give an error, and nothing outside the memory is reached.
//!
//! In a child of `fork` others may drain and produce than in its parent, and a sample that the parent's producer had
//! not finished is skipped when another is taken.

use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use super::cells::{WORD, address, words};
use super::memory::Memory;
use super::seat::{Inherited, Seat, Seated};
use super::{Definition, MapError};

/// Where the producer's position is, in bytes.
const PRODUCER: usize = 4096;
/// Where samples begin, in bytes.
const SAMPLES: usize = 2 * PRODUCER;
/// Bytes of a header.
const HEADER: u64 = 8;
/// In a header: the sample is being written.
const BUSY: u32 = 1 << 31;
/// In a header: the sample is to be skipped.
const SKIP: u32 = 1 << 30;
/// Words before the copied bytes: their address and their number. Programs get the address of these words, as a dynptr.
const DYNPTR: usize = 2;

/// A user ring buffer.
pub struct UserRing {
    memory: Memory,
    /// Bytes of samples; a power of 2.
    len: u64,
    /// The consumer's position. Only the thread that drains changes it.
    position: AtomicU64,
    /// The sample that a program sees, behind [`DYNPTR`] words. The thread that drains writes it, and the program may.
    copy: Box<[AtomicU64]>,
    /// Of the thread that drains.
    drain: Seat,
    /// The [`Producer`]'s.
    producer: Seat,
    waker: Option<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for UserRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserRing").field("len", &self.len).finish_non_exhaustive()
    }
}

/// What is wrong with what the producer wrote. Programs get Linux's numbers, negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    /// The producer's position is no multiple of 8, or a sample goes beyond it.
    Position,
    /// A sample is longer than the buffer.
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
    /// A sample was copied; this is the address of its dynptr.
    Sample(u64),
    /// A sample was skipped.
    Skipped,
    /// No sample is ready.
    Nothing,
}

impl UserRing {
    fn memory_len(definition: &Definition) -> u64 {
        SAMPLES as u64 + u64::from(definition.max_entries)
    }

    /// Bytes of memory that a map takes.
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
            drain: Seat::new(),
            producer: Seat::new(),
            waker: None,
        })
    }

    /// Moves the ring into memory that other processes can map.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError`](palimpsest_sys::memory::words::SharedWordsError); the ring stays as it was.
    #[cfg(feature = "std")]
    pub(super) fn share(&mut self, name: &str) -> Result<(), palimpsest_sys::memory::words::SharedWordsError> {
        self.memory = Memory::shared(name, SAMPLES as u64 + self.len)?;
        Ok(())
    }

    /// The descriptor that other processes map, if the ring is shared.
    #[cfg(feature = "std")]
    pub fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.memory.descriptor()
    }

    pub(super) fn set_waker(&mut self, waker: Box<dyn Fn() + Send + Sync>) {
        self.waker = Some(waker);
    }

    /// The memory that programs reach: the copy.
    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.copy
    }

    /// The word at this position among the samples.
    fn word(&self, position: u64) -> &AtomicU64 {
        &self.memory[(SAMPLES + (position & (self.len - 1)) as usize) / WORD]
    }

    /// Gives out the producer, who puts samples in; `None` while there is one. If another process produces at the same
    /// time, each spoils the other's samples, and nothing else.
    ///
    /// In a child of `fork` there is none before somebody takes it, or uses the one that its parent had, which finds no
    /// room any more once another was taken. If other processes can map the ring, the parent's stays the only one.
    pub fn take_producer(&self) -> Option<Producer<'_>> {
        let seated = self.producer.take(self.memory.inherited())?;
        if self.memory.inherited() == Inherited::IsFree {
            self.skip_unfinished();
        }
        Some(Producer { ring: self, seated })
    }

    /// Has programs skip what earlier producers have not finished: one that a child of `fork` does not have, or one
    /// that has forgotten a sample. The caller is the producer, of memory that nobody outside can map.
    fn skip_unfinished(&self) {
        let end = self.memory[PRODUCER / WORD].load(Ordering::Relaxed);
        // P1. Relaxed: this writes no bytes, and programs move their position on only behind what is finished.
        let mut at = self.memory[0].load(Ordering::Relaxed);
        while at < end {
            let word = self.word(at);
            let header = word.load(Ordering::Relaxed) as u32;
            let len = u64::from(header & !(BUSY | SKIP));
            if header & BUSY != 0 {
                // P5. Release: as in `Sample::finish`.
                word.store(len | u64::from(SKIP), Ordering::Release);
            }
            at += (len + HEADER).next_multiple_of(WORD as u64);
        }
    }

    /// Makes this thread the one that drains the ring; `None` while another one does. What it changes is the process's
    /// own, also where the samples are shared.
    pub(crate) fn begin(&self) -> Option<Seated> {
        self.drain.take(Inherited::IsFree)
    }

    /// Ends draining; `wakes` the producer's host.
    pub(crate) fn end(&self, seated: &Seated, wakes: bool) {
        self.drain.give_back(seated);
        if let Some(waker) = self.waker.as_ref().filter(|_| wakes) {
            waker();
        }
    }

    /// Takes the next sample; only the thread that drains calls this.
    pub(crate) fn take(&self) -> Result<Next, Wrong> {
        // C1. Acquire: with the release of P3; without it, C2 could read what was there before the header.
        let end = self.memory[PRODUCER / WORD].load(Ordering::Acquire);
        // Relaxed: one thread drains at a time.
        let position = self.position.load(Ordering::Relaxed);
        if !end.is_multiple_of(WORD as u64) {
            return Err(Wrong::Position);
        }
        if position >= end {
            return Ok(Next::Nothing);
        }
        // C2. Acquire: with the release of P5; without it, C3 could read bytes from before P4.
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
            // C3. Relaxed: C2 has made the bytes visible. Whoever writes them meanwhile spoils the sample, and nothing
            // else.
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
        // C4. Release: with the acquire of P1; without it, P4 could write over bytes that C3 has yet to copy.
        self.memory[0].store(position, Ordering::Release);
    }
}

/// Why there is no room for a sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReserveError {
    /// There is no room until programs have taken samples; or, in a child of `fork`, another producer was taken.
    #[error("{len} bytes find no room until programs have taken samples")]
    Full {
        /// Bytes of the sample.
        len: u64,
    },
    /// The sample does not even fit into an empty buffer.
    #[error("a sample of {len} bytes never fits into a buffer of {most}, with its header of 8")]
    Long {
        /// Bytes of the sample.
        len: u64,
        /// Bytes of the buffer.
        most: u64,
    },
}

/// The one who puts samples into a user ring buffer.
#[derive(Debug)]
pub struct Producer<'a> {
    ring: &'a UserRing,
    seated: Seated,
}

impl<'a> Producer<'a> {
    /// Reserves room for a sample of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`ReserveError`].
    pub fn reserve(&mut self, len: u64) -> Result<Sample<'a, '_>, ReserveError> {
        let ring = self.ring;
        // A length has 30 bits, which is enough for whatever fits into a ring.
        let total = len.saturating_add(HEADER).checked_next_multiple_of(WORD as u64);
        let Some(total) = total.filter(|total| *total <= ring.len) else {
            return Err(ReserveError::Long { len, most: ring.len });
        };
        if !ring.producer.keeps(&mut self.seated) {
            return Err(ReserveError::Full { len });
        }
        let end = &ring.memory[PRODUCER / WORD];
        // Relaxed: there is one producer. Another process may have written anything, here and below.
        let position = end.load(Ordering::Relaxed) & !(HEADER - 1);
        // P1. Acquire: with the release of C4; without it, P4 could write over bytes that C3 has yet to copy.
        let taken = ring.memory[0].load(Ordering::Acquire);
        let next = position.wrapping_add(total);
        if next.wrapping_sub(taken) > ring.len {
            return Err(ReserveError::Full { len });
        }
        // P2. Relaxed: P3 publishes.
        ring.word(position).store(u64::from(len as u32 | BUSY), Ordering::Relaxed);
        // P3. Release: with the acquire of C1.
        end.store(next, Ordering::Release);
        let seated = self.seated.clone();
        Ok(Sample { ring, seated, position, len, is_done: false, _producer: core::marker::PhantomData })
    }

    /// Puts in a sample with these bytes.
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

    /// Bytes that programs have yet to take, with their headers.
    pub fn pending(&self) -> u64 {
        let end = self.ring.memory[PRODUCER / WORD].load(Ordering::Relaxed);
        end.wrapping_sub(self.ring.memory[0].load(Ordering::Relaxed))
    }
}

impl Drop for Producer<'_> {
    fn drop(&mut self) {
        self.ring.producer.give_back(&self.seated);
    }
}

/// Room for a sample. If it is dropped without [`submit`](Self::submit), programs skip it.
#[derive(Debug)]
pub struct Sample<'a, 'b> {
    ring: &'a UserRing,
    /// Its producer's.
    seated: Seated,
    position: u64,
    len: u64,
    is_done: bool,
    _producer: core::marker::PhantomData<&'b mut ()>,
}

impl Sample<'_, '_> {
    /// Writes bytes from the sample's beginning, as many as fit. The rest of the last word that is written becomes
    /// zero.
    ///
    /// Does nothing in a child of `fork` where the sample has stayed the parent's, or another producer was taken.
    pub fn write(&mut self, bytes: &[u8]) {
        if self.ring.producer.is_lost(&self.seated) {
            return;
        }
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
        if self.ring.producer.is_lost(&self.seated) {
            // That producer has had it skipped, or finishes it.
            return;
        }
        // P5. Release: with the acquire of C2; without it, C3 could copy bytes from before P4.
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

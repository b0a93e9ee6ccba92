//! Ring buffers: records from programs, on any thread, to one consumer in the host.
//!
//! # Memory
//!
//! Three parts, which other processes may map through the descriptor (numbers in the machine's order):
//!
//! | bytes | |
//! |---|---|
//! | 0 | the consumer's position, 8 bytes; the rest of 4096 is unused |
//! | 4096 | the producers' position, 8 bytes; the rest of 4096 is unused |
//! | 8192 | records: as many bytes as the map has entries |
//!
//! Positions count bytes for ever; a record lies at its position modulo the length. It has a header of 8 bytes: the low
//! half is its length in bytes, with bit 31 while it is being written, bit 30 if it is to be skipped, and bit 29
//! always; then come the bytes, up to a multiple of 8. A record never crosses the end, and no header but one to be
//! skipped is the last word: what is left there becomes a record to be skipped. So one that takes more than half of the
//! room may find none although nothing is there; and each record is known by an address inside the ring's memory, also
//! one without bytes, which is never that of something else behind it.
//!
//! # Protocol
//!
//! What no record covers is zero: the consumer clears a record before it gives its room back. So a producer takes room
//! with one compare-and-exchange of the producers' position, without a lock, and only then writes the header: a
//! consumer that comes earlier reads zero, and waits.
//!
//! | producer | consumer |
//! |---|---|
//! | P1 reads the consumer's position, acquire | C1 reads the header, acquire |
//! | P2 takes room: producers' position forward | C2 copies the bytes |
//! | P3 header: length, being written | C3 clears header and bytes |
//! | P4 bytes (the program) | C4 consumer's position forward, release |
//! | P5 header: length, release; fence, if it may wake | C5 fence; C1 again, and sleeps if there is nothing |
//! | P6 reads the consumer's position; wakes it if that is this record's, or of what is skipped before it | |
//!
//! C1 reads what P5 wrote: C2 sees P4. P1 reads what C4 wrote: P3 comes after C3. By the fences, C5 sees P5 or P6 sees
//! C4: nobody sleeps over a record.
//!
//! Whoever maps the memory can break the protocol, and get or cause wrong records, lost ones or a full buffer; memory
//! outside it is never reached. A consumer elsewhere needs all of it writable, since C3 clears records (`reader` is
//! one). There is one consumer at a time, here or elsewhere.
//!
//! # Forks
//!
//! A child of `fork` has the records of its parent's threads, also one that such a thread was writing: nobody finishes
//! that one there, and the child's consumer gets none of those behind it. It cannot be skipped: between P2 and P3 its
//! length is nowhere, and it may be that of the thread that has forked, in a helper or a handler, which goes on writing
//! it in the child. So a child that consumes records makes a map of its own, or is forked while nobody writes any.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use super::cells::{WORD, address};
use super::memory::Memory;
use super::seat::{Seat, Seated};
use super::value::Value;
use super::{Definition, MapError};

/// Where the producers' position is, in bytes.
pub(super) const PRODUCERS: usize = 4096;
/// Where records begin, in bytes.
pub(super) const RECORDS: usize = 2 * PRODUCERS;
/// Bytes of a header.
pub(super) const HEADER: u64 = 8;
/// Header bit: the record is being written.
pub(super) const BUSY: u64 = 1 << 31;
/// Header bit: the record is to be skipped.
pub(super) const SKIP: u64 = 1 << 30;
/// Header bit: there is a record.
pub(super) const THERE: u64 = 1 << 29;
/// Header bits: its length in bytes.
pub(super) const LEN: u64 = THERE - 1;

/// A ring buffer.
pub struct Ring {
    memory: Memory,
    /// Bytes of records; a power of 2.
    len: u64,
    /// Records that found no room. Producers add to it, anybody reads it.
    dropped: AtomicU64,
    /// The consumer's.
    consumer: Seat,
    waker: Option<Box<Waker>>,
}

/// What wakes the consumer.
pub(crate) type Waker = dyn Fn() + Send + Sync;

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("len", &self.len).field("dropped", &self.dropped).finish_non_exhaustive()
    }
}

/// Whether a record wakes the consumer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Wake {
    /// If it waits for this record.
    #[default]
    IfWaiting,
    /// Not (`BPF_RB_NO_WAKEUP`).
    Never,
    /// In any case (`BPF_RB_FORCE_WAKEUP`).
    Always,
}

/// What becomes of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// The consumer gets it.
    Submit,
    /// It is skipped.
    Discard,
}

/// A record has found no room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

impl Ring {
    /// Bytes that it takes.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        RECORDS as u64 + u64::from(definition.max_entries)
    }

    pub(super) fn new(definition: &Definition) -> Result<Self, MapError> {
        let len = u64::from(definition.max_entries);
        let memory = Memory::new(definition, Self::bytes(definition))?;
        Ok(Self { memory, len, dropped: AtomicU64::new(0), consumer: Seat::new(), waker: None })
    }

    /// Moves it to memory that other processes can map.
    ///
    /// # Errors
    ///
    /// [`SharedWordsError`](palimpsest_sys::memory::words::SharedWordsError); it stays as it was.
    #[cfg(feature = "std")]
    pub(super) fn share(&mut self, name: &str) -> Result<(), palimpsest_sys::memory::words::SharedWordsError> {
        self.memory = Memory::shared(name, RECORDS as u64 + self.len)?;
        Ok(())
    }

    /// Returns what other processes can map, if they can: the whole authority that a consumer elsewhere needs
    /// ([`RingReader`](super::RingReader)). As long as there is one, take none here.
    #[cfg(feature = "std")]
    pub fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.memory.descriptor()
    }

    pub(super) fn set_waker(&mut self, waker: Box<Waker>) {
        self.waker = Some(waker);
    }

    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.memory
    }

    fn consumers(&self) -> &AtomicU64 {
        &self.words()[0]
    }

    fn producers(&self) -> &AtomicU64 {
        &self.words()[PRODUCERS / WORD]
    }

    /// Returns where in the records a position is: a multiple of 8, unless somebody outside wrote it.
    const fn offset(&self, position: u64) -> u64 {
        position & (self.len - 1) & !(HEADER - 1)
    }

    /// Returns which word is at this position.
    #[inline]
    fn index(&self, position: u64) -> usize {
        (RECORDS + self.offset(position) as usize) / WORD
    }

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words()[self.index(position)]
    }

    /// How many records found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Takes room for `len` bytes. Returns where they lie.
    pub(crate) fn reserve(&self, len: u64) -> Option<u64> {
        let words = self.words();
        let first = self.index(self.take(words, len)?) + 1;
        Some(address(&words[first..]))
    }

    /// Takes room for `len` bytes among `words`, its own, or counts what finds none. Returns the record's position.
    #[inline]
    fn take(&self, words: &[AtomicU64], len: u64) -> Option<u64> {
        let position = self.try_take(words, len);
        if position.is_none() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        position
    }

    #[inline]
    fn try_take(&self, words: &[AtomicU64], len: u64) -> Option<u64> {
        if len > LEN {
            return None;
        }
        // Looked up once, and not for each word: where the words are is a question by itself.
        let (consumers, producers) = (&words[0], &words[PRODUCERS / WORD]);
        let total = HEADER + len.next_multiple_of(WORD as u64);
        if total > self.len {
            return None;
        }
        // Relaxed: the exchange below finds out if it has changed.
        let mut seen = producers.load(Ordering::Relaxed);
        loop {
            let rest = self.len - self.offset(seen);
            let skipped = if rest < total || rest == HEADER { rest } else { 0 };
            // P1. Acquire: with the release of C4; without it the consumer could clear what is written here.
            let consumer = consumers.load(Ordering::Acquire);
            let end = seen.wrapping_add(skipped + total);
            if end.wrapping_sub(consumer) > self.len {
                // The consumer may have passed what was seen: then more was taken since. Relaxed: not older than what
                // the consumer has seen, by P1, and the exchange finds out the rest.
                let now = producers.load(Ordering::Relaxed);
                if now == seen {
                    return None;
                }
                seen = now;
                continue;
            }
            // P2. Relaxed: only who takes which room matters; the header publishes.
            match producers.compare_exchange_weak(seen, end, Ordering::Relaxed, Ordering::Relaxed) {
                Err(now) => seen = now,
                Ok(_) => {
                    if skipped > 0 {
                        // Release as in P5, though only the header is published.
                        words[self.index(seen)].store(THERE | SKIP | (skipped - HEADER), Ordering::Release);
                    }
                    let position = seen.wrapping_add(skipped);
                    // P3. Relaxed: the consumer stops at it.
                    words[self.index(position)].store(THERE | BUSY | len, Ordering::Relaxed);
                    return Some(position);
                }
            }
        }
    }

    /// Finishes the record whose bytes lie at `address`. Ignores an address that is not a record's.
    pub(crate) fn finish(&self, record: u64, fate: Fate, wake: Wake) {
        if let Some(waker) = self.finish_quietly(record, fate, wake) {
            waker();
        }
    }

    /// Does the same, except that whoever calls this wakes the consumer if there is a result.
    #[inline]
    pub(crate) fn finish_quietly(&self, record: u64, fate: Fate, wake: Wake) -> Option<&Waker> {
        let words = self.words();
        let start = address(words) + RECORDS as u64;
        let offset = record.checked_sub(start + HEADER).filter(|offset| *offset < self.len - HEADER)?;
        self.finish_at(words, offset, fate, wake)
    }

    /// Finishes the record at this position. Returns what is to be called now.
    #[inline]
    fn finish_at(&self, words: &[AtomicU64], position: u64, fate: Fate, wake: Wake) -> Option<&Waker> {
        let header = &words[self.index(position)];
        let len = header.load(Ordering::Relaxed) & LEN;
        // P5. Release: with the acquire of C1; without it the consumer could miss some of the bytes.
        let skip = if fate == Fate::Discard { SKIP } else { 0 };
        header.store(THERE | skip | len, Ordering::Release);
        let waker = self.waker.as_deref()?;
        let is_due = match wake {
            Wake::Never => false,
            Wake::Always => true,
            Wake::IfWaiting => {
                // With the fence of C5: without it both could read old values, and the consumer would sleep. It takes
                // longer than all the rest, and nothing else needs it.
                fence(Ordering::SeqCst);
                self.is_next(words, self.offset(words[0].load(Ordering::Relaxed)), self.offset(position))
            }
        };
        is_due.then_some(waker)
    }

    /// Whether the record at `offset` is the next one to take for a consumer that is at `consumer`.
    #[inline]
    fn is_next(&self, words: &[AtomicU64], consumer: u64, offset: u64) -> bool {
        // A consumer that slept when the end was left out still waits there. Whoever took room here has written that
        // header; if the consumer is past it, it looks at this record before it sleeps.
        let is_end = || {
            let header = words[self.index(consumer)].load(Ordering::Relaxed);
            header & SKIP != 0 && consumer + HEADER + (header & LEN) == self.len
        };
        consumer == offset || offset == 0 && is_end()
    }

    /// Copies `bytes` into a record of their own; false if there is no room.
    pub fn output(&self, bytes: &[u8], wake: Wake) -> bool {
        self.output_value(Value::Near(bytes), wake)
    }

    /// Does the same with a program's bytes.
    pub(crate) fn output_value(&self, value: Value<'_>, wake: Wake) -> bool {
        let written = self.output_quietly(value.len() as u64, wake, |cells| {
            value.each_piece(|at, bytes| {
                for (cell, bytes) in cells[at / WORD..].iter().zip(bytes.chunks(WORD)) {
                    let mut word = [0; WORD];
                    word[..bytes.len()].copy_from_slice(bytes);
                    cell.store(u64::from_ne_bytes(word), Ordering::Relaxed);
                }
            });
        });
        if let Ok(Some(waker)) = written {
            waker();
        }
        written.is_ok()
    }

    /// Makes a record of `len` bytes, which `fill` writes; it must not panic. Returns what is to be called now.
    #[inline]
    pub(crate) fn output_quietly(
        &self,
        len: u64,
        wake: Wake,
        fill: impl FnOnce(&[AtomicU64]),
    ) -> Result<Option<&Waker>, NoRoom> {
        let words = self.words();
        let position = self.take(words, len).ok_or(NoRoom)?;
        let first = self.index(position) + 1;
        // It was taken, so that it is there.
        fill(&words[first..][..len.div_ceil(WORD as u64) as usize]);
        Ok(self.finish_at(words, position, Fate::Submit, wake))
    }

    /// Returns the one who reads records; `None` while there is one.
    ///
    /// In a child of `fork` there is none before somebody takes it, or drains the one that its parent had, which gets
    /// nothing any more once another was taken. If other processes can map the ring, the parent's stays the only one.
    pub fn take_consumer(&self) -> Option<Consumer<'_>> {
        let seated = self.consumer.take(self.memory.inherited())?;
        Some(Consumer { ring: self, bytes: Vec::new(), seated })
    }

    /// Returns the bytes taken and not consumed.
    pub fn pending(&self) -> u64 {
        self.producers_position().wrapping_sub(self.consumer_position())
    }

    /// Bytes of records that it holds.
    pub(crate) const fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn consumer_position(&self) -> u64 {
        self.consumers().load(Ordering::Relaxed)
    }

    pub(crate) fn producers_position(&self) -> u64 {
        self.producers().load(Ordering::Relaxed)
    }
}

/// The one who reads the records of a ring buffer.
#[derive(Debug)]
pub struct Consumer<'a> {
    ring: &'a Ring,
    bytes: Vec<u8>,
    seated: Seated,
}

impl Consumer<'_> {
    /// Passes each finished record to `take`, in the order in which room was taken. Returns how many there were, once
    /// there is none; a record that is finished after that wakes the consumer.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) -> usize {
        let mut count = 0;
        if !self.ring.consumer.keeps(&mut self.seated) {
            return count;
        }
        loop {
            while let Some(is_skipped) = self.next() {
                if !is_skipped {
                    take(&self.bytes);
                    count += 1;
                }
            }
            // C5, with the fence of `finish`: without it both could read old values, and nobody would come for a
            // record.
            fence(Ordering::SeqCst);
            if !self.is_ready() {
                return count;
            }
        }
    }

    fn is_ready(&self) -> bool {
        let header = self.ring.word(self.ring.consumers().load(Ordering::Relaxed)).load(Ordering::Relaxed);
        header != 0 && header & BUSY == 0
    }

    /// Copies the next record. Returns whether to skip it.
    pub(super) fn next(&mut self) -> Option<bool> {
        let (ring, words) = (self.ring, self.ring.words());
        let position = words[0].load(Ordering::Relaxed);
        // C1. Acquire: with the release of `finish`; without it some bytes could be old ones.
        let header = words[ring.index(position)].load(Ordering::Acquire);
        if header == 0 || header & BUSY != 0 {
            return None;
        }
        let is_skipped = header & SKIP != 0;
        // Somebody outside may have written the header: no record crosses the end.
        let rest = ring.len - ring.offset(position) - HEADER;
        let len = (header & LEN).min(rest);
        let (first, count) = (ring.index(position) + 1, len.div_ceil(WORD as u64) as usize);
        let cells = &words[first..first + count];
        self.bytes.clear();
        if !is_skipped {
            // Whole words, which is faster, and then as many bytes as there are.
            self.bytes.reserve(count * WORD);
            for cell in cells {
                self.bytes.extend_from_slice(&cell.load(Ordering::Relaxed).to_ne_bytes());
            }
            self.bytes.truncate(len as usize);
        }
        // C3. Relaxed: C4 publishes.
        cells.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
        words[ring.index(position)].store(0, Ordering::Relaxed);
        let end = position.wrapping_add(HEADER + len.next_multiple_of(WORD as u64));
        // C4. Release: with the acquire of P1; without it a producer could write before this has cleared.
        words[0].store(end, Ordering::Release);
        Some(is_skipped)
    }
}

impl Drop for Consumer<'_> {
    fn drop(&mut self) {
        self.ring.consumer.give_back(&self.seated);
    }
}

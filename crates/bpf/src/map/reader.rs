//! The consumer of a ring buffer in another process, which has mapped the buffer's memory.
//!
//! It follows the protocol of `ring` (C1 to C5), and trusts nobody who writes there: it keeps its own position and only
//! publishes it, reads each header once, compares every length and position with its bounds, and copies a record before
//! anybody sees it. What is wrong is an error that stays, since nothing tells where the next record begins.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use std::os::fd::OwnedFd;

use palimpsest_sys::memory::words::{AdoptWordsError, SharedWords};

use super::cells::WORD;
use super::ring::{BUSY, HEADER, LEN, PRODUCERS, RECORDS, SKIP, THERE};

/// Reads the records of a ring buffer of another process, from the descriptor of its memory.
///
/// That descriptor ([`Ring::descriptor`](super::Ring::descriptor)) is all the authority that it needs, and with an
/// [`Event`](super::Event)'s it need not poll. There is one consumer at a time: in the host
/// ([`Ring::take_consumer`](super::Ring::take_consumer)), or one of these.
///
/// The host need not be trusted. It may write anything into the buffer at any time; then this tells, or reads records
/// that no program made. It reaches no other memory, and each call ends.
#[derive(Debug)]
pub struct RingReader {
    words: SharedWords,
    /// Bytes of records; a power of 2.
    len: u64,
    /// The consumer's position, which nobody else changes: a multiple of 8.
    position: u64,
    /// The present record.
    bytes: Vec<u8>,
}

/// Why a descriptor is not that of a ring buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenRingError {
    /// It cannot be mapped.
    #[error(transparent)]
    Map(#[from] AdoptWordsError),
    /// It is longer than it may be.
    #[error("{bytes} bytes of memory, and the reader takes {most} at most")]
    Large {
        /// Bytes of the memory.
        bytes: usize,
        /// Bytes that it may have.
        most: usize,
    },
    /// No ring buffer has that length.
    #[error("{bytes} bytes are no ring buffer: two pages of 4096, and a power of 2 from 4096 to 1 GiB")]
    Length {
        /// Bytes of the memory.
        bytes: usize,
    },
    /// The position where records are to be read is none.
    #[error("the consumer's position {position:#x} is no multiple of 8; the buffer has been damaged")]
    Position {
        /// The position.
        position: u64,
    },
}

/// What the host has written is no record. The reader stays where it is: make another buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokenRing {
    /// The producers' position is impossible: no multiple of 8, or further from the reader's than the buffer is long.
    #[error("the producers' position {producers:#x} is impossible, since records are read at {position:#x}")]
    Position {
        /// Where the reader is.
        position: u64,
        /// The producers' position.
        producers: u64,
    },
    /// A header has other bits than headers have.
    #[error("the record at {position:#x} has the header {header:#x}, which none can have")]
    Header {
        /// Where the reader is.
        position: u64,
        /// The header.
        header: u64,
    },
    /// A record is longer than the room that was taken, or than what is left up to the end.
    #[error("the record at {position:#x} has {len} bytes, and {most} at most can be there")]
    Length {
        /// Where the reader is.
        position: u64,
        /// Bytes of the record.
        len: u64,
        /// Bytes that it can have.
        most: u64,
    },
}

/// What a call of [`RingReader::drain`] has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drained {
    /// How many records there were.
    pub records: usize,
    /// Whether there may be more.
    pub rest: Rest,
}

/// Whether a ring buffer has more records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    /// There was nothing more: a record that is finished later wakes whoever waits.
    Nothing,
    /// It has passed as many bytes as the buffer has: call it again before you wait.
    Unknown,
}

impl RingReader {
    /// Maps the memory of a ring buffer. Reading begins where the last consumer stopped.
    ///
    /// Such memory, which the host chooses, may have 1 GiB and 8 KiB, and a record half of that. This process pays for
    /// the pages that it reads, and for a copy of a record: [`open_within`](Self::open_within) bounds both.
    ///
    /// # Errors
    ///
    /// [`OpenRingError`].
    pub fn open(ring: OwnedFd) -> Result<Self, OpenRingError> {
        Self::open_within(ring, usize::MAX)
    }

    /// Does the same for memory of `most` bytes at most: the records', and 8 KiB.
    ///
    /// # Errors
    ///
    /// [`OpenRingError`].
    pub fn open_within(ring: OwnedFd, most: usize) -> Result<Self, OpenRingError> {
        let words = SharedWords::adopt(ring)?;
        let bytes = words.len() * WORD;
        if bytes > most {
            return Err(OpenRingError::Large { bytes, most });
        }
        let len = bytes.checked_sub(RECORDS).filter(|len| len.is_power_of_two() && (4096..=1 << 30).contains(len));
        let len = len.ok_or(OpenRingError::Length { bytes })? as u64;
        // Acquire: with the release of C4 by the consumer before this one; without it, what that one has cleared could
        // look like records.
        let position = words[0].load(Ordering::Acquire);
        if !position.is_multiple_of(HEADER) {
            return Err(OpenRingError::Position { position });
        }
        Ok(Self { words, len, position, bytes: Vec::new() })
    }

    /// Passes each finished record to `take`, in the order in which room was taken, until there is none, or as many
    /// bytes were passed as the buffer has.
    ///
    /// # Errors
    ///
    /// [`BrokenRing`], behind the records that were right.
    pub fn drain(&mut self, mut take: impl FnMut(&[u8])) -> Result<Drained, BrokenRing> {
        let (first, mut records, mut is_fenced) = (self.position, 0, false);
        loop {
            match self.next()? {
                Some(is_skipped) => {
                    if !is_skipped {
                        take(&self.bytes);
                        records += 1;
                    }
                    is_fenced = false;
                }
                None if is_fenced => return Ok(Drained { records, rest: Rest::Nothing }),
                None => {
                    // C5, with the fence of P5: without it both could read old values, and nobody would come for a
                    // record.
                    fence(Ordering::SeqCst);
                    is_fenced = true;
                }
            }
            // So that a call ends, whatever the host writes meanwhile.
            if self.position.wrapping_sub(first) >= self.len {
                return Ok(Drained { records, rest: Rest::Unknown });
            }
        }
    }

    /// Returns which word is at this position.
    fn index(&self, position: u64) -> usize {
        (RECORDS + (position & (self.len - 1)) as usize) / WORD
    }

    /// Copies the next record. Returns whether to skip it.
    fn next(&mut self) -> Result<Option<bool>, BrokenRing> {
        let position = self.position;
        let first = self.index(position);
        // C1. Acquire: with the release of P5; without it some bytes could be old ones.
        let header = self.words[first].load(Ordering::Acquire);
        if header == 0 || header & BUSY != 0 {
            return Ok(None);
        }
        // Relaxed: not older than when room was taken for this record, by C1.
        let producers = self.words[PRODUCERS / WORD].load(Ordering::Relaxed);
        let taken = producers.wrapping_sub(position);
        if taken > self.len || !producers.is_multiple_of(HEADER) {
            return Err(BrokenRing::Position { position, producers });
        }
        if header & THERE == 0 || header & !(THERE | SKIP | LEN) != 0 {
            return Err(BrokenRing::Header { position, header });
        }
        let (len, rest) = (header & LEN, self.len - (position & (self.len - 1)));
        let (total, room) = (HEADER + len.next_multiple_of(HEADER), rest.min(taken));
        if total > room {
            return Err(BrokenRing::Length { position, len, most: room.saturating_sub(HEADER) });
        }
        let is_skipped = header & SKIP != 0;
        let cells: &[AtomicU64] = &self.words[first..first + total as usize / WORD];
        self.bytes.clear();
        if !is_skipped {
            // C2. Relaxed: C1 has made the bytes visible. Whoever writes them meanwhile spoils the record, and nothing
            // else.
            cells[1..].iter().for_each(|cell| self.bytes.extend(cell.load(Ordering::Relaxed).to_ne_bytes()));
            self.bytes.truncate(len as usize);
        }
        // C3. Relaxed: C4 publishes.
        cells.iter().for_each(|cell| cell.store(0, Ordering::Relaxed));
        self.position = position.wrapping_add(total);
        // C4. Release: with the acquire of P1; without it a producer could write before this has cleared.
        self.words[0].store(self.position, Ordering::Release);
        Ok(Some(is_skipped))
    }
}

//! The address space of an arena: reserved once, and given memory from the front as needed.

use std::mem::MaybeUninit;
use std::ptr;

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use rustix::io::Errno;

use super::class::UNIT;
use super::mirror::Mirror;
use super::runs::{Runs, Taken};
use super::segments::{Segment, Segments};
use super::unit::{Unit, Units};
use super::{Backing, PIECE};

/// Sizes of the reservation to try: address-space limits and 39-bit machines refuse the larger ones.
const RESERVATIONS: [usize; 5] = [1 << 40, 1 << 37, 1 << 34, 1 << 32, 1 << 30];

/// Bytes of an arena that have a mirror. Forks unmap what they freeze beyond them. More would leave processes with a
/// hundred arenas too little address space.
const MIRRORED: usize = 1 << 36;

/// When an arena grows little by little, new segments are at least this part of the whole: at most this many come with
/// each doubling, so that mappings stay few.
const PARTS: usize = 32;

/// A request that is most of the arena comes at once, and is cut into this many to twice as many segments, so that one
/// written byte makes a fork copy less.
const PARTS_AT_ONCE: usize = 64;

/// Longest segment, in bytes.
const LONGEST: usize = 128 << 20;

/// Requests above this are checked against the machine's memory: a file would be granted whatever its size.
const PLAUSIBLE: usize = 1 << 30;

/// Where things are. Never changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Address of the first unit, a multiple of [`PIECE`].
    pub(super) data: usize,
    pub(super) data_len: usize,
    /// Records of the units.
    records: usize,
    records_len: usize,
    /// The whole reservation.
    whole: Span,
    /// Bytes that are reserved for the [mirror](super::aside), behind all else.
    mirror_len: usize,
}

impl Layout {
    /// Reserves address space.
    pub(super) fn reserve() -> Result<Self, Errno> {
        let mut refused = Errno::NOMEM;
        // Where address space is scarce, all of it is for memory.
        let with_mirror = Mirror::is_wanted().then_some((RESERVATIONS[0], true));
        for (data_len, has_mirror) in with_mirror.into_iter().chain(RESERVATIONS.map(|len| (len, false))) {
            let records_len = (data_len / UNIT * size_of::<Unit>()).next_multiple_of(PIECE);
            let mirror_len = if has_mirror { MIRRORED } else { 0 };
            let len = data_len + records_len + mirror_len + PIECE;
            match calls::map(len, Permissions::default(), Commit::Uncounted) {
                Ok(whole) => {
                    let data = whole.start.next_multiple_of(PIECE);
                    return Ok(Self { data, data_len, records: data + data_len, records_len, whole, mirror_len });
                }
                Err(errno) => refused = errno,
            }
        }
        Err(refused)
    }

    /// Returns the mirror of its memory.
    fn mirror(&self) -> Mirror {
        let mirrored = Span::new(self.data, self.data + self.mirror_len);
        if mirrored.is_empty() { Mirror::NONE } else { Mirror::above(mirrored, self.data_len + self.records_len) }
    }

    pub(super) fn records(&self) -> *const Unit {
        ptr::with_exposed_provenance(self.records)
    }

    pub(super) fn address(&self, unit: u32) -> usize {
        self.data + unit as usize * UNIT
    }

    /// Gives the reservation up; of its mirror, only these parts.
    ///
    /// # Safety
    ///
    /// 1. Nobody uses memory of the arena any more, and the parts are this process's.
    pub(super) unsafe fn release(&self, mirror: [Span; 2]) {
        let end = self.records + self.records_len;
        let around = [Span::new(self.whole.start, end), Span::new(end + self.mirror_len, self.whole.end)];
        for part in around.into_iter().chain(mirror) {
            // SAFETY: 1. the range was mapped by `reserve`, and (1).
            let _ = unsafe { calls::unmap(part) };
        }
    }
}

/// Runs and the memory they lie in: what the lock of the runs protects.
pub(super) struct Space {
    pub(super) layout: Layout,
    pub(super) runs: Runs,
    pub(super) segments: Segments,
    /// Bytes of data that have memory.
    data: usize,
    /// Bytes of records that have memory.
    records: usize,
    /// Blocks that are whole runs, and their units.
    pub(super) large: usize,
    pub(super) large_units: usize,
}

impl Space {
    pub(super) fn new(layout: Layout, table: &'static mut [MaybeUninit<Segment>], backing: Backing) -> Self {
        let runs = Runs::default();
        let segments = Segments::new(table, backing, layout.mirror());
        Self { layout, runs, segments, data: 0, records: 0, large: 0, large_units: 0 }
    }

    /// Takes a run, with new memory if necessary.
    pub(super) fn take(&mut self, units: &Units, len: u32, align: u32) -> Option<Taken> {
        self.segments.let_go(1);
        // Cut off at 32 bits: only its alignment matters.
        let origin = (self.layout.data / UNIT) as u32;
        if let Some(taken) = self.runs.take(units, len, align, origin) {
            return Some(taken);
        }
        let wanted = len.checked_add(align - 1)?;
        self.grow(units, wanted).ok()?;
        self.runs.take(units, len, align, origin)
    }

    /// Adds memory at the end until a run of `wanted` units is free there.
    fn grow(&mut self, units: &Units, wanted: u32) -> Result<(), Errno> {
        let end = units.count();
        let missing = wanted.saturating_sub(self.runs.free_before(units, end)).max(1) as usize;
        // The very first unit is never handed out.
        let missing = if end == 0 { missing + 1 } else { missing };
        let bytes = missing.checked_mul(UNIT).ok_or(Errno::NOMEM)?;
        let bytes = bytes.checked_next_multiple_of(PIECE).ok_or(Errno::NOMEM)?;
        if bytes > self.layout.data_len - self.data || (bytes > PLAUSIBLE && bytes > machine_memory()) {
            return Err(Errno::NOMEM);
        }
        let piece = if bytes > self.data {
            1 << (bytes / PARTS_AT_ONCE).ilog2()
        } else {
            ((self.data + bytes) / PARTS).next_power_of_two()
        };
        let piece = piece.clamp(PIECE, LONGEST);
        let goal = self.data + bytes;
        while self.data < goal {
            // A little more than asked for, so that small requests do not come back at once, and never beyond the
            // reservation.
            let len =
                piece.min(self.layout.data_len - self.data).min(if bytes > piece { goal - self.data } else { piece });
            self.back_records(units, self.data + len)?;
            // SAFETY: 1. behind the data that has memory and inside the reservation, in whole pieces; nobody knows of
            // its units yet.
            unsafe { self.segments.add(self.layout.data + self.data, len) }?;
            let first = units.count();
            self.data += len;
            // The reservation has less than 2^32 units.
            let count = (self.data / UNIT) as u32;
            // SAFETY: 1. `back_records` has mapped them. 2. It maps zeros, and nobody wrote there yet.
            unsafe { units.commit(count) };
            let usable = first.max(1);
            self.runs.give(units, usable, count - usable, 0);
        }
        Ok(())
    }

    fn back_records(&mut self, units: &Units, data: usize) -> Result<(), Errno> {
        let needed = (data / UNIT * size_of::<Unit>()).next_multiple_of(PIECE);
        debug_assert!(needed <= self.layout.records_len && units.count() as usize * UNIT == self.data);
        if needed > self.records {
            // SAFETY: 1. behind the records that have memory and inside their part of the reservation, whose pieces are
            // whole.
            unsafe { self.segments.add(self.layout.records + self.records, needed - self.records) }?;
            self.records = needed;
        }
        Ok(())
    }

    /// Returns the bytes of blocks and records that have an address; their untouched pages have no memory.
    pub(super) fn committed(&self) -> usize {
        self.data + self.records
    }
}

fn machine_memory() -> usize {
    let page = rustix::param::page_size();
    // SAFETY: asks for a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).map_or(usize::MAX, |pages| pages.saturating_mul(page))
}

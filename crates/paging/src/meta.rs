//! The data of a table besides its entries.

use core::sync::atomic::Ordering;

use crate::address::Frame;
use crate::id::SpaceId;
use crate::primitive::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// The machine keeps this for each table: in a kernel's array of frames, or before the table in an arena.
///
/// | field | who writes it | when |
/// |---|---|---|
/// | `shares` | every space that refers to the table | up: under the lock of a space that refers to it. Down: after the flush, when no CPU reaches the table through the reference any more |
/// | `populated`, `pinned`, `must_not_fault`, `kernel` | the only space that refers to it, under its lock | with the entry |
/// | `protected` | any space that refers to it, under its lock | when leaves lose the hardware's right to write |
/// | `owner` | the space that begins or ends to be charged | under that space's lock |
/// | `link`, `replica` | the only space that refers to it | under its lock |
#[derive(Debug)]
pub struct TableMeta {
    shares: AtomicU32,
    populated: AtomicU16,
    pinned: AtomicU32,
    protected: AtomicU8,
    must_not_fault: AtomicU8,
    kernel: AtomicU8,
    owner: AtomicU64,
    link: AtomicU64,
    replica: AtomicU64,
}

/// No frame, and no space.
const NONE: u64 = u64::MAX;

/// Loom's atomics cannot be made at compile time.
macro_rules! new {
    ($($const:tt)?) => {
        impl TableMeta {
            /// Creates the data of a table that was just allocated.
            pub $($const)? fn new() -> Self {
                Self {
                    shares: AtomicU32::new(1),
                    populated: AtomicU16::new(0),
                    pinned: AtomicU32::new(0),
                    protected: AtomicU8::new(0),
                    must_not_fault: AtomicU8::new(0),
                    kernel: AtomicU8::new(0),
                    owner: AtomicU64::new(NONE),
                    link: AtomicU64::new(NONE),
                    replica: AtomicU64::new(NONE),
                }
            }
        }
    };
}

#[cfg(not(loom))]
new!(const);
#[cfg(loom)]
new!();

impl TableMeta {
    /// Does what [`new`](Self::new) does, for memory that is used again.
    pub fn reset(&self) {
        // Relaxed: the table is not reachable yet.
        self.shares.store(1, Ordering::Relaxed);
        self.populated.store(0, Ordering::Relaxed);
        self.pinned.store(0, Ordering::Relaxed);
        self.protected.store(0, Ordering::Relaxed);
        self.must_not_fault.store(0, Ordering::Relaxed);
        self.kernel.store(0, Ordering::Relaxed);
        self.owner.store(NONE, Ordering::Relaxed);
        self.link.store(NONE, Ordering::Relaxed);
        self.replica.store(NONE, Ordering::Relaxed);
    }

    /// Returns whether this is what [`new`](Self::new) returns.
    pub(crate) fn is_new(&self) -> bool {
        let counts = self.shares() == 1 && self.populated() == 0 && self.pinned() == 0;
        let kinds = [&self.protected, &self.must_not_fault, &self.kernel];
        let frames = [&self.owner, &self.link, &self.replica];
        // Relaxed: the table is not reachable yet.
        counts
            && kinds.iter().all(|kind| kind.load(Ordering::Relaxed) == 0)
            && frames.iter().all(|frame| frame.load(Ordering::Relaxed) == NONE)
    }

    /// Returns how many entries and roots refer to the table.
    #[inline]
    pub fn shares(&self) -> u32 {
        // Acquire, partner: the Release in `drop_share`. Forbids that the last sharer takes a table for its own before
        // it sees the others' changes of entries.
        self.shares.load(Ordering::Acquire)
    }

    /// Returns how many of its entries are not empty.
    #[inline]
    pub fn populated(&self) -> u16 {
        // Relaxed: written under the lock of the only space that refers to the table, or constant while it is shared.
        self.populated.load(Ordering::Relaxed)
    }

    /// Returns how often pages in it and in the tables below are pinned.
    #[inline]
    pub fn pinned(&self) -> u32 {
        // Relaxed: as `populated`.
        self.pinned.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn add_share(&self) {
        // Relaxed: the caller has a reference, under its space's lock.
        self.shares.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops a reference. Returns true if it was the last.
    #[inline]
    pub(crate) fn drop_share(&self) -> bool {
        // Release, partner: the Acquire in `shares`, and here (Acquire) those of the others, for the thread that frees
        // the table.
        self.shares.fetch_sub(1, Ordering::AcqRel) == 1
    }

    #[inline]
    pub(crate) fn add_populated(&self, change: i16) {
        // Relaxed: as `populated`. Not an exchange, since there is one writer, and this happens for each page.
        self.populated.store(self.populated().wrapping_add_signed(change), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn add_pinned(&self, change: i32) {
        // Relaxed: as `populated`.
        self.pinned.fetch_add(change as u32, Ordering::Relaxed);
    }

    /// Returns whether every leaf has lost the hardware's right to write since the table was last exclusive.
    #[inline]
    pub(crate) fn is_protected(&self) -> bool {
        // Acquire, partner: the Release in `set_protected`. Forbids relying on leaves that another space is still
        // protecting.
        self.protected.load(Ordering::Acquire) != 0
    }

    #[inline]
    pub(crate) fn set_protected(&self, protected: bool) {
        // Release, partner: the Acquire in `is_protected`.
        self.protected.store(protected.into(), Ordering::Release);
    }

    /// Returns whether data of the kernel is or was mapped here or below: stores there must not fault, so that the
    /// table is never shared.
    #[inline]
    pub(crate) fn must_not_fault(&self) -> bool {
        // Relaxed: as `populated`.
        self.must_not_fault.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn set_must_not_fault(&self) {
        // Relaxed: as `populated`.
        self.must_not_fault.store(1, Ordering::Relaxed);
    }

    /// Returns whether a page of the kernel is or was mapped here or below.
    #[inline]
    pub(crate) fn is_kernel(&self) -> bool {
        // Relaxed: as `populated`.
        self.kernel.load(Ordering::Relaxed) != 0
    }

    #[inline]
    pub(crate) fn set_kernel(&self) {
        // Relaxed: as `populated`.
        self.kernel.store(1, Ordering::Relaxed);
    }

    /// Takes over the flags of kernel pages from `other`, whose entries this table gets.
    pub(crate) fn set_kernel_as(&self, other: &Self) {
        if other.is_kernel() {
            self.set_kernel();
        }
        if other.must_not_fault() {
            self.set_must_not_fault();
        }
    }

    #[inline]
    pub(crate) fn owner(&self) -> Option<SpaceId> {
        // Relaxed: a space that finds its own id has stored it itself.
        Some(self.owner.load(Ordering::Relaxed)).filter(|&owner| owner != NONE).map(SpaceId)
    }

    #[inline]
    pub(crate) fn set_owner(&self, owner: Option<SpaceId>) {
        self.owner.store(owner.map_or(NONE, |owner| owner.0), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn link(&self) -> Option<Frame> {
        frame(self.link.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_link(&self, next: Option<Frame>) {
        self.link.store(next.map_or(NONE, Frame::address), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn replica(&self) -> Option<Frame> {
        frame(self.replica.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_replica(&self, next: Option<Frame>) {
        self.replica.store(next.map_or(NONE, Frame::address), Ordering::Relaxed);
    }
}

impl Default for TableMeta {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
fn frame(bits: u64) -> Option<Frame> {
    Frame::new(bits)
}

//! What the parts of an allocation know of each other, and who holds them.
//!
//! | `kept` | who holds the parts | changed by |
//! |---|---|---|
//! | null | an [`Allocated`](super::Allocated) | `keep`, once, by its owner |
//! | a box | the packs, until they are released by an address | `take`, by one thread of those that try |
//! | [`RELEASED`] | nobody: they are retired | nobody |
//!
//! A part leads to its group, which may hold the part: the box ends the circle when it is taken.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use super::parts::Parts;
use crate::primitive::AtomicPtr;

/// What holds the parts, and retires them when it is dropped. Boxed twice: the pointer to it is exchanged as one word.
pub(super) type Held = Box<dyn Send + Sync>;

/// No box, but no null either.
const RELEASED: *mut Held = ptr::without_provenance_mut(align_of::<Held>());

/// See the module's documentation.
pub(super) struct Group {
    ranges: Parts<Range<usize>>,
    /// # Invariants
    ///
    /// 1. Null, [`RELEASED`], or from `Box::into_raw`, and then this value's.
    kept: AtomicPtr<Held>,
}

/// Who holds an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// Somebody, by an [`Allocated`](super::Allocated).
    Handle,
    /// The packs, until an address of it is [released](super::Packs::release).
    Kept,
    /// Nobody: it was released by an address.
    Released,
}

impl Group {
    pub(super) fn new(ranges: Parts<Range<usize>>) -> Self {
        Self { ranges, kept: AtomicPtr::new(ptr::null_mut()) }
    }

    pub(super) fn ranges(&self) -> &Parts<Range<usize>> {
        &self.ranges
    }

    /// Leaves the parts to whoever has an address of them.
    pub(super) fn keep(&self, held: Held) {
        // Release, partner: the Acquire exchange in `take`. Forbids that a thread which takes the box sees it empty.
        self.kept.store(Box::into_raw(Box::new(held)), Ordering::Release);
    }

    /// Who holds the parts now.
    pub(super) fn ownership(&self) -> Ownership {
        // Relaxed: nothing is read through it.
        match self.kept.load(Ordering::Relaxed) {
            kept if kept.is_null() => Ownership::Handle,
            RELEASED => Ownership::Released,
            _ => Ownership::Kept,
        }
    }

    /// Takes the parts, if they are kept; else who holds them. Of several threads one gets them.
    pub(super) fn take(&self) -> Result<Box<Held>, Ownership> {
        // Relaxed: nothing is read through it before the exchange.
        let kept = self.kept.load(Ordering::Relaxed);
        if kept.is_null() || kept == RELEASED {
            return Err(self.ownership());
        }
        // Acquire, partner: the Release store in `keep`. Relaxed on failure: nothing is read then.
        match self.kept.compare_exchange(kept, RELEASED, Ordering::Acquire, Ordering::Relaxed) {
            // SAFETY: invariant 1, and exchanged by this thread alone.
            Ok(kept) => Ok(unsafe { Box::from_raw(kept) }),
            // It is exchanged for that alone.
            Err(_) => Err(Ownership::Released),
        }
    }
}

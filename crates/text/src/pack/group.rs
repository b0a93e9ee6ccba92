//! Where the parts of an allocation are, and who owns them.
//!
//! | `kept` | who owns the parts | changed by |
//! |---|---|---|
//! | null | an [`Allocated`](super::Allocated) | `keep`, once, by its owner |
//! | a box | the packs, until they are released by an address | `take`, by one of the threads that try |
//! | [`RELEASED`] | nobody: they are retired | nobody |
//!
//! A part refers to its group, which may own the part through the box. Taking the box ends this circle.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::Ordering;

use super::parts::Parts;
use crate::primitive::AtomicPtr;

/// Owns the parts, and retires them when it is dropped. Boxed twice, so that the pointer to it is one word and can be
/// exchanged.
pub(super) type Held = Box<dyn Send + Sync>;

/// Neither a box nor null.
const RELEASED: *mut Held = ptr::without_provenance_mut(align_of::<Held>());

/// See the module's documentation.
pub(super) struct Group {
    ranges: Parts<Range<usize>>,
    /// # Invariants
    ///
    /// 1. Null, [`RELEASED`], or from `Box::into_raw`, and then this value's.
    kept: AtomicPtr<Held>,
}

/// Who owns an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// An [`Allocated`](super::Allocated), owned by the program.
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

    /// Leaves the parts to whoever has one of their addresses.
    pub(super) fn keep(&self, held: Held) {
        // Release, partner: the Acquire exchange in `take`. Forbids that a thread takes the box and does not see its
        // contents.
        self.kept.store(Box::into_raw(Box::new(held)), Ordering::Release);
    }

    /// Returns who owns the parts now.
    pub(super) fn ownership(&self) -> Ownership {
        // Relaxed: nothing is read through it.
        match self.kept.load(Ordering::Relaxed) {
            kept if kept.is_null() => Ownership::Handle,
            RELEASED => Ownership::Released,
            _ => Ownership::Kept,
        }
    }

    /// Takes the parts if they are kept, or else returns who owns them. One thread of several gets them.
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
            // It is exchanged only when it is taken.
            Err(_) => Err(Ownership::Released),
        }
    }
}

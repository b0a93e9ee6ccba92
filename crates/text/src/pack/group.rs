//! Where the parts of an allocation are, and who owns them.
//!
//! | `owner` | who owns the parts | changed by |
//! |---|---|---|
//! | [`HANDLE`] | an [`Allocated`](super::Allocated) | `keep`, once, by its owner |
//! | [`KEPT`] | the packs, until they are released by an address | `take`, by one of the threads that try |
//! | [`RELEASED`] | nobody: they are retired | nobody |
//!
//! A part refers to its group, which owns the part while it is kept. Taking the parts ends this circle.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

use super::parts::Parts;
use crate::primitive::AtomicU32;

const HANDLE: u32 = 0;
const KEPT: u32 = 1;
const RELEASED: u32 = 2;

/// Owns the parts, and retires them when it is dropped.
pub(super) type Held = Box<dyn Send + Sync>;

/// See the module's documentation.
pub(super) struct Group {
    ranges: Parts<Range<usize>>,
    /// Where [`kept`](Self::kept) is: one of the constants above.
    owner: AtomicU32,
    /// # Invariants
    ///
    /// 1. Used by the caller of `keep` alone until the owner is [`KEPT`], and then by the one thread that has exchanged
    ///    that for [`RELEASED`].
    kept: UnsafeCell<Option<Held>>,
}

// SAFETY: `kept` is `Send`, used by one thread at a time (invariant 1), and passed from one to the next. The rest is
// atomic or never changes.
unsafe impl Sync for Group {}

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
        Self { ranges, owner: AtomicU32::new(HANDLE), kept: UnsafeCell::new(None) }
    }

    pub(super) fn ranges(&self) -> &Parts<Range<usize>> {
        &self.ranges
    }

    /// Leaves the parts to whoever has one of their addresses.
    ///
    /// # Safety
    ///
    /// 1. It is called once.
    pub(super) unsafe fn keep(&self, held: Held) {
        let kept = self.kept.get();
        // SAFETY: invariant 1: the owner is not `KEPT` before this call, the only one (1).
        unsafe { kept.write(Some(held)) };
        // Release, partner: the Acquire exchange in `take`. Forbids that a thread takes the parts without seeing them.
        self.owner.store(KEPT, Ordering::Release);
    }

    /// Returns who owns the parts now.
    pub(super) fn ownership(&self) -> Ownership {
        // Relaxed: nothing is read through it.
        match self.owner.load(Ordering::Relaxed) {
            HANDLE => Ownership::Handle,
            KEPT => Ownership::Kept,
            _ => Ownership::Released,
        }
    }

    /// Takes the parts if they are kept, or else returns who owns them. One thread of several gets them.
    pub(super) fn take(&self) -> Result<Option<Held>, Ownership> {
        // Acquire, partner: the Release store in `keep`. Relaxed on failure: nothing is read then.
        match self.owner.compare_exchange(KEPT, RELEASED, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                let kept = self.kept.get();
                // SAFETY: invariant 1: exchanged by this thread alone.
                Ok(unsafe { (*kept).take() })
            }
            Err(HANDLE) => Err(Ownership::Handle),
            // It is exchanged only when it is taken.
            Err(_) => Err(Ownership::Released),
        }
    }
}

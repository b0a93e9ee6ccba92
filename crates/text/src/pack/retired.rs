//! Programs whose handles are gone, waiting to be collected: a stack to which any thread pushes, and which one thread
//! takes as a whole.
//!
//! Taking the whole stack by one exchange avoids the ABA problem: nobody ever removes a single item.

use std::ptr::{self, NonNull};
use std::sync::atomic::Ordering;

use crate::primitive::AtomicPtr;

/// A type with a field for the link.
///
/// # Safety
///
/// 1. `link` always returns the same field of `self`, which nothing else uses.
pub(crate) unsafe trait Linked: Sized {
    /// Returns the link.
    fn link(&self) -> &AtomicPtr<Self>;
}

/// See the module's documentation.
pub(crate) struct RetiredStack<T: Linked>(AtomicPtr<T>);

impl<T: Linked> RetiredStack<T> {
    pub(crate) fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Puts an item on the stack. Lock-free.
    ///
    /// # Safety
    ///
    /// 1. `item` stays where it is and readable until it has been taken, and is on no stack.
    pub(crate) unsafe fn push(&self, item: NonNull<T>) {
        // SAFETY: the caller's contract.
        unsafe { self.push_ordered(item, Ordering::Release) }
    }

    /// Does what [`push`](Self::push) does, with an ordering that a model may weaken.
    ///
    /// # Safety
    ///
    /// As for [`push`](Self::push).
    pub(super) unsafe fn push_ordered(&self, item: NonNull<T>, release: Ordering) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: readable (1).
            let link = unsafe { item.as_ref() }.link();
            // Relaxed: published by the exchange.
            link.store(head, Ordering::Relaxed);
            // Release, partner: the Acquire exchange in `take_all`. Forbids a collector that sees the item, but not its
            // link or its owner's last accesses.
            match self.0.compare_exchange_weak(head, item.as_ptr(), release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(newer) => head = newer,
            }
        }
    }

    /// Takes all items, the youngest first.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = NonNull<T>> + use<T> {
        // Acquire, partner: `push`.
        let mut next = self.0.swap(ptr::null_mut(), Ordering::Acquire);
        std::iter::from_fn(move || {
            let item = NonNull::new(next)?;
            // SAFETY: readable until taken (contract of `push`), which is now; the link was published with the item.
            let link = unsafe { item.as_ref() }.link();
            // Relaxed: see above.
            next = link.load(Ordering::Relaxed);
            Some(item)
        })
    }
}

//! Static calls.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::{fmt, mem, ptr};

use palimpsest_sys::Caller;

use super::arch;
use super::change::{call_sites, stay_loaded};
use super::error::CallError;
use super::lock::Held;
use crate::poke::{Batch, PokeError};

/// A function that can be exchanged while it is called. Made by [`static_call!`](crate::static_call), and called
/// through
/// [`call!`](crate::call).
///
/// `F` is a function pointer type.
#[repr(C)]
pub struct StaticCall<F> {
    /// The present function. First field, since entries on x86-64 jump through it while their own jump is being
    /// changed. Written by the holder of `lock`, read by anybody.
    target: AtomicPtr<()>,
    /// See the module `lock`. The holder may also change the sites.
    lock: AtomicU64,
    function: PhantomData<F>,
}

impl<F: Copy> StaticCall<F> {
    pub(super) const fn new(first: *const ()) -> Self {
        const { assert!(size_of::<F>() == size_of::<*const ()>(), "a function pointer") };
        Self { target: AtomicPtr::new(first.cast_mut()), lock: AtomicU64::new(0), function: PhantomData }
    }

    /// Returns the function that the call leads to now.
    #[inline]
    pub fn target(&self) -> F {
        // Acquire, partner: the Release in `set`. Forbids that the function is seen without what was prepared for it.
        let target = self.target.load(Ordering::Acquire);
        // SAFETY: of the same size, and a function of that type: `static_call!` and `set` store only such functions.
        unsafe { mem::transmute_copy::<*mut (), F>(&target) }
    }

    /// Makes the call lead to `function`. When this returns, every call that begins later, in any thread, goes there;
    /// calls that began before may still be in the former function.
    ///
    /// # Errors
    ///
    /// See [`CallError`]; after one it leads where it did before, except after [`PokeError::Unsynced`] and, from some
    /// callers, after [`PokeError::Partial`].
    pub fn set(&self, function: F) -> Result<(), CallError> {
        // SAFETY: of the same size, by the assertion in `new`; any value is a valid raw pointer.
        let address = unsafe { mem::transmute_copy::<F, *mut ()>(&function) };
        stay_loaded()?;
        let mut held = Held::take(&self.lock, Caller::current()).map_err(|_reentered| CallError::Reentered)?;
        // Relaxed: under the lock.
        let former = self.target.load(Ordering::Relaxed);
        let mut batch = Batch::new();
        if held.inherited == super::lock::Inherited::Yes {
            // As for keys: finishes what a parent had begun.
            batch.apply()?;
        }
        let target = address.expose_provenance();
        for site in call_sites(ptr::from_ref(self).addr()) {
            let too_far = CallError::TooFar { site: site.address, target };
            let after = arch::jump(site.address, target).ok_or(too_far)?;
            // Reads what is there instead of assuming a jump to `self.target`: linkers may put a step in between.
            // SAFETY: 1. this very object.
            let before = unsafe { site.present() };
            // SAFETY: 1. `static_call!` made the site in the text of this object, which stays loaded; 2. it is one
            // jump, and so is what replaces it; 3. both functions suit every caller, as their type is the same; 4.
            // nothing makes references to text.
            unsafe { batch.add_text(site.address, &before, &after) }?;
        }
        // Stored before the jumps change, since a thread may jump through it meanwhile. Release, partner: the Acquire
        // in `target`, and on x86-64 the load of the jump through it, which acquires too. Forbids that the function is
        // seen without what was prepared for it.
        self.target.store(address, Ordering::Release);
        if batch.is_empty() {
            held.settle();
            return Ok(());
        }
        // SAFETY: 1. entries are jumps in front of one through `target`.
        match unsafe { batch.apply_by_detours() } {
            Ok(_) => {
                held.settle();
                Ok(())
            }
            Err(error) => {
                // In this case the jumps are new, though a core may run an old one for a while.
                if !matches!(error, PokeError::Unsynced(_)) {
                    // Release, partner: as above.
                    self.target.store(former, Ordering::Release);
                }
                Err(error.into())
            }
        }
    }
}

impl<F> fmt::Debug for StaticCall<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StaticCall").field("target", &self.target).finish_non_exhaustive()
    }
}

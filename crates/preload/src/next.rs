//! Functions that would be called if this object were not there.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::lookup;

/// The next definition of a symbol after this object, in the order of the dynamic linker.
///
/// It is looked up at its first use, [without](lookup) the dynamic linker; where that cannot be done, as beside another
/// C library than glibc, by [`Next::resolve`] at the start. `Relaxed` everywhere: the address is of code that stays
/// loaded while the process lives, and publishes nothing else.
pub(crate) struct Next<F> {
    /// With the null behind it, and others: not an address, which might not be [relocated](crate::deferred) yet.
    name: [u8; LONGEST],
    /// Null before it was looked for, [`MISSING`] if there is none.
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

/// Bytes of a name at most.
const LONGEST: usize = 24;

const MISSING: *mut c_void = ptr::without_provenance_mut(1);

impl<F: Copy> Next<F> {
    /// # Safety
    ///
    /// 1. `F` must be the type `unsafe extern "C" fn` of the C function `name`.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        let (mut copy, bytes, mut at) = ([0; LONGEST], name.to_bytes(), 0);
        while at < bytes.len() {
            copy[at] = bytes[at];
            at += 1;
        }
        assert!(copy[LONGEST - 1] == 0, "a longer name than there is room for");
        Self { name: copy, address: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// Asks the dynamic linker for the function: takes locks, and may allocate. Not for signal handlers.
    pub(crate) fn resolve(&self) {
        // SAFETY: the name is a C string; the result is an address that is not used here.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr().cast()) };
        self.address.store(address, Ordering::Relaxed);
    }

    /// Returns the function, if it exists. Async-signal-safe.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = self.find();
        }
        if address.is_null() || address == MISSING {
            return None;
        }
        // SAFETY: the address is of the function `name`, whose type is `F` by the contract of `new`.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Looks for the function; null if that cannot be done.
    #[cold]
    #[inline(never)]
    fn find(&self) -> *mut c_void {
        if !lookup::is_possible() {
            return ptr::null_mut();
        }
        let name = CStr::from_bytes_until_nul(&self.name).unwrap_or_default();
        let address = lookup::next(name).unwrap_or(MISSING);
        self.address.store(address, Ordering::Relaxed);
        address
    }

    /// Returns its address; 0 if [`get`](Self::get) has none. Async-signal-safe.
    pub(crate) fn address(&self) -> usize {
        self.get().map_or(0, |_| self.address.load(Ordering::Relaxed).addr())
    }

    /// Returns the function, or `own` if [`get`](Self::get) has none.
    pub(crate) fn or(&self, own: F) -> F {
        self.get().unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_when_it_is_needed() {
        // SAFETY: `pid_t getpid(void)`.
        let next: Next<unsafe extern "C" fn() -> libc::pid_t> = unsafe { Next::new(c"getpid") };
        let found = next.get().expect("getpid is in the C library");
        // SAFETY: takes nothing.
        assert_eq!(unsafe { found() }.cast_unsigned(), std::process::id());
        let address = next.address();
        next.resolve();
        assert_eq!(next.address(), address, "as the dynamic linker finds it");
    }

    #[test]
    fn what_does_not_exist_stays_unknown() {
        // SAFETY: there is no such function, so any type is its type.
        let next: Next<unsafe extern "C" fn()> = unsafe { Next::new(c"no_such_function") };
        assert!(next.get().is_none() && next.get().is_none());
        next.resolve();
        assert!(next.get().is_none() && next.address() == 0);
    }
}

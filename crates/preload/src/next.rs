//! Functions that would be called if this object were not there.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a symbol after this object, in the order of the dynamic linker.
///
/// It is looked up once, by [`Next::resolve`]: `dlsym` takes locks and may allocate, so that no interposed call may use
/// it. `Relaxed` everywhere: the address is of code that stays loaded while the process lives, and publishes nothing
/// else.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    ///
    /// 1. `F` must be the type `unsafe extern "C" fn` of the C function `name`.
    pub(crate) const unsafe fn new(name: &'static CStr) -> Self {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Self { name, address: AtomicPtr::new(ptr::null_mut()), kind: PhantomData }
    }

    /// Looks the function up. Not for signal handlers.
    pub(crate) fn resolve(&self) {
        // SAFETY: the name is a C string; the result is an address that is not used here.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
    }

    /// Returns the function, if it was looked up and exists. Async-signal-safe.
    pub(crate) fn get(&self) -> Option<F> {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            return None;
        }
        // SAFETY: `dlsym` gave the address of the function `name`, whose type is `F` by the contract of `new`.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// Returns its address; 0 if [`get`](Self::get) has none. Async-signal-safe.
    pub(crate) fn address(&self) -> usize {
        self.address.load(Ordering::Relaxed).addr()
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
    fn a_function_is_there_only_after_it_was_looked_up() {
        // SAFETY: `pid_t getpid(void)`.
        let next: Next<unsafe extern "C" fn() -> libc::pid_t> = unsafe { Next::new(c"getpid") };
        assert!(next.get().is_none());
        next.resolve();
        let found = next.get().expect("getpid is in the C library");
        // SAFETY: takes nothing.
        assert_eq!(unsafe { found() }.cast_unsigned(), std::process::id());
    }

    #[test]
    fn what_does_not_exist_stays_unknown() {
        // SAFETY: there is no such function, so any type is its type.
        let next: Next<unsafe extern "C" fn()> = unsafe { Next::new(c"palimpsest_no_such_function") };
        next.resolve();
        assert!(next.get().is_none());
    }
}

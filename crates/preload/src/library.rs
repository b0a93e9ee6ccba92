//! Where the C library is, to tell its functions from those that another preloaded object has put before them: a clock
//! of its own (libfaketime), or sockets that the kernel does not know (libvma, Onload).

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::{glibc, lookup};

/// Its first byte, and the end; both 0 before it is found. `Relaxed`: numbers.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Finds it. Takes no lock.
pub(crate) fn find() {
    let Some(start) = glibc::inside().and_then(lookup::start_of_holder) else { return };
    // SAFETY: 1. glibc's linker puts its file there, from the first byte on.
    let range = unsafe { lookup::range_of(start) };
    START.store(range.start, Ordering::Relaxed);
    END.store(range.end, Ordering::Relaxed);
}

/// Whether a function with this address is the C library's. Async-signal-safe.
pub(crate) fn has(function: usize) -> bool {
    (START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&function)
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    #[test]
    fn functions_of_the_c_library_are_told_from_others() {
        find();
        assert!(has((libc::poll as *const c_void).addr()) && has((libc::malloc as *const c_void).addr()));
        assert!(!has((find as *const c_void).addr()) && !has(0) && !has(usize::MAX));
    }
}

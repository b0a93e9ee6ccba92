//! Where the C library is, to tell its functions from those that another preloaded object has put before them: a clock
//! of its own (libfaketime), or sockets that the kernel does not know (libvma, Onload).

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::glibc;

/// Its first byte, and the end; both 0 before it is found. `Relaxed`: numbers.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Finds it. Takes a lock of the dynamic linker, but neither memory nor a look at its symbols, as `dladdr` does.
pub(crate) fn find() {
    // SAFETY: the function keeps to what it is given.
    unsafe { libc::dl_iterate_phdr(Some(note), ptr::null_mut()) };
}

/// Notes where an object is, and ends the search, if it has the function.
// Beside what else runs before `main`.
#[unsafe(link_section = "palimpsest_start")]
unsafe extern "C" fn note(object: *mut libc::dl_phdr_info, _size: usize, _unused: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker describes an object here for the time of the call.
    let object = unsafe { &*object };
    // SAFETY: by the same description, so many headers.
    let headers = unsafe { std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into()) };
    let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let (start, end) = loaded.fold((usize::MAX, 0), |(start, end), header| {
        let from = (object.dlpi_addr + header.p_vaddr) as usize;
        (start.min(from), end.max(from + header.p_memsz as usize))
    });
    if glibc::inside().is_none_or(|inside| !(start..end).contains(&inside)) {
        return 0;
    }
    START.store(start, Ordering::Relaxed);
    END.store(end, Ordering::Relaxed);
    1
}

/// Whether a function with this address is the C library's. Async-signal-safe.
pub(crate) fn has(function: usize) -> bool {
    (START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_the_c_library_are_told_from_others() {
        find();
        assert!(has((libc::poll as *const c_void).addr()) && has((libc::malloc as *const c_void).addr()));
        assert!(!has((find as *const c_void).addr()) && !has(0) && !has(usize::MAX));
    }
}

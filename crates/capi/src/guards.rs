//! Memory calls of a process that has frozen, and thawing.

use std::ffi::{c_int, c_long, c_void};
use std::io::Error;
use std::ops::Range;

use palimpsest_fork::guard::{self, Protect, Remap};
use rustix::io::Errno;

use crate::result::palimpsest_result::{
    self, PALIMPSEST_BUSY, PALIMPSEST_NO_ROOM, PALIMPSEST_REFUSED, PALIMPSEST_SYSTEM,
};
use crate::result::{Failure, answer, like_libc, set_errno};

/// Returns what a call that has failed left in `errno`. If that is none of the kernel's numbers (`include/linux/err.h`:
/// 1 to 4095), as an interposed function may leave it, the call counts as one with an invalid argument.
fn last_errno() -> Errno {
    let told = Error::last_os_error().raw_os_error().filter(|told| (1..=4095).contains(told));
    told.map_or(Errno::INVAL, Errno::from_raw_os_error)
}

/// `madvise` that is right for frozen memory, too: discarded memory is zeros afterwards, not the bytes of the freeze.
/// Returns 0, or -1 with `errno`.
///
/// # Safety
///
/// 1. As for `madvise`: discarding takes contents away.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // By the C library, so that a sanitizer sees it. SAFETY: contract 1.
    let call = || if unsafe { libc::madvise(address, len, advice) } == 0 { Ok(()) } else { Err(last_errno()) };
    // SAFETY: 1. is contract 1, and `call` makes the call.
    like_libc(-1, || match unsafe { guard::madvise_by(address.addr(), len, advice, call) } {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno.raw_os_error());
            -1
        }
    })
}

/// `mremap` that is right for frozen memory, too. `new_address` counts with `MREMAP_FIXED` only. Returns the new
/// address, or `MAP_FAILED` with `errno`.
///
/// # Safety
///
/// 1. As for `mremap`: memory is moved and cut, and with `MREMAP_FIXED` replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_mremap(
    address: *mut c_void,
    len: usize,
    new_len: usize,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    let remap = Remap { address: address.addr(), len, new_len, flags, new_address: new_address.addr() };
    let call = || {
        // SAFETY: contract 1.
        let moved = unsafe { libc::mremap(address, len, new_len, flags, new_address) };
        if moved == libc::MAP_FAILED { Err(last_errno()) } else { Ok(moved.expose_provenance()) }
    };
    // SAFETY: 1. is contract 1, and `call` makes the call.
    like_libc(libc::MAP_FAILED, || match unsafe { guard::mremap_by(remap, call) } {
        Ok(moved) => std::ptr::with_exposed_provenance_mut(moved),
        Err(errno) => {
            set_errno(errno.raw_os_error());
            libc::MAP_FAILED
        }
    })
}

/// `mprotect` that is right for frozen memory, too: what is frozen, thawed or repaired later gets the new rights.
/// Returns 0, or -1 with `errno`.
///
/// # Safety
///
/// 1. As for `mprotect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_mprotect(address: *mut c_void, len: usize, rights: c_int) -> c_int {
    // By the C library, so that a sanitizer sees it. SAFETY: contract 1.
    let call = || unsafe { libc::mprotect(address, len, rights) };
    let asked = Protect { address: address.expose_provenance(), len, rights, key: -1 };
    // SAFETY: 1. is contract 1, and `call` makes the call.
    like_libc(-1, || unsafe { protect(asked, call) })
}

/// `pkey_mprotect` that is right for frozen memory, too: what is thawed or repaired later gets the new rights and the
/// key. Returns 0, or -1 with `errno`.
///
/// # Safety
///
/// 1. As for `pkey_mprotect`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_pkey_mprotect(
    address: *mut c_void,
    len: usize,
    rights: c_int,
    key: c_int,
) -> c_int {
    // As in the C library: kernels without keys (AArch64 before Linux 6.12) lack the call.
    if key == -1 {
        // SAFETY: 1. is contract 1.
        return unsafe { palimpsest_mprotect(address, len, rights) };
    }
    // The C library has no such function everywhere.
    let call = || {
        // SAFETY: contract 1.
        let done =
            unsafe { libc::syscall(libc::SYS_pkey_mprotect, address, len, c_long::from(rights), c_long::from(key)) };
        if done == 0 { 0 } else { -1 }
    };
    let asked = Protect { address: address.expose_provenance(), len, rights, key };
    // SAFETY: 1. is contract 1, and `call` makes the call.
    like_libc(-1, || unsafe { protect(asked, call) })
}

/// Makes a call that changes the rights of memory, and notes them.
///
/// # Safety
///
/// 1. The program must not need the rights that it gives up, and `call` makes that call.
unsafe fn protect(asked: Protect, call: impl Fn() -> c_int) -> c_int {
    let before = Error::last_os_error().raw_os_error().unwrap_or(0);
    let call = || if call() == 0 { Ok(()) } else { Err(last_errno()) };
    // SAFETY: 1. is this function's own.
    let (answer, errno) = match unsafe { guard::mprotect_by(asked, call) } {
        Ok(()) => (0, before),
        Err(errno) => (-1, errno.raw_os_error()),
    };
    set_errno(errno);
    answer
}

/// Notes that an `mmap` of the caller's has replaced what was at `address`: what was frozen there no longer counts.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_replaced(address: *const c_void, len: usize) {
    like_libc((), || guard::replaced(pages(address, len)));
}

/// Notes that memory at `address` is about to get other flags by calls that these functions do not make, such as
/// `process_madvise` with `MADV_DONTFORK`: from now on that memory stays where it is. Call it again afterwards if other
/// threads may freeze.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_changed(address: *const c_void, len: usize) {
    like_libc((), || guard::changed(pages(address, len)));
}

/// Returns 0 if nothing of whole pages at `address` is frozen, or is going to be by a freeze in slices under way.
/// Returns 1 if something is, may be, or was until it was thawed. For signal handlers, too: takes no lock.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_may_be_frozen(address: *const c_void, len: usize) -> c_int {
    like_libc(0, || {
        let range = pages(address, len);
        c_int::from(guard::touches(range.clone()) || guard::is_planned(range))
    })
}

/// `mlock` that thaws memory first, since locking frozen memory holds it twice. If that is not possible (the process
/// has other threads, or is a child of the one that froze), it is locked all the same. Returns 0, or -1 with `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_mlock(address: *const c_void, len: usize) -> c_int {
    like_libc(-1, || {
        let _ = guard::before_mlock(pages(address, len));
        // SAFETY: takes an address, and reads nothing there.
        let done = unsafe { libc::mlock(std::ptr::without_provenance(address.addr()), len) };
        // Another thread may have frozen memory meanwhile, and noted that it is not locked. A failure may have locked
        // it.
        guard::locked(pages(address, len));
        done
    })
}

/// `mlockall` that with `MCL_CURRENT` thaws first, as `palimpsest_mlock` does: upwards, up to the first memory that
/// cannot be thawed (`palimpsest_thaw`). What is behind that is locked as it is. After `MCL_FUTURE` the process refuses
/// to freeze and to repair, unless it answers for `PALIMPSEST_LOCKED_MEMORY`. Returns 0, or -1 with `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_mlockall(flags: c_int) -> c_int {
    like_libc(-1, || {
        if flags & libc::MCL_CURRENT != 0 {
            let _ = guard::before_mlockall();
        }
        // SAFETY: takes a number.
        let done = unsafe { libc::mlockall(flags) };
        let errno = Error::last_os_error().raw_os_error().unwrap_or(0);
        // What replaces frozen memory from now on would be locked. Other failures lock a part.
        if (done == 0 || errno != libc::EINVAL) && guard::touches(0..usize::MAX) {
            guard::changed(0..usize::MAX);
        }
        set_errno(errno);
        done
    })
}

/// Turns what is frozen of whole pages at `address` into ordinary memory with the same bytes, rights and protection
/// key; a key must let the calling thread read. Holds other threads still if the last freeze was allowed to.
/// `PALIMPSEST_BUSY` if a freeze is under way, if there are other threads that must not or cannot be held, or if the
/// calling code uses the memory itself; `PALIMPSEST_REFUSED` for memory of which too little is known: it has tags, or
/// `palimpsest_changed` names it; `PALIMPSEST_NO_ROOM` without memory, or addresses, for a copy. What was not thawed
/// until then, upwards, is still frozen.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_thaw(address: *const c_void, len: usize) -> palimpsest_result {
    answer(|| guard::thaw(pages(address, len)).map_err(not_thawed))
}

/// As `palimpsest_thaw`, of all that is frozen. Everything that can be thawed is. Forks are plain until the next
/// freeze, and a freeze in slices that was under way ends.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_thaw_all() -> palimpsest_result {
    answer(|| guard::thaw_all().map_err(not_thawed))
}

/// Destroys the bytes that the memory held when it was frozen: call it after erasing a secret. The memory keeps its
/// present contents. After an error, which is as of `palimpsest_thaw`, it is done as soon as possible: by the next
/// freeze or repair, and in each child of `palimpsest_fork` before that returns.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_forget(address: *const c_void, len: usize) -> palimpsest_result {
    answer(|| guard::forget(pages(address, len)).map_err(not_thawed))
}

/// Notes that the process has installed a seccomp filter. From then on `palimpsest_madvise` and `palimpsest_mremap`
/// make memory calls only, `palimpsest_fork` forks plainly, and nothing thaws; nothing else is done that the filter
/// could forbid.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_confined() {
    like_libc((), guard::confined);
}

/// Returns the bytes that a call concerns: whole pages, as the kernel counts.
fn pages(address: *const c_void, len: usize) -> Range<usize> {
    let page = rustix::param::page_size();
    let end = address.addr().saturating_add(len);
    address.addr() & !(page - 1)..end.checked_next_multiple_of(page).unwrap_or(usize::MAX)
}

fn not_thawed(errno: Errno) -> Failure {
    let code = match errno {
        Errno::BUSY => PALIMPSEST_BUSY,
        Errno::NOMEM => PALIMPSEST_NO_ROOM,
        Errno::INVAL => PALIMPSEST_REFUSED,
        _ => PALIMPSEST_SYSTEM,
    };
    Failure::new(code, format_args!("frozen memory is not thawed: {errno}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a panic, which would end the program, for what an interposed function leaves.
    #[test]
    fn failures_without_a_number_of_the_kernels_are_invalid_arguments() {
        for (told, failure) in [(0, libc::EINVAL), (-1, libc::EINVAL), (4096, libc::EINVAL), (4095, 4095)] {
            set_errno(told);
            assert_eq!(last_errno().raw_os_error(), failure, "{told}");
        }
    }
}

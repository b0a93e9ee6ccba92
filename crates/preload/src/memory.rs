//! The memory functions, as the program calls them. The crate's header has the rules that they keep.
//!
//! Each does what the real one would, unless frozen memory is concerned and another answer than the kernel's is needed
//! to keep the meaning of anonymous memory: then the guard gives it.

use std::ffi::{c_int, c_long, c_uint, c_void};
use std::ops::Range;
use std::ptr;

use libc::{off_t, size_t};
use palimpsest_fork::guard::{self, Remap};

use crate::cancelling::uncancelled;
use crate::next::Next;
use crate::{core_filter, errno, huge, kernel};

type Madvise = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
type Mremap = unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Mlock = unsafe extern "C" fn(*const c_void, size_t) -> c_int;
type Mlock2 = unsafe extern "C" fn(*const c_void, size_t, c_uint) -> c_int;
type Mlockall = unsafe extern "C" fn(c_int) -> c_int;

// SAFETY: `int madvise(void *, size_t, int)`.
static MADVISE: Next<Madvise> = unsafe { Next::new(c"madvise") };
// SAFETY: `void *mremap(void *, size_t, size_t, int, ...)` with at most one more pointer, for which a variadic function
// is called like one with five parameters on the supported ISAs.
static MREMAP: Next<Mremap> = unsafe { Next::new(c"mremap") };
// SAFETY: `void *mmap(void *, size_t, int, int, int, off_t)`.
static MMAP: Next<Mmap> = unsafe { Next::new(c"mmap") };
// SAFETY: `int mlock(const void *, size_t)`.
static MLOCK: Next<Mlock> = unsafe { Next::new(c"mlock") };
// SAFETY: `int mlock2(const void *, size_t, unsigned)`.
static MLOCK2: Next<Mlock2> = unsafe { Next::new(c"mlock2") };
// SAFETY: `int mlockall(int)`.
static MLOCKALL: Next<Mlockall> = unsafe { Next::new(c"mlockall") };

/// Looks up the real functions.
pub(crate) fn resolve() {
    MADVISE.resolve();
    MREMAP.resolve();
    MMAP.resolve();
    MLOCK.resolve();
    MLOCK2.resolve();
    MLOCKALL.resolve();
}

/// `madvise(2)`: what was discarded reads as zeros.
///
/// # Safety
///
/// 1. As for the C library's function: nobody needs what is discarded.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    let place = address.expose_provenance();
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { MADVISE.or(kernel::madvise)(address, length, advice) });
    // SAFETY: 1. as this function's.
    unsafe { advise(place, length, advice, pass_on) as c_int }
}

/// `mremap(2)`: memory grows by zeros, and moves as one piece.
///
/// # Safety
///
/// 1. As for the C library's function: nobody may use the old place, or what was at the new one, afterwards.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: size_t,
    new_length: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let (address, new_address) = (old.expose_provenance(), new.expose_provenance());
    let asked = Remap { address, len: old_length, new_len: new_length, flags, new_address };
    let pass_on = || {
        // SAFETY: contract 1.
        let moved = unsafe { MREMAP.or(kernel::mremap)(old, old_length, new_length, flags, new) };
        moved.expose_provenance() as c_long
    };
    // SAFETY: 1. as this function's.
    let answer = unsafe { remap(asked, pass_on) };
    ptr::with_exposed_provenance_mut(answer as usize)
}

/// `mmap(2)`: memory mapped over frozen memory is no longer frozen.
///
/// # Safety
///
/// 1. As for the C library's function: with `MAP_FIXED` nobody may need what was there.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: 1. is contract 1.
    unsafe { make(address, length, protection, flags, descriptor, offset) }
}

/// `mmap64(2)`, the same where `long` has 64 bits.
///
/// # Safety
///
/// 1. As for [`mmap`].
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: 1. is contract 1.
    unsafe { make(address, length, protection, flags, descriptor, offset) }
}

/// Does both. Neither calls the other: within this object its name is the kernel's call.
///
/// # Safety
///
/// 1. As for [`mmap`].
unsafe fn make(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    descriptor: c_int,
    offset: off_t,
) -> *mut c_void {
    let pass_on = || {
        // SAFETY: contract 1.
        let made = unsafe { MMAP.or(kernel::mmap)(address, length, protection, flags, descriptor, offset) };
        made.expose_provenance() as c_long
    };
    let made = map(address.addr(), length, protection, flags, pass_on);
    ptr::with_exposed_provenance_mut(made as usize)
}

/// `mlock(2)`: memory that is locked is thawed first, or it would be held twice.
///
/// # Safety
///
/// 1. As for the C library's function, which only needs its arguments to be numbers.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock(address: *const c_void, length: size_t) -> c_int {
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { MLOCK.or(kernel::mlock)(address, length) });
    lock(address.addr(), length, pass_on) as c_int
}

/// `mlock2(2)`; see [`mlock`].
///
/// # Safety
///
/// 1. As for the C library's function, which only needs its arguments to be numbers.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock2(address: *const c_void, length: size_t, flags: c_uint) -> c_int {
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { MLOCK2.or(kernel::mlock2)(address, length, flags) });
    lock(address.addr(), length, pass_on) as c_int
}

/// `mlockall(2)`; see [`mlock`].
///
/// # Safety
///
/// 1. As for the C library's function, which only needs its argument to be a number.
#[inline(never)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: contract 1.
    let pass_on = || c_long::from(unsafe { MLOCKALL.or(kernel::mlockall)(flags) });
    lock_all(flags, pass_on) as c_int
}

/// Does `mremap`; `pass_on` calls the real function.
///
/// # Safety
///
/// 1. As for [`mremap`].
pub(crate) unsafe fn remap(asked: Remap, pass_on: impl FnOnce() -> c_long) -> c_long {
    core_filter::take_back();
    let before = errno::get();
    // SAFETY: 1. as this function's.
    let moved = uncancelled(|| unsafe { guard::mremap_by(asked, || told(pass_on())) });
    finish(moved.map(usize::cast_signed), before)
}

/// Does `madvise`; `pass_on` calls the real function, again if the memory was frozen meanwhile.
///
/// # Safety
///
/// 1. As for [`madvise`].
pub(crate) unsafe fn advise(address: usize, length: usize, advice: c_int, pass_on: impl Fn() -> c_long) -> c_long {
    core_filter::take_back();
    let before = errno::get();
    // SAFETY: 1. as this function's.
    let done = uncancelled(|| unsafe { guard::madvise_by(address, length, advice, || told(pass_on()).map(drop)) });
    finish(done.map(|()| 0), before)
}

/// Returns what the real function has answered.
fn told(answer: c_long) -> Result<usize, rustix::io::Errno> {
    if answer == -1 { Err(errno::failure()) } else { Ok(answer.cast_unsigned() as usize) }
}

/// Returns the answer of a C function, and leaves `errno` as that would.
fn finish(result: Result<isize, rustix::io::Errno>, before: c_int) -> c_long {
    match result {
        Ok(value) => {
            errno::set(before);
            value as c_long
        }
        Err(error) => {
            errno::set(error.raw_os_error());
            -1
        }
    }
}

/// Does `mmap`; `pass_on` calls the real function, again if that gives the same result and must.
pub(crate) fn map(
    address: usize,
    length: usize,
    protection: c_int,
    flags: c_int,
    pass_on: impl Fn() -> c_long,
) -> c_long {
    let is_replacing = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) == libc::MAP_FIXED;
    let made = if is_replacing {
        replace(pages(address, length), pass_on)
    } else {
        let made = pass_on();
        if made != -1 {
            forget(pages(made as usize, length));
        }
        made
    };
    if made != -1 {
        huge::mapped(made as usize, length, protection, flags);
    }
    made
}

/// Makes a call that maps something in place of what is at `range`, and notes it. Where memory is frozen, in one turn,
/// so that no other thread freezes in between what was mapped just now, and nothing takes the note for that. If memory
/// became frozen only during the call, it makes the call once more.
pub(crate) fn replace(range: Range<usize>, pass_on: impl Fn() -> c_long) -> c_long {
    core_filter::take_back();
    if !is_ours(range.clone()) {
        let made = pass_on();
        if made == -1 || !is_ours(range.clone()) {
            return made;
        }
    }
    let (made, told) = guard::in_turn(range.clone(), || {
        let (made, told) = (pass_on(), errno::get());
        if made != -1 {
            guard::replaced(range.clone());
        }
        (made, told)
    });
    errno::set(told);
    made
}

/// Notes that something was mapped at a range that was free.
pub(crate) fn forget(range: Range<usize>) {
    core_filter::take_back();
    if is_ours(range.clone()) {
        let before = errno::get();
        guard::replaced(range);
        errno::set(before);
    }
}

/// Whether a range may hold memory that is frozen, or will be.
pub(crate) fn is_ours(range: Range<usize>) -> bool {
    guard::touches(range.clone()) || guard::is_planned(range)
}

/// Does `mlock` and `mlock2`; `pass_on` calls the real function.
pub(crate) fn lock(address: usize, length: usize, pass_on: impl FnOnce() -> c_long) -> c_long {
    let range = pages(address, length);
    if guard::touches(range.clone()) {
        let before = errno::get();
        // Frozen memory can be locked too; it is just held twice then.
        let _ = uncancelled(|| guard::before_mlock(range.clone()));
        errno::set(before);
    }
    let done = pass_on();
    // Another thread may have frozen memory meanwhile, and noted that it is not locked. A failure may have locked it.
    guard::locked(range);
    done
}

/// Does `mlockall`; `pass_on` calls the real function.
pub(crate) fn lock_all(flags: c_int, pass_on: impl FnOnce() -> c_long) -> c_long {
    before_lock_all(flags);
    let done = pass_on();
    // As for a range. Only flags that it does not know lock nothing at all.
    let all = 0..usize::MAX;
    if (done == 0 || errno::get() != libc::EINVAL) && guard::touches(all.clone()) {
        guard::changed(all);
    }
    done
}

fn before_lock_all(flags: c_int) {
    let all = 0..usize::MAX;
    if !guard::touches(all.clone()) {
        return;
    }
    let before = errno::get();
    // MCL_FUTURE alone changes nothing that exists, and by itself forbids later freezes and repairs.
    if flags & libc::MCL_CURRENT != 0 {
        // As for a range.
        let _ = uncancelled(guard::before_mlockall);
    }
    // Memory that replaces frozen memory from now on would be locked.
    guard::changed(all);
    errno::set(before);
}

/// Returns the bytes that a call concerns: up to the end of the last page, as the kernel counts.
pub(crate) fn pages(address: usize, length: usize) -> Range<usize> {
    let page = rustix::param::page_size();
    let end = address.saturating_add(length);
    address & !(page - 1)..end.checked_next_multiple_of(page).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::calls;
    use palimpsest_sys::memory::span::Span;

    use super::*;

    #[test]
    fn ranges_end_with_their_last_page() {
        let page = rustix::param::page_size();
        assert_eq!(pages(page, 1), page..2 * page);
        assert_eq!(pages(page + 1, page), page..3 * page);
        assert_eq!(pages(page, 0), page..page);
        assert_eq!(pages(page, usize::MAX), page..usize::MAX);
    }

    #[test]
    fn errors_of_a_guard_become_errno_and_successes_leave_it() {
        errno::set(3);
        assert_eq!(finish(Ok(7), 5), 7);
        assert_eq!(errno::get(), 5);
        assert_eq!(finish(Err(rustix::io::Errno::NOMEM), 5), -1);
        assert_eq!(errno::get(), libc::ENOMEM);
    }

    #[test]
    fn before_the_start_calls_go_to_the_kernel() {
        // Nothing is started in a test, so that no real function was looked up.
        let page = rustix::param::page_size();
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: makes a mapping at a place that the kernel chooses.
        let made = unsafe { mmap64(ptr::null_mut(), 2 * page, rights, kind, -1, 0) };
        assert_ne!(made, libc::MAP_FAILED);
        // SAFETY: the first byte of the mapping.
        unsafe { made.cast::<u8>().write(9) };
        // SAFETY: the memory is ours, and its content not needed.
        assert_eq!(unsafe { madvise(made, page, libc::MADV_DONTNEED) }, 0);
        // SAFETY: the first byte of the mapping.
        assert_eq!(unsafe { made.cast::<u8>().read() }, 0);
        // SAFETY: numbers.
        assert_eq!(unsafe { mlock2(made, page, 1 << 20) }, -1);
        assert_eq!(errno::get(), libc::EINVAL);
        // SAFETY: the second page is ours and given up.
        assert_eq!(unsafe { mremap(made, 2 * page, page, 0, ptr::null_mut()) }, made);
        let rest = Span::new(made.addr(), made.addr() + page);
        // SAFETY: 1. the mapping is ours and given up.
        assert_eq!(unsafe { calls::unmap(rest) }, Ok(()));
        // SAFETY: refused, for it is not aligned.
        assert_eq!(unsafe { madvise(made.wrapping_byte_add(1), page, libc::MADV_DONTNEED) }, -1);
        assert_eq!(errno::get(), libc::EINVAL);
    }
}

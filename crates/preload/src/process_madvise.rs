//! `process_madvise` as the program calls it: what a process advises about memory of its own concerns frozen memory as
//! `madvise` does.
//!
//! About another process, the kernel takes four kinds of advice, which take nothing away and change no flags
//! (`process_madvise_remote_valid` in mm/madvise.c, Linux 6.13). Whoever may give other advice gives it about himself,
//! or about a process with the same memory. So nobody is asked whom a descriptor stands for: the kernel takes the
//! advice about no memory at all, or refuses it, as any before 6.13.
//!
//! No other definition of the function is looked for: that would cost each program's start, and hardly any has one.

use std::ffi::{c_int, c_long, c_uint};
use std::ptr;

use libc::{iovec, size_t, ssize_t};
use palimpsest_sys::memory::readable::Readable;

use crate::errno;
use crate::kernel::kernel;
use crate::memory::{advise, is_ours, pages};

/// Advice about any process.
const ABOUT_OTHERS: [c_int; 4] = [libc::MADV_COLD, libc::MADV_PAGEOUT, libc::MADV_WILLNEED, libc::MADV_COLLAPSE];

/// Most ranges in one call (`UIO_MAXIOV` in include/uapi/linux/uio.h): the kernel refuses more.
const MOST: usize = 1024;

/// `process_madvise(2)`.
///
/// # Safety
///
/// 1. As for the C library's function: nobody needs what is discarded.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn process_madvise(
    process: c_int,
    ranges: *const iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    // SAFETY: 1. is contract 1.
    unsafe { advise_all(process, ranges, count, advice, flags) as ssize_t }
}

/// Does the same; for the function `syscall`, too.
///
/// # Safety
///
/// 1. As for [`process_madvise`].
pub(crate) unsafe fn advise_all(
    process: c_int,
    ranges: *const iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> c_long {
    let number = libc::SYS_process_madvise;
    let call = |ranges: *const iovec, count| {
        let arguments = [process as usize, ranges.expose_provenance(), count, advice as usize, flags as usize, 0];
        // SAFETY: 1. is contract 1.
        unsafe { kernel(number, arguments) }
    };
    let is_plain = ABOUT_OTHERS.contains(&advice) || count == 0 || count > MOST || !is_ours(0..usize::MAX);
    if is_plain || !is_readable(ranges, count) {
        return call(ranges, count);
    }
    let before = errno::get();
    if call(ptr::null(), 0) != 0 {
        errno::set(before);
        return call(ranges, count);
    }
    let mut done = 0;
    for index in 0..count {
        // SAFETY: one of as many, which can be read (1).
        let range = unsafe { ranges.wrapping_add(index).read_unaligned() };
        let (address, length) = (range.iov_base.expose_provenance(), range.iov_len);
        let answer = if is_ours(pages(address, length)) {
            let pass_on = || if call(&raw const range, 1) < 0 { -1 } else { 0 };
            // SAFETY: 1. is contract 1.
            unsafe { advise(address, length, advice, pass_on) }
        } else {
            call(&raw const range, 1)
        };
        if answer < 0 {
            // What was done is told, and not that there was an error.
            return if done > 0 { told(done, before) } else { -1 };
        }
        done += length;
    }
    told(done, before)
}

fn told(bytes: usize, before: c_int) -> c_long {
    errno::set(before);
    bytes as c_long
}

/// Whether all of the array can be read. If not, the kernel says so.
fn is_readable(ranges: *const iovec, count: usize) -> bool {
    let mut readable = Readable::default();
    let start = ranges.addr();
    let Some(end) = start.checked_add(count * size_of::<iovec>()) else { return false };
    (start..end).step_by(size_of::<usize>()).chain([end - 1]).all(|byte| readable.has(byte))
}

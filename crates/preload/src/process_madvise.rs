//! `process_madvise` as the program calls it: what a process advises about memory of its own concerns frozen memory as
//! `madvise` does.
//!
//! About another process, the kernel takes four kinds of advice, which take nothing away and change no flags
//! (`process_madvise_remote_valid` in mm/madvise.c, Linux 6.13). Whoever may give other advice gives it about himself,
//! or about a process with the same memory. So nobody is asked whom a descriptor stands for: the kernel takes the
//! advice about no memory at all, or refuses it, as any before 6.13.
//!
//! The kernel reads all ranges before it does anything, and refuses what is malformed. So they are copied first, once
//! it has read them for a process that does not exist.
//!
//! No other definition of the function is looked for: that would cost each program's start, and hardly any has one.

use std::ffi::{c_int, c_long, c_uint};
use std::ptr;

use libc::{iovec, size_t, ssize_t};
use palimpsest_sys::memory::calls::{Commit, map, unmap};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;

use crate::errno;
use crate::kernel::kernel;
use crate::memory::{advise, is_ours};

/// Advice about any process.
const ABOUT_OTHERS: [c_int; 4] = [libc::MADV_COLD, libc::MADV_PAGEOUT, libc::MADV_WILLNEED, libc::MADV_COLLAPSE];

/// Most ranges in one call (`UIO_MAXIOV` in include/uapi/linux/uio.h): the kernel refuses more.
const MOST: usize = 1024;

/// So many are copied to the stack, which may be short.
const FEW: usize = 32;

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
    let call = |process: c_int, ranges: *const iovec, count| {
        let arguments = [process as usize, ranges.expose_provenance(), count, advice as usize, flags as usize, 0];
        // SAFETY: 1. is contract 1.
        unsafe { kernel(libc::SYS_process_madvise, arguments) }
    };
    if ABOUT_OTHERS.contains(&advice) || count == 0 || count > MOST || !is_ours(0..usize::MAX) {
        return call(process, ranges, count);
    }
    let before = errno::get();
    // Whether all can be read and is well formed, and whether the kernel takes this advice of this process.
    let is_read = call(NOBODY, ranges, count) == -1 && errno::get() == libc::EBADF;
    let is_taken = is_read && call(process, ptr::null(), 0) == 0;
    errno::set(before);
    if !is_taken {
        return call(process, ranges, count);
    }
    let call = |range: &iovec| call(process, ptr::from_ref(range), 1);
    let mut few = [iovec { iov_base: ptr::null_mut(), iov_len: 0 }; FEW];
    if let Some(copy) = few.get_mut(..count) {
        // SAFETY: as many can be read (1), at any address.
        unsafe { ranges.cast::<u8>().copy_to(copy.as_mut_ptr().cast(), size_of_val(copy)) };
        // SAFETY: 1. is contract 1.
        return unsafe { advise_each(copy, advice, call) };
    }
    let Ok(room) = map(count * size_of::<iovec>(), Permissions::READ_WRITE, Commit::Uncounted) else {
        errno::set(libc::ENOMEM);
        return -1;
    };
    let place = ptr::with_exposed_provenance_mut::<iovec>(room.start);
    // SAFETY: as many can be read (1), at any address, and there is room for them.
    unsafe { ranges.cast::<u8>().copy_to(place.cast(), count * size_of::<iovec>()) };
    // SAFETY: copied just now, and nobody else's.
    let copy = unsafe { std::slice::from_raw_parts_mut(place, count) };
    // SAFETY: 1. is contract 1.
    let answer = unsafe { advise_each(copy, advice, call) };
    let told = errno::get();
    // SAFETY: 1. mapped above, and used no more.
    let _ = unsafe { unmap(Span::new(room.start, room.end)) };
    errno::set(told);
    answer
}

/// Advises about one range after the other, as the kernel does (`vector_madvise` in mm/madvise.c): up to the first
/// error, which is told only if nothing was done before. `call` makes the kernel's call for one.
///
/// # Safety
///
/// 1. As for [`process_madvise`].
unsafe fn advise_each(ranges: &mut [iovec], advice: c_int, call: impl Fn(&iovec) -> c_long) -> c_long {
    let before = errno::get();
    let page = rustix::param::page_size();
    // As much as a call that reads or writes may concern (`MAX_RW_COUNT` in include/linux/fs.h).
    let mut left = i32::MAX as usize & !(page - 1);
    for range in ranges.iter_mut() {
        range.iov_len = range.iov_len.min(left);
        left -= range.iov_len;
    }
    let has_any = ranges.iter().any(|range| range.iov_len > 0);
    let mut done = 0;
    for (index, range) in ranges.iter().enumerate() {
        let (address, length) = (range.iov_base.expose_provenance(), range.iov_len);
        let answer = match length {
            // The kernel looks at the first one, and passes over others.
            0 if index == 0 && has_any && !address.is_multiple_of(page) => {
                errno::set(libc::EINVAL);
                -1
            }
            0 => 0,
            _ => {
                let pass_on = || call(range).min(0);
                // SAFETY: 1. is this function's.
                unsafe { advise(address, length, advice, pass_on) }
            }
        };
        if answer < 0 {
            if done > 0 {
                break;
            }
            return -1;
        }
        done += length;
    }
    errno::set(before);
    done as c_long
}

/// No process has this descriptor.
const NOBODY: c_int = -1;

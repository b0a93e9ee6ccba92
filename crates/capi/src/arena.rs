//! The process's one arena.
//!
//! The functions follow the C library's: on failure they return a null pointer with `errno` `ENOMEM`, or what the
//! header says; `ENOTRECOVERABLE` after a panic.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use palimpsest_fork::arena::{Arena, RefreezeError};

use crate::result::{like_libc, optional, set_errno, wanted};
use crate::versioned::{self, Versioned};

static ARENA: Arena = Arena::new();

/// Alignment of `malloc` on the supported machines: that of `max_align_t`.
const ALIGN: usize = 16;

/// What `palimpsest_arena_stats` fills in. New fields are added at the end; `size` tells which there are.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Stats {
    /// Bytes of this structure, set by the caller.
    pub size: usize,
    /// Allocated blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes that the next freeze freezes without copying.
    pub shared: usize,
    /// Bytes that are frozen.
    pub frozen: usize,
    /// Bytes that cannot be frozen without copying.
    pub anonymous: usize,
    /// Bytes of free runs.
    pub free: usize,
    /// Mappings, approximately.
    pub segments: usize,
    /// Error number with which the last memory file was refused, or 0.
    pub refused: c_int,
    /// 0.
    pub reserved: c_int,
    /// Bytes of the longest free run.
    pub longest_free: usize,
    /// Freezes that froze something, including those by forks.
    pub freezes: usize,
    /// Files that could not be sealed: something, probably a device, still held their pages, and may write to frozen
    /// memory.
    pub unsealed: usize,
    /// Bytes of frozen memory that a fork has left mapped a second time: calls that take or give back memory unmap it,
    /// 2 MiB each, and trim or freeze all.
    pub aside: usize,
}

const _: () = assert!(size_of::<Stats>() == size_of::<([usize; 12], [c_int; 2])>());

// SAFETY: 1. numbers, of which the first is a `usize`.
unsafe impl Versioned for Stats {}

fn given(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        set_errno(libc::ENOMEM);
    }
    block.cast()
}

/// `malloc` from this process's arena: an allocator whose page tables a fork need not copy. Null and `ENOMEM` without
/// memory; a size of 0 gets a block of its own.
///
/// A block belongs to the caller until it is passed to `palimpsest_arena_free` or `_realloc`. Do not mix up blocks of
/// the arena and of the C library's `malloc`: the arena ends the process when it is given a pointer that it did not
/// hand out. A child of `fork()` may go on using the arena, and has blocks of its own from then on. The C library's
/// `fork()` freezes by itself; a raw clone system call does not, see `palimpsest_arena_freeze`.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_arena_malloc(size: usize) -> *mut c_void {
    like_libc(ptr::null_mut(), || given(ARENA.allocate(size, ALIGN)))
}

/// `calloc`.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_arena_calloc(count: usize, size: usize) -> *mut c_void {
    let zeroed = || count.checked_mul(size).map_or(ptr::null_mut(), |bytes| ARENA.allocate_zeroed(bytes, ALIGN));
    like_libc(ptr::null_mut(), || given(zeroed()))
}

/// `realloc`; a size of 0 counts as 1.
///
/// # Safety
///
/// 1. `block` is null or a block of this arena that is not freed, and is not used again unless null is returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_arena_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    like_libc(ptr::null_mut(), || match NonNull::new(block.cast::<u8>()) {
        None => given(ARENA.allocate(size, ALIGN)),
        // SAFETY: 1. is contract 1. 2. A block with a bigger alignment loses it by `realloc`, as in C.
        Some(block) => given(unsafe { ARENA.resize(block, size, ALIGN) }),
    })
}

/// `free`.
///
/// # Safety
///
/// 1. `block` is null or a block of this arena that is not freed, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_arena_free(block: *mut c_void) {
    like_libc((), || {
        if let Some(block) = NonNull::new(block.cast::<u8>()) {
            // SAFETY: contract 1.
            unsafe { ARENA.release(block) };
        }
    });
}

/// `aligned_alloc`: null and `EINVAL` unless `align` is a power of two.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_arena_aligned_alloc(align: usize, size: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    like_libc(ptr::null_mut(), || given(ARENA.allocate(size, align)))
}

/// `malloc_usable_size`: 0 for null.
///
/// # Safety
///
/// 1. `block` is null or a block of this arena that is not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_arena_usable_size(block: *mut c_void) -> usize {
    // SAFETY: contract 1.
    like_libc(0, || NonNull::new(block.cast::<u8>()).map_or(0, |block| unsafe { ARENA.usable_size(block) }))
}

/// Freezes what was allocated so far; other threads may go on. Returns 0, or -1 with `errno`: then some memory stays
/// shared, and is missing in forked children. Call it before a raw clone system call.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_arena_freeze() -> c_int {
    like_libc(-1, || match ARENA.freeze() {
        Ok(_) => 0,
        Err(error) => {
            set_errno(error.source.raw_os_error().unwrap_or(libc::ENOMEM));
            -1
        }
    })
}

/// Freezes, and freezes again what this process has written to since: a written page makes each fork copy the page
/// tables around it, about 15 µs for each MiB. Copies about 0.4 ms for each MiB, and separates what was written from
/// what was not, so that the next call copies only what was written again. For servers: between two forks, while nobody
/// waits. `copied` gets the bytes that were copied, and may be null. Returns 0, or -1 with `errno`: what was done until
/// then stays. `EINVAL` if `copied` is misaligned, then nothing is done; `ENOTSUP` if the kernel does not tell which
/// pages were written.
///
/// # Safety
///
/// 1. `copied` is null or valid for writing, and is not in a block of the arena.
/// 2. Nobody writes to blocks of the arena, or allocates or frees any, until the call returns: no other thread, no
///    signal handler, no device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_arena_refreeze(copied: *mut usize) -> c_int {
    like_libc(-1, || {
        let Ok(copied) = optional(copied) else {
            set_errno(libc::EINVAL);
            return -1;
        };
        // SAFETY: 1. is contract 2.
        match unsafe { ARENA.refreeze() } {
            Ok(done) => {
                if !copied.is_null() {
                    // SAFETY: contract 1, and aligned.
                    unsafe { copied.write(done.copied) };
                }
                0
            }
            Err(RefreezeError::Pagemap(_)) => {
                set_errno(libc::ENOTSUP);
                -1
            }
            Err(RefreezeError::Copy { source, .. }) => {
                set_errno(source.raw_os_error().unwrap_or(libc::ENOMEM));
                -1
            }
        }
    })
}

/// Gives memory of free blocks back to the system. Returns how many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn palimpsest_arena_trim() -> usize {
    like_libc(0, || ARENA.trim())
}

/// Fills in as much of `stats` as its field `size` says it has. Returns 0, or -1 with `EINVAL` if the pointer is null
/// or misaligned, or `size` does not even cover the field itself.
///
/// # Safety
///
/// 1. `stats` is null, or valid for reading its first field and for writing as many bytes as that says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn palimpsest_arena_stats(stats: *mut Stats) -> c_int {
    like_libc(-1, || {
        let found = ARENA.stats();
        let told = Stats {
            size: 0,
            blocks: found.in_use.blocks,
            bytes: found.in_use.bytes,
            shared: found.memory.shared,
            frozen: found.memory.frozen,
            anonymous: found.memory.anonymous,
            free: found.free,
            segments: found.segments,
            refused: found.refused.unwrap_or(0),
            reserved: 0,
            longest_free: found.longest_free,
            freezes: found.freezes,
            unsealed: found.unsealed,
            aside: found.aside,
        };
        // SAFETY: 1. is contract 1, and not null.
        let filled = wanted(stats).and_then(|stats| unsafe { versioned::write(stats, told) });
        if filled.is_err() {
            set_errno(libc::EINVAL);
            return -1;
        }
        0
    })
}

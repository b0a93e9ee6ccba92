//! The system calls of a program, by all their names. The mutant maps by an instruction of its own, which no object
//! sees.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;

use libc::{off_t, size_t};
use rustix::mm::{MapFlags, ProtFlags};

use crate::interpreter::Content;
use crate::names::{self, Mmap, madvise_by_number, next, pointer};
use crate::rights;
use crate::world::answer;
pub(crate) use crate::world::{Answer, World};

type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
type Mlock = unsafe extern "C" fn(*const c_void, size_t) -> c_int;

numbered! {
    munmap_by_number: SYS_munmap(place: *mut c_void, len: size_t) -> c_int;
    mlock_by_number: SYS_mlock(place: *const c_void, len: size_t) -> c_int;
}

/// # Safety
///
/// 1. As for `mlock`.
unsafe extern "C" fn mlock_with_flags(place: *const c_void, len: size_t) -> c_int {
    // SAFETY: contract 1.
    unsafe { libc::mlock2(place, len, 0) }
}

/// Maps without the C library, by which the object would hear of it.
///
/// # Safety
///
/// 1. As for `mmap`.
unsafe extern "C" fn mmap_by_instruction(
    place: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: off_t,
) -> *mut c_void {
    let protection = ProtFlags::from_bits_retain(protection.cast_unsigned());
    let kind = MapFlags::from_bits_retain(flags.cast_unsigned());
    let made = if file < 0 {
        let kind = kind.difference(MapFlags::from_bits_retain(libc::MAP_ANONYMOUS.cast_unsigned()));
        // SAFETY: contract 1.
        unsafe { rustix::mm::mmap_anonymous(place, len, protection, kind) }
    } else {
        // SAFETY: the interpreter's own file, which is open.
        let file = unsafe { BorrowedFd::borrow_raw(file) };
        // SAFETY: contract 1.
        unsafe { rustix::mm::mmap(place, len, protection, kind, file, offset.cast_unsigned()) }
    };
    made.unwrap_or(libc::MAP_FAILED)
}

/// Programs have one thread.
pub(crate) const THREADS: &str = "refuse";

impl World {
    pub(crate) fn map(self, range: Range<usize>, prot: i32, content: Content) -> Answer {
        let wide: Mmap = if self == Self::Mutant { mmap_by_instruction } else { libc::mmap64 };
        names::map(range, prot, content.arguments(), wide)
    }

    pub(crate) fn unmap(self, range: Range<usize>) -> Answer {
        let munmap: Munmap = next([libc::munmap, munmap_by_number]);
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { munmap(pointer(range.start), range.len()) } as isize)
    }

    pub(crate) fn protect(self, range: Range<usize>, prot: i32) -> Answer {
        rights::protect(range, prot)
    }

    /// Calls `mremap`: to `to` if that is given, otherwise in place.
    pub(crate) fn remap(self, from: Range<usize>, len: usize, to: Option<usize>) -> Answer {
        names::remap(from, len, to)
    }

    pub(crate) fn advise(self, range: Range<usize>, advice: i32) -> Answer {
        names::advise(range, advice, madvise_by_number)
    }

    pub(crate) fn lock(self, range: Range<usize>) -> Answer {
        let mlock: Mlock = next([libc::mlock, mlock_with_flags, mlock_by_number]);
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { mlock(pointer(range.start), range.len()) } as isize)
    }

    pub(crate) fn unlock(self, range: Range<usize>) -> Answer {
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::munlock(pointer(range.start), range.len()) } as isize)
    }

    /// Forks. Returns the child's number, and 0 in the child.
    pub(crate) fn fork(self) -> i32 {
        let child = names::fork();
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        child
    }

    /// Makes a child that ends at once: a fork for which the object freezes.
    pub(crate) fn freeze(self) {
        names::fork_and_end();
        if self.is_served() {
            names::say_what_is_frozen();
        }
    }

    /// Waits, which the object takes for a slice.
    pub(crate) fn slice(self) {
        if matches!(self, Self::Sliced(_) | Self::Deputed(_)) {
            names::wait();
        }
    }

    /// Nothing: the object does what there is to do.
    pub(crate) fn before_exec(self) {}
}

//! The system calls of a program, by every name that the C library has for each, in turns. The mutant maps by an
//! instruction of its own, which no object sees.

use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libc::{off_t, pid_t, size_t};
use palimpsest_sys::pages::maps::Maps;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::interpreter::Content;
use crate::run;
use crate::world::answer;
pub(crate) use crate::world::{Answer, World};

type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Munmap = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
type Mprotect = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
type Mremap = unsafe fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
type Madvise = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
type Mlock = unsafe extern "C" fn(*const c_void, size_t) -> c_int;
type Fork = unsafe extern "C" fn() -> pid_t;

unsafe extern "C" {
    /// `fork(2)` without the handlers of the program, since glibc 2.34.
    fn _Fork() -> pid_t;
    /// `pkey_mprotect(2)`.
    fn pkey_mprotect(address: *mut c_void, length: size_t, protection: c_int, key: c_int) -> c_int;
}

/// Which call of the program the next is, in both runs.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns one of a function's names, each in its turn.
fn next<F: Copy, const NAMES: usize>(names: [F; NAMES]) -> F {
    names[COUNT.fetch_add(1, Ordering::Relaxed) % NAMES]
}

fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Makes a system call by number, as `syscall(2)` does.
macro_rules! numbered {
    ($($name:ident: $number:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        /// # Safety
        ///
        /// 1. As for the C library's function.
        unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
            // SAFETY: contract 1.
            let answer = unsafe { libc::syscall(libc::$number $(, $argument as c_long)*) };
            answer as $answer
        }
    )*};
}

numbered! {
    mmap_by_number: SYS_mmap(
        place: *mut c_void, len: size_t, protection: c_int, flags: c_int, file: c_int, offset: off_t
    ) -> *mut c_void;
    munmap_by_number: SYS_munmap(place: *mut c_void, len: size_t) -> c_int;
    mprotect_by_number: SYS_mprotect(place: *mut c_void, len: size_t, protection: c_int) -> c_int;
    madvise_by_number: SYS_madvise(place: *mut c_void, len: size_t, advice: c_int) -> c_int;
    mlock_by_number: SYS_mlock(place: *const c_void, len: size_t) -> c_int;
}

/// # Safety
///
/// 1. As for `mremap`.
unsafe fn mremap_by_name(
    from: *mut c_void,
    len: size_t,
    new_len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: contract 1.
    unsafe { libc::mremap(from, len, new_len, flags, to) }
}

/// # Safety
///
/// 1. As for `mremap`.
unsafe fn mremap_by_number(
    from: *mut c_void,
    len: size_t,
    new_len: size_t,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: contract 1.
    let at = unsafe { libc::syscall(libc::SYS_mremap, from, len, new_len, c_long::from(flags), to) };
    pointer(at as usize)
}

/// # Safety
///
/// 1. As for `mprotect`.
unsafe extern "C" fn mprotect_with_key(place: *mut c_void, len: size_t, protection: c_int) -> c_int {
    // SAFETY: contract 1; the key that all memory has.
    unsafe { pkey_mprotect(place, len, protection, -1) }
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

/// Forks by the system call alone.
///
/// # Safety
///
/// 1. As for `fork`; and the child uses nothing of the C library's that knows threads.
unsafe extern "C" fn clone_by_number() -> pid_t {
    let signal = c_long::from(libc::SIGCHLD);
    // SAFETY: contract 1.
    unsafe { libc::syscall(libc::SYS_clone, signal, 0_i64, 0_i64, 0_i64, 0_i64) as pid_t }
}

impl World {
    pub(crate) fn map(self, range: Range<usize>, prot: i32, content: Content) -> Answer {
        let (flags, file) = content.arguments();
        let wide: Mmap = if self == Self::Mutant { mmap_by_instruction } else { libc::mmap64 };
        let mmap: Mmap = next([libc::mmap, wide, mmap_by_number]);
        // SAFETY: the range is in the region of the programs, of which nothing of Rust's is a part.
        let at = unsafe { mmap(pointer(range.start), range.len(), prot, flags, file, 0) };
        if at == libc::MAP_FAILED { answer(-1) } else { 0 }
    }

    pub(crate) fn unmap(self, range: Range<usize>) -> Answer {
        let munmap: Munmap = next([libc::munmap, munmap_by_number]);
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { munmap(pointer(range.start), range.len()) })
    }

    pub(crate) fn protect(self, range: Range<usize>, prot: i32) -> Answer {
        let mprotect: Mprotect = next([libc::mprotect, mprotect_with_key, mprotect_by_number]);
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { mprotect(pointer(range.start), range.len(), prot) })
    }

    /// Calls `mremap`: to `to` if that is given, otherwise in place.
    pub(crate) fn remap(self, from: Range<usize>, len: usize, to: Option<usize>) -> Answer {
        let flags = if to.is_some() { libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED } else { 0 };
        let mremap: Mremap = next([mremap_by_name, mremap_by_number]);
        // SAFETY: both ranges are in the region of the programs.
        let at = unsafe { mremap(pointer(from.start), from.len(), len, flags, pointer(to.unwrap_or(0))) };
        if at == libc::MAP_FAILED { answer(-1) } else { 0 }
    }

    pub(crate) fn advise(self, range: Range<usize>, advice: i32) -> Answer {
        let madvise: Madvise = next([libc::madvise, madvise_by_number]);
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { madvise(pointer(range.start), range.len(), advice) })
    }

    pub(crate) fn lock(self, range: Range<usize>) -> Answer {
        let mlock: Mlock = next([libc::mlock, mlock_with_flags, mlock_by_number]);
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { mlock(pointer(range.start), range.len()) })
    }

    pub(crate) fn unlock(self, range: Range<usize>) -> Answer {
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::munlock(pointer(range.start), range.len()) })
    }

    /// Forks. Returns the child's number, and 0 in the child.
    pub(crate) fn fork(self) -> i32 {
        let fork: Fork = next([libc::fork, _Fork, clone_by_number]);
        // SAFETY: the interpreter has one thread.
        let child = unsafe { fork() };
        assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        child
    }

    /// Makes a child that ends at once: a fork for which the object freezes.
    pub(crate) fn freeze(self) {
        // SAFETY: the interpreter has one thread.
        let child = unsafe { libc::fork() };
        let Some(child) = Pid::from_raw(child) else {
            // SAFETY: ends this process without the rest of the test harness.
            unsafe { libc::_exit(0) }
        };
        waitpid(Some(child), WaitOptions::empty()).expect("a child");
        if self.is_served() {
            let maps = Maps::read().expect("/proc is mounted");
            let frozen = maps.overlapping(0..usize::MAX).filter(|entry| {
                let path = entry.path.as_ref().and_then(|path| path.to_str());
                path.is_some_and(|path| path.starts_with("/memfd:palimpsest-frozen"))
            });
            run::say(&format!("#frozen {}", frozen.map(|entry| entry.range().len()).sum::<usize>()));
        }
    }

    /// Waits, which the object takes for a slice.
    pub(crate) fn slice(self) {
        if matches!(self, Self::Sliced(_) | Self::Deputed(_)) {
            std::thread::sleep(Duration::from_nanos(1));
        }
    }

    /// Nothing: the object does what there is to do.
    pub(crate) fn before_exec(self) {}
}

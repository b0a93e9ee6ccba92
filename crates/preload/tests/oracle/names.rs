//! Calls on memory by every name that the C library has for each, and by number, in turns.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::ops::Range;
use std::ptr;
use std::time::Duration;

use libc::{off_t, pid_t, size_t};
use palimpsest_sys::pages::maps::Maps;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

use crate::run;
use crate::world::{Answer, answer};

pub(crate) type Mmap = unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
type Mremap = unsafe fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
pub(crate) type Madvise = unsafe extern "C" fn(*mut c_void, size_t, c_int) -> c_int;
type Fork = unsafe extern "C" fn() -> pid_t;

unsafe extern "C" {
    /// `fork(2)` without the handlers of the program, since glibc 2.34.
    fn _Fork() -> pid_t;
}

thread_local! {
    /// Which call of the thread the next is, in both runs.
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Returns one of a function's names, each in its turn.
pub(crate) fn next<F: Copy, const NAMES: usize>(names: [F; NAMES]) -> F {
    names[COUNT.replace(COUNT.get() + 1) % NAMES]
}

/// Returns memory of the programs as a pointer.
pub(crate) fn pointer(address: usize) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address)
}

/// Makes a system call by number, as `syscall(2)` does.
macro_rules! numbered {
    ($($name:ident: $number:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {$(
        /// # Safety
        ///
        /// 1. As for the C library's function.
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $answer {
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
    madvise_by_number: SYS_madvise(place: *mut c_void, len: size_t, advice: c_int) -> c_int;
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

/// Calls `mmap`; `wide` is its name for large files.
pub(crate) fn map(range: Range<usize>, rights: i32, (flags, file): (i32, i32), wide: Mmap) -> Answer {
    let mmap: Mmap = next([libc::mmap, wide, mmap_by_number]);
    // SAFETY: the range is in the region of the programs, of which nothing of Rust's is a part.
    let at = unsafe { mmap(pointer(range.start), range.len(), rights, flags, file, 0) };
    if at == libc::MAP_FAILED { answer(-1) } else { 0 }
}

/// Calls `mremap`: to `to` if that is given, otherwise in place.
pub(crate) fn remap(from: Range<usize>, len: usize, to: Option<usize>) -> Answer {
    let flags = if to.is_some() { libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED } else { 0 };
    let mremap: Mremap = next([mremap_by_name, mremap_by_number]);
    // SAFETY: both ranges are in the region of the programs.
    let at = unsafe { mremap(pointer(from.start), from.len(), len, flags, pointer(to.unwrap_or(0))) };
    if at == libc::MAP_FAILED { answer(-1) } else { 0 }
}

/// `PIDFD_SELF_THREAD` of include/uapi/linux/pidfd.h (Linux 6.14).
const SELF: c_int = -10_000;

/// Advises as for any process, about this one, which Linux 6.13 allows.
///
/// # Safety
///
/// 1. As for `madvise`.
unsafe extern "C" fn advise_as_a_process(place: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let range = libc::iovec { iov_base: place, iov_len: len };
    // SAFETY: contract 1; the array outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_process_madvise, SELF, &raw const range, 1_usize, advice, 0) };
    // What it tells is how many bytes were advised about.
    done.min(0) as c_int
}

/// Calls `madvise`; `number` is one of its names.
pub(crate) fn advise(range: Range<usize>, advice: i32, number: Madvise) -> Answer {
    let madvise: Madvise = next([libc::madvise, number, advise_as_a_process]);
    // SAFETY: the range is in the region of the programs.
    answer(unsafe { madvise(pointer(range.start), range.len(), advice) } as isize)
}

/// Forks. Returns the child's number, and 0 in the child, which does what may be done beside other threads.
pub(crate) fn fork() -> i32 {
    let fork: Fork = next([libc::fork, _Fork, clone_by_number]);
    // SAFETY: the child keeps to that.
    unsafe { fork() }
}

/// Makes a child that ends at once: a fork for which the object freezes. A program may have made forks impossible.
pub(crate) fn fork_and_end() {
    // SAFETY: the child ends.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return;
    }
    let Some(child) = Pid::from_raw(child) else {
        // SAFETY: ends this process without the rest of the test harness.
        unsafe { libc::_exit(0) }
    };
    while waitpid(Some(child), WaitOptions::empty()).is_err_and(|errno| errno == Errno::INTR) {}
}

/// Says how much is frozen now, unless the program has forbidden to look.
pub(crate) fn say_what_is_frozen() {
    let Ok(maps) = Maps::read() else { return };
    let frozen = maps.overlapping(0..usize::MAX).filter(|entry| {
        let path = entry.path.as_ref().and_then(|path| path.to_str());
        path.is_some_and(|path| path.starts_with("/memfd:palimpsest-frozen"))
    });
    run::say(&format!("#frozen {}", frozen.map(|entry| entry.range().len()).sum::<usize>()));
}

/// Waits, which the object takes for a slice.
pub(crate) fn wait() {
    std::thread::sleep(Duration::from_nanos(1));
}

//! The calls of a program, by all their names. Children of the mutant keep a descriptor of the root folder, as if the
//! object had kept one for itself.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::Advice;

use crate::names::{self, fork_and_end, madvise_by_number, pointer, say_what_is_frozen};
pub(crate) use crate::world::{Answer, World, answer};

/// Programs may have a second thread.
pub(crate) const THREADS: &str = "stop";

unsafe extern "C" {
    /// Since glibc 2.32.
    static __libc_single_threaded: u8;
}

/// Whether this process has a filter, which may forbid what a look at its memory needs.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

/// Memory that a ring can pin.
pub(crate) struct Block(Option<NonNull<u8>>);

impl Block {
    pub(crate) fn new(_world: World) -> Self {
        Self(None)
    }

    /// Returns where it is, once it was made.
    pub(crate) fn made(&self) -> Option<NonNull<u8>> {
        self.0
    }

    /// Returns where it is; makes it if there is none.
    pub(crate) fn make(&mut self, len: usize) -> NonNull<u8> {
        *self.0.get_or_insert_with(|| {
            let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: makes a mapping at a place that the kernel chooses.
            let made = unsafe { libc::mmap(std::ptr::null_mut(), len, rights, kind, -1, 0) };
            assert_ne!(made, libc::MAP_FAILED, "memory for a block");
            let start = NonNull::new(made.cast::<u8>()).expect("memory for a block");
            // SAFETY: the block is that long and new.
            unsafe { start.write_bytes(0x5a, len) };
            start
        })
    }

    /// It has none.
    pub(crate) fn needs_file(&self) -> bool {
        false
    }

    /// Nothing: the object freezes all memory.
    pub(crate) fn freeze(&mut self, _world: World) {}

    pub(crate) fn is_forked(&mut self) {}
}

/// Maps private anonymous memory at `range`, where nothing is.
pub(crate) fn map(range: Range<usize>) -> Answer {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    names::map(range, libc::PROT_READ | libc::PROT_WRITE, (flags, -1), libc::mmap64)
}

/// Overwrites memory so that nobody finds what was there. Returns whether that is so: under a filter, which may forbid
/// what that takes, the bytes of the freeze go in children of `fork` alone.
pub(crate) fn erase(_world: World, start: usize, len: usize) -> bool {
    // SAFETY: the range is memory of the program.
    unsafe { libc::explicit_bzero(pointer(start), len) };
    !HAS_FILTER.load(Ordering::Relaxed)
}

pub(crate) fn discard(_world: World, range: Range<usize>) -> Answer {
    names::advise(range, libc::MADV_DONTNEED, madvise_by_number)
}

/// Discards past the object, as an attacker would.
pub(crate) fn discard_raw(range: Range<usize>) -> Answer {
    // SAFETY: the range is memory of the program.
    let given = unsafe { rustix::mm::madvise(pointer(range.start), range.len(), Advice::LinuxDontNeed) };
    given.map_or_else(|errno| -(errno.raw_os_error() as Answer), |()| 0)
}

/// `mremap` in place.
pub(crate) fn resize(_world: World, range: Range<usize>, len: usize) -> Answer {
    names::remap(range, len, None)
}

/// Forks. Returns the child's number, 0 in the child, or the error.
pub(crate) fn fork(world: World) -> Answer {
    let kept = if world == World::Mutant {
        // SAFETY: a path that ends with zero.
        unsafe { libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
    } else {
        -1
    };
    // SAFETY: a byte that the C library writes whole. With several threads its locks, and what it knows of them, come
    // right in children of `fork` alone, which use both.
    let is_alone = unsafe { (&raw const __libc_single_threaded).read_volatile() } != 0;
    // SAFETY: the child does nothing that another thread of the parent could have left undone.
    let child = if is_alone { names::fork() } else { unsafe { libc::fork() } };
    let child = answer(child as isize);
    if child != 0 && kept >= 0 {
        // SAFETY: it was opened above.
        unsafe { libc::close(kept) };
    }
    child
}

/// Installs nothing: the object sees the call that does.
pub(crate) fn confine(_world: World) {
    HAS_FILTER.store(true, Ordering::Relaxed);
}

pub(crate) fn before_exec(_world: World) {}

/// Waits, which the object takes for a slice.
pub(crate) fn slice(world: World) {
    if matches!(world, World::Sliced(_) | World::Deputed(_)) {
        names::wait();
    }
}

/// Makes a child that ends at once: a fork for which the object freezes.
pub(crate) fn freeze(world: World) {
    fork_and_end();
    if world.is_served() && !HAS_FILTER.load(Ordering::Relaxed) {
        say_what_is_frozen();
    }
}

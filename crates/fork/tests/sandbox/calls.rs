//! The calls of a program that the library answers for: plain, or as the preload object makes them. Children of the
//! mutant keep a descriptor of the root folder, as if the library had kept one for itself.

use std::error::Error as _;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_fork::guard::{self, Remap};
use palimpsest_fork::{Forked, Options, OtherThreads};

use crate::run;
use crate::world::refused;
pub(crate) use crate::world::{Answer, World, answer};

/// Whether this process has a filter.
static HAS_FILTER: AtomicBool = AtomicBool::new(false);

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

/// Maps private anonymous memory at `range`, where nothing is.
pub(crate) fn map(range: Range<usize>) -> Answer {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: nothing is replaced.
    let made =
        unsafe { libc::mmap(pointer(range.start), range.len(), rights, kind | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    if made == libc::MAP_FAILED { answer(-1) } else { 0 }
}

/// Overwrites memory so that nobody finds what was there.
pub(crate) fn erase(world: World, start: usize, len: usize) {
    // SAFETY: the range is memory of the program.
    unsafe { libc::explicit_bzero(pointer(start), len) };
    if world != World::Plain
        && let Err(errno) = palimpsest_fork::forget(start..start + len)
    {
        run::say(&format!("#not forgotten: {errno}"));
    }
}

pub(crate) fn discard(world: World, range: Range<usize>) -> Answer {
    if world != World::Plain {
        // SAFETY: 1. the range is memory of the program.
        return unsafe { guard::madvise(range.start, range.len(), libc::MADV_DONTNEED) }.map_or_else(refused, |()| 0);
    }
    discard_raw(range)
}

/// Discards past every guard, as an attacker would.
pub(crate) fn discard_raw(range: Range<usize>) -> Answer {
    // SAFETY: the range is memory of the program.
    answer(unsafe { libc::madvise(pointer(range.start), range.len(), libc::MADV_DONTNEED) } as isize)
}

/// `mremap` in place.
pub(crate) fn resize(world: World, range: Range<usize>, len: usize) -> Answer {
    if world != World::Plain {
        let asked = Remap { address: range.start, len: range.len(), new_len: len, flags: 0, new_address: 0 };
        // SAFETY: 1. the range is memory of the program, and nothing is behind it.
        return unsafe { guard::mremap(asked) }.map_or_else(refused, |_| 0);
    }
    // SAFETY: the range is memory of the program, and nothing is behind it.
    let at = unsafe { libc::mremap(pointer(range.start), range.len(), len, 0) };
    if at == libc::MAP_FAILED { answer(-1) } else { 0 }
}

/// Forks. Returns the child's number, 0 in the child, or the error.
pub(crate) fn fork(world: World) -> Answer {
    let kept = if world == World::Mutant {
        // SAFETY: a path that ends with zero.
        unsafe { libc::open(c"/".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }
    } else {
        -1
    };
    let child = if world == World::Plain {
        // SAFETY: the child does nothing that another thread of the parent could have left undone.
        answer(unsafe { libc::fork() } as isize)
    } else {
        // SAFETY: 1. as above; 2. see `freeze`.
        match unsafe { palimpsest_fork::fork() } {
            Ok(Forked::Parent(child)) => child.as_raw_nonzero().get() as Answer,
            Ok(Forked::Child) => 0,
            Err(error) => -(error.0.raw_os_error() as Answer),
        }
    };
    if child != 0 && kept >= 0 {
        // SAFETY: it was opened above.
        unsafe { libc::close(kept) };
    }
    child
}

/// Installs the program's filter, of which the preload object tells the library.
pub(crate) fn confine(world: World) {
    if world.budget().is_some() {
        palimpsest_fork::dismiss_deputy();
        HAS_FILTER.store(true, Ordering::Relaxed);
        guard::confined();
    }
}

/// Takes a slice, as the preload object does at a wait, unless the program has a filter.
pub(crate) fn slice(world: World) {
    if !HAS_FILTER.load(Ordering::Relaxed) {
        world.takes_slice();
    }
}

pub(crate) fn freeze(world: World) {
    if world == World::Plain {
        return;
    }
    let options = world.wishes(Options::new().other_threads(OtherThreads::Stop));
    // SAFETY: 1. the calls above go through the guards, except those that try what an attacker could; 2. buffers of
    // rings are in the arena; 3. nothing else writes to this process; 4. that stays so.
    match unsafe { palimpsest_fork::freeze(&options) } {
        Ok(report) => run::say(&format!("#frozen {}", report.frozen_bytes())),
        Err(error) => {
            let cause = error.source().map(ToString::to_string);
            run::say(&format!("#not frozen: {error}: {cause:?}"));
        }
    }
}

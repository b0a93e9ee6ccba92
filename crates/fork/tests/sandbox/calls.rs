//! The calls of a program that the library answers for: plain, or as the preload object makes them. Children of the
//! mutant keep a descriptor of the root folder, as if the library had kept one for itself.

use std::error::Error as _;
use std::ffi::c_void;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_fork::arena::{Arena, Backing};
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

/// Memory that a ring can pin: a block of an arena.
pub(crate) struct Block {
    arena: Arena,
    start: Option<NonNull<u8>>,
    needs_file: bool,
}

impl Block {
    /// Makes an arena for it.
    pub(crate) fn new(world: World) -> Self {
        let backing = if world == World::Plain { Backing::Anonymous } else { Backing::Memfd };
        Self { arena: Arena::with_backing(backing), start: None, needs_file: false }
    }

    /// Returns where it is, once it was made.
    pub(crate) fn made(&self) -> Option<NonNull<u8>> {
        self.start
    }

    /// Returns where it is; makes it if there is none.
    pub(crate) fn make(&mut self, len: usize) -> NonNull<u8> {
        let arena = &self.arena;
        *self.start.get_or_insert_with(|| {
            let start = NonNull::new(arena.allocate(len, 4096)).expect("memory for a block");
            // SAFETY: the block is that long and new.
            unsafe { start.write_bytes(0x5a, len) };
            self.needs_file = true;
            start
        })
    }

    /// Whether the arena still needs its file, which a program must not close.
    pub(crate) fn needs_file(&self) -> bool {
        self.needs_file
    }

    /// Freezes the arena.
    pub(crate) fn freeze(&mut self, world: World) {
        self.needs_file = false;
        if world != World::Plain
            && let Err(error) = self.arena.freeze()
        {
            run::say(&format!("#arena: {error}"));
        }
    }

    /// Notes a fork: the arena's handler freezes it.
    pub(crate) fn is_forked(&mut self) {
        self.needs_file = false;
    }
}

/// Maps private anonymous memory at `range`, where nothing is.
pub(crate) fn map(range: Range<usize>) -> Answer {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: nothing is replaced.
    let made =
        unsafe { libc::mmap(pointer(range.start), range.len(), rights, kind | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    if made == libc::MAP_FAILED { answer(-1) } else { 0 }
}

/// Overwrites memory so that nobody finds what was there. Returns whether that is so.
pub(crate) fn erase(world: World, start: usize, len: usize) -> bool {
    // SAFETY: the range is memory of the program.
    unsafe { libc::explicit_bzero(pointer(start), len) };
    if world != World::Plain
        && let Err(errno) = palimpsest_fork::forget(start..start + len)
    {
        run::say(&format!("#not forgotten: {errno}"));
    }
    true
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

/// Does what the preload object does before another program is executed.
pub(crate) fn before_exec(world: World) {
    if world != World::Plain {
        palimpsest_fork::dismiss_deputy();
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

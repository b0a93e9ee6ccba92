//! The calls of a program that the library answers for: plain, or as the preload object makes them; and what slices do
//! meanwhile.

use std::error::Error as _;
use std::ffi::c_void;
use std::ops::Range;

use palimpsest_fork::guard::{self, Remap};
use palimpsest_fork::{Forked, Measure, Options, OtherThreads, Stage, progress};

use crate::run;
pub(crate) use crate::world::World;
use crate::world::{Answer, answer, refused};

/// How often a program is frozen: what threads write meanwhile is frozen, gathered or repaired again.
const MOST_FREEZES: usize = 6;

pub(crate) fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

impl World {
    /// Maps private anonymous memory, over whatever is there.
    pub(crate) fn map(self, range: Range<usize>) -> Answer {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the range is in the region of the programs, of which nothing of Rust's is a part.
        let at = unsafe { libc::mmap(pointer(range.start), range.len(), rights, kind | libc::MAP_FIXED, -1, 0) };
        if at == libc::MAP_FAILED {
            return answer(-1);
        }
        if self != Self::Plain {
            guard::replaced(range);
        }
        0
    }

    pub(crate) fn protect(self, range: Range<usize>, rights: i32) -> Answer {
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::mprotect(pointer(range.start), range.len(), rights) } as isize)
    }

    /// Moves memory to a place where nothing is.
    pub(crate) fn remap(self, from: Range<usize>, to: usize) -> Answer {
        let (address, len, flags) = (from.start, from.len(), libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
        if self != Self::Plain {
            let remap = Remap { address, len, new_len: len, flags, new_address: to };
            // SAFETY: 1. both ranges are in the region of the programs.
            return unsafe { guard::mremap(remap) }.map_or_else(refused, |_| 0);
        }
        // SAFETY: both ranges are in the region of the programs.
        let at = unsafe { libc::mremap(pointer(address), len, len, flags, pointer(to)) };
        if at == libc::MAP_FAILED { answer(-1) } else { 0 }
    }

    pub(crate) fn advise(self, range: Range<usize>, advice: i32) -> Answer {
        if !matches!(self, Self::Plain | Self::Mutant) {
            // SAFETY: 1. the range is in the region of the programs.
            return unsafe { guard::madvise(range.start, range.len(), advice) }.map_or_else(refused, |()| 0);
        }
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::madvise(pointer(range.start), range.len(), advice) } as isize)
    }

    /// Forks. Returns the child's number, and 0 in the child.
    pub(crate) fn fork(self) -> i32 {
        if self == Self::Plain {
            // SAFETY: the child reads and writes memory of its own, and ends.
            return unsafe { libc::fork() };
        }
        // SAFETY: 1. as above; 2. see `freeze`.
        match unsafe { palimpsest_fork::fork() } {
            Ok(Forked::Parent(child)) => child.as_raw_nonzero().get(),
            Ok(Forked::Child) => 0,
            Err(_) => -1,
        }
    }

    /// Freezes, or plans it. Slices come one by one.
    pub(crate) fn freeze(self) {
        if self == Self::Plain {
            return;
        }
        let options = self.as_sliced().wishes(Options::new().measure(Measure::Nothing));
        // SAFETY: 1. the calls above go through the guards (a mutant's do not, and it must be caught); 2. there are no
        // buffers and no direct I/O; 3. nobody else shares this memory; 4. that stays so.
        match unsafe { palimpsest_fork::freeze(&options.other_threads(OtherThreads::Stop)) } {
            Ok(report) => run::say(&format!("#frozen {}", report.frozen_bytes())),
            Err(error) => {
                let cause = error.source().map(ToString::to_string);
                run::say(&format!("#not frozen: {error}: {cause:?}"));
            }
        }
    }

    /// Takes slices as long as the threads run, and freezes anew when they are done. `step` waits for some thread to
    /// make a step, and returns whether any goes on.
    pub(crate) fn meanwhile(self, step: &dyn Fn() -> bool) {
        if self == Self::Plain {
            return;
        }
        let mut freezes = 0;
        loop {
            if progress().stage != Stage::UnderWay && freezes < MOST_FREEZES {
                self.freeze();
                freezes += 1;
            } else {
                self.slice();
            }
            if !step() {
                return;
            }
        }
    }

    /// Takes a slice, if freezes are in slices.
    pub(crate) fn slice(self) {
        self.as_sliced().takes_slice();
    }

    /// What slices do: the mutant's do nothing wrong, and each freezes much.
    const fn as_sliced(self) -> Self {
        match self {
            Self::Mutant => Self::Budgeted(20_000),
            other => other,
        }
    }
}

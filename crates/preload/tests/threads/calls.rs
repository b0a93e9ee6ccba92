//! The calls of a program's threads, by all their names. The mutant discards by an instruction of its own, which no
//! object sees.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use libc::size_t;

pub(crate) use crate::names::pointer;
use crate::names::{self, Madvise, madvise_by_number};
use crate::rights;
use crate::world::Answer;
pub(crate) use crate::world::World;

/// Waits for each fork: a slice may follow in each, and a repair at each fork.
const WAITS: usize = 6;

/// Programs have several threads, which a freeze holds still.
pub(crate) const THREADS: &str = "stop";

/// Discards without the C library.
///
/// # Safety
///
/// 1. As for `madvise`.
unsafe extern "C" fn discard_by_instruction(place: *mut c_void, len: size_t, advice: c_int) -> c_int {
    if advice != libc::MADV_DONTNEED {
        // SAFETY: contract 1.
        return unsafe { libc::madvise(place, len, advice) };
    }
    // SAFETY: contract 1.
    let given = unsafe { rustix::mm::madvise(place, len, rustix::mm::Advice::LinuxDontNeed) };
    if given.is_ok() { 0 } else { -1 }
}

impl World {
    /// Maps private anonymous memory, over whatever is there.
    pub(crate) fn map(self, range: Range<usize>) -> Answer {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        names::map(range, libc::PROT_READ | libc::PROT_WRITE, (flags, -1), libc::mmap64)
    }

    pub(crate) fn protect(self, range: Range<usize>, rights: i32) -> Answer {
        rights::protect(range, rights)
    }

    /// Moves memory to a place where nothing is.
    pub(crate) fn remap(self, from: Range<usize>, to: usize) -> Answer {
        let len = from.len();
        names::remap(from, len, Some(to))
    }

    pub(crate) fn advise(self, range: Range<usize>, advice: i32) -> Answer {
        let number: Madvise = if self == Self::Mutant { discard_by_instruction } else { madvise_by_number };
        names::advise(range, advice, number)
    }

    /// Forks. Returns the child's number, and 0 in the child.
    pub(crate) fn fork(self) -> i32 {
        names::fork()
    }

    /// Forks and waits as long as the threads run; `step` waits for some thread to make a step, and returns whether any
    /// goes on.
    pub(crate) fn meanwhile(self, step: &dyn Fn() -> bool) {
        for turn in 0.. {
            if turn % (WAITS + 1) == 0 {
                names::fork_and_end()
            } else {
                self.slice()
            }
            if !step() {
                break;
            }
        }
        if self.is_served() {
            names::say_what_is_frozen();
        }
    }

    /// Waits, which the object takes for a slice.
    pub(crate) fn slice(self) {
        names::wait();
    }
}

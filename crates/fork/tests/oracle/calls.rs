//! The system calls of a program: plain, or as the preload object makes them. The mutant guards no advice.

use std::error::Error as _;
use std::ffi::c_void;
use std::ops::Range;

use palimpsest_fork::guard::{self, Protect, Remap};
use palimpsest_fork::{Forked, Measure, Options, Stage};

use crate::interpreter::Content;
use crate::run;
pub(crate) use crate::world::{Answer, World};
use crate::world::{answer, refused};

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

impl World {
    pub(crate) fn map(self, range: Range<usize>, prot: i32, content: Content) -> Answer {
        let (flags, file) = content.arguments();
        // SAFETY: the range is in the region of the programs, of which nothing of Rust's is a part.
        let at = unsafe { libc::mmap(pointer(range.start), range.len(), prot, flags, file, 0) };
        if at == libc::MAP_FAILED {
            return answer(-1);
        }
        if flags & libc::MAP_FIXED != 0 {
            self.forget(range);
        }
        0
    }

    pub(crate) fn unmap(self, range: Range<usize>) -> Answer {
        // No guard hears of it. SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::munmap(pointer(range.start), range.len()) } as isize)
    }

    pub(crate) fn protect(self, range: Range<usize>, prot: i32) -> Answer {
        if self == Self::Plain {
            // SAFETY: the range is in the region of the programs.
            return answer(unsafe { libc::mprotect(pointer(range.start), range.len(), prot) } as isize);
        }
        let asked = Protect { address: range.start, len: range.len(), rights: prot, key: -1 };
        // SAFETY: 1. the range is in the region of the programs.
        unsafe { guard::mprotect(asked) }.map_or_else(refused, |()| 0)
    }

    /// Calls `mremap`: to `to` if that is given, otherwise in place.
    pub(crate) fn remap(self, from: Range<usize>, len: usize, to: Option<usize>) -> Answer {
        let flags = if to.is_some() { libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED } else { 0 };
        let new_address = to.unwrap_or(0);
        if self != Self::Plain {
            let remap = Remap { address: from.start, len: from.len(), new_len: len, flags, new_address };
            // SAFETY: 1. both ranges are in the region of the programs.
            return unsafe { guard::mremap(remap) }.map_or_else(refused, |_| 0);
        }
        // SAFETY: both ranges are in the region of the programs.
        let at = unsafe { libc::mremap(pointer(from.start), from.len(), len, flags, pointer(new_address)) };
        if at == libc::MAP_FAILED {
            return answer(-1);
        }
        0
    }

    pub(crate) fn advise(self, range: Range<usize>, advice: i32) -> Answer {
        if !matches!(self, Self::Plain | Self::Mutant) {
            // SAFETY: 1. the range is in the region of the programs.
            return unsafe { guard::madvise(range.start, range.len(), advice) }.map_or_else(refused, |()| 0);
        }
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::madvise(pointer(range.start), range.len(), advice) } as isize)
    }

    pub(crate) fn lock(self, range: Range<usize>) -> Answer {
        if self != Self::Plain
            && let Err(errno) = guard::before_mlock(range.clone())
        {
            run::say(&format!("#before_mlock: {errno}"));
        }
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::mlock(pointer(range.start), range.len()) } as isize)
    }

    pub(crate) fn unlock(self, range: Range<usize>) -> Answer {
        // SAFETY: the range is in the region of the programs.
        answer(unsafe { libc::munlock(pointer(range.start), range.len()) } as isize)
    }

    /// Forks. Returns the child's number, and 0 in the child.
    pub(crate) fn fork(self) -> i32 {
        if self == Self::Plain {
            // SAFETY: the interpreter has one thread.
            let child = unsafe { libc::fork() };
            assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
            return child;
        }
        // SAFETY: 1. the interpreter has one thread; 2. see `freeze`.
        match unsafe { palimpsest_fork::fork() }.expect("fork") {
            Forked::Parent(child) => child.as_raw_nonzero().get(),
            Forked::Child => 0,
        }
    }

    pub(crate) fn freeze(self) {
        if self == Self::Plain {
            return;
        }
        let options = self.wishes(Options::new().measure(Measure::Nothing));
        // SAFETY: 1. the calls above go through the guards, as the preload object's do (a mutant's do not, and it must
        // be caught); 2. and 3. the interpreter registers no buffers, uses no direct I/O, and has one thread; 4. that
        // stays so.
        match unsafe { palimpsest_fork::freeze(&options) } {
            Ok(report) => {
                run::say(&format!("#frozen {}", report.frozen_bytes()));
                if let Some(stopped) = report.stopped {
                    run::say(&format!("#stopped early: {stopped}"));
                }
            }
            Err(error) => {
                let cause = error.source().map(ToString::to_string);
                run::say(&format!("#not frozen: {error}: {cause:?}"));
            }
        }
    }

    /// Takes a slice of a freeze under way, or of the work between forks.
    pub(crate) fn slice(self) {
        let before = palimpsest_fork::progress().stage;
        self.takes_slice();
        if before == Stage::UnderWay && palimpsest_fork::progress().stage == Stage::Ended {
            run::say("#stopped early");
        }
    }

    /// Does what the preload object does before it executes a program.
    pub(crate) fn before_exec(self) {
        if self != Self::Plain {
            palimpsest_fork::dismiss_deputy();
        }
    }

    fn forget(self, range: Range<usize>) {
        if self != Self::Plain {
            guard::replaced(range);
        }
    }
}

//! A process's knowledge of its forks: whether it is a child itself, and whether children hold its memory.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::SealFlags;

use crate::memory::area::{Area, OnFork};
use crate::memory::error::MapError;
use crate::memory::mapping::{Mapping, Protection, Source};
use crate::memory::shared_memory::{CreateError, Pages, SharedMemory};

/// Tells a process from its forked children, at the price of a load.
#[derive(Debug)]
pub struct ForkDetector(Detector);

#[derive(Debug)]
enum Detector {
    /// A page that the kernel wipes in the child (`MADV_WIPEONFORK`): works for `fork` by any way, and for `vfork`,
    /// whose child shares the memory and may use it.
    Page {
        /// The generation of the process; 0 in a child that has not asked.
        page: Mapping,
        /// At least the generation of this process, and what a child counts on from: it is inherited.
        last: AtomicU32,
    },
    /// Before Linux 4.14, or without memory for a page: the process id, which takes a system call.
    Pid(rustix::process::Pid),
}

/// The generation of the process that has made the detector.
const FIRST: u32 = 1;

impl ForkDetector {
    /// Creates a detector for the calling process.
    pub fn new() -> Self {
        let counted = |page| Detector::Page { page, last: AtomicU32::new(FIRST) };
        Self(wiped_page().map_or_else(|_| Detector::Pid(rustix::process::getpid()), counted))
    }

    /// Returns whether this is still the process that has made the detector.
    #[inline]
    pub fn is_same_process(&self) -> bool {
        match &self.0 {
            // Relaxed: only the kernel takes it away, before the child's first instruction.
            Detector::Page { page, .. } => flag(page).load(Ordering::Relaxed) == FIRST,
            Detector::Pid(pid) => *pid == rustix::process::getpid(),
        }
    }

    /// Returns a number that this process shares with none from which it was forked, by however many forks, and that
    /// asked before that. Signal handlers may ask. Where the process id must do, the kernel may have given it to such a
    /// process, too.
    #[inline]
    pub fn generation(&self) -> u32 {
        match &self.0 {
            // Acquire: with the release of `next_generation`.
            Detector::Page { page, last } => match flag(page).load(Ordering::Acquire) {
                0 => next_generation(flag(page), last),
                generation => generation,
            },
            Detector::Pid(_) => rustix::process::getpid().as_raw_nonzero().get().cast_unsigned(),
        }
    }
}

impl Default for ForkDetector {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes the next generation for a child. Threads may do so at the same time: one of their numbers counts. `last` goes
/// first, so that it is never below the page's number, whenever another thread forks.
#[cold]
fn next_generation(own: &AtomicU32, last: &AtomicU32) -> u32 {
    let next = last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    // Release, and acquire if another was first, here and in `generation`: without it, a thread could read the page's
    // number, fork, and leave the child an older `last`, from which it would count to the same number.
    match own.compare_exchange(0, next, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => next,
        Err(other) => other,
    }
}

fn wiped_page() -> Result<Mapping, MapError> {
    let page = rustix::param::page_size();
    let mapping = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page)?;
    mapping.on_fork(OnFork::Wipe)?;
    flag(&mapping).store(FIRST, Ordering::Relaxed);
    Ok(mapping)
}

fn flag(page: &Area) -> &AtomicU32 {
    // SAFETY: the page is mapped for reading and writing as long as `page` lives, aligned, initialised (zeros), and is
    // only ever accessed through this function.
    unsafe { AtomicU32::from_ptr(page.as_ptr().cast()) }
}

/// Knows whether another process was forked from this one while the witness was mapped, and still runs in the memory
/// that it inherited.
///
/// A witness is a page of shared memory that is mapped writable here, and so in every child. The kernel grants
/// `F_SEAL_WRITE` only if no process maps the object writable (`mm/memfd.c`, `mapping_deny_writable`). So the seal,
/// tried after this process has unmapped its own page, reveals any other process that has not: also grandchildren, and
/// children made by a bare `clone`. `exec` and exit end a child's hold.
#[derive(Debug)]
pub struct ForkWitness {
    memory: SharedMemory,
    page: Mapping,
}

/// The rest of a witness that new children no longer inherit.
#[derive(Debug)]
pub struct RetiredWitness(SharedMemory);

/// Why forks cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum WitnessError {
    /// There is no memory object for the witness.
    #[error("no memory object for a fork witness")]
    Create(#[from] CreateError),
    /// There is no mapping for the witness.
    #[error("no mapping for a fork witness")]
    Map(#[from] MapError),
}

/// The knowledge of a [`RetiredWitness`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heirs {
    /// No other process holds memory that it inherited in the witness's time.
    None,
    /// At least one does.
    Some,
}

/// A witness that is ready but does not watch yet: starting it needs no resource that could be lacking then.
#[derive(Debug)]
pub struct SpareWitness(ForkWitness);

impl SpareWitness {
    /// Takes the resources of a witness: a file descriptor and a mapping.
    ///
    /// # Errors
    ///
    /// See [`WitnessError`].
    pub fn new() -> Result<Self, WitnessError> {
        let len = rustix::param::page_size();
        let memory = SharedMemory::create("palimpsest-witness", len, Pages::Base)?;
        let page = Mapping::unforked(Source::Shared(&memory), len, len)?;
        Ok(Self(ForkWitness { memory, page }))
    }

    /// Begins to watch for forks.
    ///
    /// # Errors
    ///
    /// [`WitnessError::Map`] with the kernel's reason for refusing `MADV_DOFORK`.
    pub fn watch(self) -> Result<ForkWitness, WitnessError> {
        self.0.page.on_fork(OnFork::Inherit)?;
        Ok(self.0)
    }
}

impl ForkWitness {
    /// Stops watching. The result knows of children forked before this call, but not of later ones.
    pub fn retire(self) -> RetiredWitness {
        drop(self.page);
        RetiredWitness(self.memory)
    }
}

impl RetiredWitness {
    /// Asks the kernel for heirs.
    pub fn heirs(&self) -> Heirs {
        match rustix::fs::fcntl_add_seals(&self.0, SealFlags::WRITE) {
            Ok(()) => Heirs::None,
            // EBUSY is the answer for a writable mapping; after any other error nothing is known, which counts the
            // same.
            Err(_) => Heirs::Some,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `child` in a forked process and returns after `parent`. The child's result becomes its exit code.
    fn forked(child: impl FnOnce() -> bool, parent: impl FnOnce()) -> bool {
        // SAFETY: the child calls `child`, which only reads memory and sleeps, and leaves by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let code = i32::from(!child());
            // SAFETY: ends the child without running the test harness's exit handlers.
            unsafe { libc::_exit(code) };
        }
        parent();
        let mut status = 0;
        // SAFETY: `status` is a valid place for the answer.
        let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
        waited == pid && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
    }

    #[test]
    fn a_child_knows_that_it_is_one() {
        let detector = ForkDetector::new();
        assert!(detector.is_same_process());
        assert!(forked(|| !detector.is_same_process(), || {}));
        assert!(detector.is_same_process());
    }

    #[test]
    fn a_child_has_another_number_than_all_before_it() {
        let detector = ForkDetector::new();
        let first = detector.generation();
        let has_another = || {
            let second = detector.generation();
            let third = || ![first, second].contains(&detector.generation());
            second != first && detector.generation() == second && forked(third, || {})
        };
        assert!(forked(has_another, || {}));
        // A child that does not ask itself.
        assert!(forked(|| forked(|| detector.generation() != first, || {}), || {}));
        assert_eq!(detector.generation(), first);
    }

    #[test]
    fn a_witness_knows_of_living_children_only() {
        let witness = SpareWitness::new().unwrap().watch().unwrap();
        let (read, write) = std::io::pipe().unwrap();
        let mut witness = Some(witness);
        let mut retired = None;
        let child = || {
            // Blocks until the parent drops its end.
            let mut read = &read;
            std::io::Read::read(&mut read, &mut [0]).is_ok()
        };
        let write = std::cell::Cell::new(Some(write));
        // The child must not hold the writing end, or it would wait for itself.
        let ok = forked(
            || {
                drop(write.take());
                child()
            },
            || {
                let seen = witness.take().unwrap().retire();
                assert_eq!(seen.heirs(), Heirs::Some);
                retired = Some(seen);
                drop(write.take());
            },
        );
        assert!(ok);
        // Another test of this program may have forked meanwhile: its child has the witness too, until it ends.
        let retired = retired.unwrap();
        while retired.heirs() == Heirs::Some {
            std::thread::yield_now();
        }
    }
}

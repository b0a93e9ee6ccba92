//! A value that belongs to one process: a forked child gets its own.
//!
//! Readers take no lock, so a child forked while another thread was reading or opening can continue. Opening is
//! exclusive within a process: the word `opener` holds the process's generation while a thread opens, and a child that
//! inherits it sees a foreign one and takes the word over. Process ids would not do: those of nested pid namespaces are
//! the same numbers.

use std::{
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
};

use palimpsest_sys::ForkDetector;

/// No thread is opening. No process has this generation.
const NOBODY: u32 = 0;

/// One value of `T` for every process of a chain of forks.
#[derive(Debug)]
pub(super) struct PerProcess<T> {
    process: ForkDetector,
    /// # Invariants
    /// Null, or made by `Box::into_raw` and freed by `drop` only. Replaced only by the holder of `opener`.
    current: AtomicPtr<Generation<T>>,
    /// `NOBODY`, or the process of the thread that opens.
    opener: AtomicU32,
}

#[derive(Debug)]
struct Generation<T> {
    process: u32,
    value: T,
    /// The generation inherited from before the fork: kept, because a thread of another process that shares this memory
    /// could still read it.
    inherited: *mut Generation<T>,
}

// SAFETY: the pointers own their targets (invariant of `current`), so sending the cell sends the values.
unsafe impl<T: Send> Send for PerProcess<T> {}
// SAFETY: threads share `&T` through `get` and `get_or_open`, and a value made by one thread may be dropped by another:
// `T: Send + Sync`.
unsafe impl<T: Send + Sync> Sync for PerProcess<T> {}

impl<T> PerProcess<T> {
    pub(super) fn new() -> Self {
        let (current, opener) = (AtomicPtr::new(ptr::null_mut()), AtomicU32::new(NOBODY));
        PerProcess { process: ForkDetector::new(), current, opener }
    }

    /// Returns this process's value if it has been opened.
    pub(super) fn get(&self) -> Option<&T> {
        self.of(self.process.generation())
    }

    /// Returns this process's value. If there is none, opens it by `open`, which gets the process id.
    ///
    /// # Errors
    /// Those of `open`; the next call tries again.
    pub(super) fn get_or_open<E>(&self, open: impl FnOnce(u32) -> Result<T, E>) -> Result<&T, E> {
        let process = self.process.generation();
        if let Some(value) = self.of(process) {
            return Ok(value);
        }
        let _turn = self.take_turn(process);
        if let Some(value) = self.of(process) {
            return Ok(value);
        }
        let opened = Box::into_raw(Box::new(Generation {
            process,
            value: open(std::process::id())?,
            // Relaxed: only the holder of the turn replaces the pointer, and taking the turn ordered us after the
            // previous holder.
            inherited: self.current.load(Relaxed),
        }));
        // Release: partner is the Acquire in `of`, which must not see the pointer before the fields of the generation.
        self.current.store(opened, Release);
        // SAFETY: `opened` was made by `Box::into_raw` just now and is freed only by `drop`, which `&self` excludes.
        Ok(unsafe { &(*opened).value })
    }

    fn of(&self, process: u32) -> Option<&T> {
        // Acquire: partner is the Release store in `get_or_open`.
        let current = self.current.load(Acquire);
        // SAFETY: by the invariant null or a live box, freed only by `drop`, which `&self` excludes.
        let generation = unsafe { current.as_ref() }?;
        (generation.process == process).then_some(&generation.value)
    }

    fn take_turn(&self, process: u32) -> Turn<'_> {
        loop {
            // Relaxed: the exchange below decides.
            let seen = self.opener.load(Relaxed);
            if seen == process {
                thread::yield_now();
                continue;
            }
            // Acquire: partner is the Release in `Turn::drop`; the new holder sees the generation that the last holder
            // stored.
            if self.opener.compare_exchange(seen, process, Acquire, Relaxed).is_ok() {
                return Turn { opener: &self.opener };
            }
        }
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        let mut next = *self.current.get_mut();
        while !next.is_null() {
            // SAFETY: the chain consists of boxes made in `get_or_open`, each reachable once, and `&mut self` excludes
            // readers.
            let generation = unsafe { Box::from_raw(next) };
            next = generation.inherited;
        }
    }
}

/// The right to open; dropping it gives it back, so that a panic in `open` does not lock others out.
struct Turn<'a> {
    opener: &'a AtomicU32,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Release: partner is the Acquire exchange in `take_turn`.
        self.opener.store(NOBODY, Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, atomic::AtomicUsize};

    use super::*;

    #[test]
    fn opens_once_for_all_threads() {
        let cell = PerProcess::new();
        let opened = AtomicUsize::new(0);
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    let value = cell.get_or_open(|pid| {
                        opened.fetch_add(1, Relaxed);
                        Ok::<_, ()>(pid)
                    });
                    assert_eq!(value, Ok(&std::process::id()));
                });
            }
        });
        assert_eq!(opened.into_inner(), 1);
    }

    #[test]
    fn a_failure_is_tried_again() {
        let cell = PerProcess::new();
        assert_eq!(cell.get_or_open(|_| Err::<u8, _>("no")), Err("no"));
        assert_eq!(cell.get(), None);
        assert_eq!(cell.get_or_open(|_| Ok::<_, &str>(7)), Ok(&7));
        assert_eq!(cell.get(), Some(&7));
    }

    #[test]
    fn a_value_of_another_process_is_not_used() {
        let cell = PerProcess::new();
        let other = Generation { process: NOBODY, value: 1, inherited: ptr::null_mut() };
        cell.current.store(Box::into_raw(Box::new(other)), Release);
        // The word that a child finds if it was forked while another thread was opening.
        cell.opener.store(u32::MAX, Release);
        assert_eq!(cell.get(), None);
        assert_eq!(cell.get_or_open(|_| Ok::<_, ()>(2)), Ok(&2));
    }

    /// The exit code of a process that may make no namespace.
    const NOT_ALLOWED: i32 = 77;

    /// Runs `scenario` as the first process of a pid namespace. Returns its result, or [`NOT_ALLOWED`].
    fn first_of_a_namespace(scenario: impl FnOnce() -> i32) -> i32 {
        let wait = |child| {
            let mut status = 0;
            // SAFETY: the child is ours; the status goes to a local.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
        };
        let end = |code| {
            // SAFETY: ends the process, a child of the test.
            unsafe { libc::_exit(code) }
        };
        // SAFETY: the child makes system calls and ends.
        let outside = unsafe { libc::fork() };
        if outside == 0 {
            // SAFETY: takes a number; concerns children that are made later.
            if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
                end(NOT_ALLOWED);
            }
            // SAFETY: the child has one thread, so that it may do what its parent, also a child, may.
            let first = unsafe { libc::fork() };
            if first == 0 {
                end(scenario());
            }
            end(wait(first));
        }
        wait(outside)
    }

    /// Fails on: process ids that stand for processes. Both of these are number 1.
    #[test]
    fn a_child_in_a_nested_pid_namespace_has_a_value_of_its_own() {
        let code = first_of_a_namespace(|| {
            let cell = PerProcess::new();
            let opened = cell.get_or_open(Ok::<_, ()>) == Ok(&1);
            // A child that is forked meanwhile.
            cell.opener.store(cell.process.generation(), Release);
            let in_nested = || i32::from(cell.get().is_some() || cell.get_or_open(|_| Ok::<_, ()>(2)) != Ok(&2));
            if opened { first_of_a_namespace(in_nested) } else { 2 }
        });
        if code == NOT_ALLOWED {
            return eprintln!("skipped: this user may not unshare pid namespaces");
        }
        assert_eq!(code, 0);
    }
}

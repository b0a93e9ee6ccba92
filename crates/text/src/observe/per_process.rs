//! A value that belongs to one process: a forked child gets its own.
//!
//! Readers take no lock, so a child forked while another thread was reading or opening can continue. Opening is
//! exclusive within a process: the word `opener` holds the process id of the thread that opens, and a child that
//! inherits it sees a foreign id and takes the word over.

use std::{
    ptr,
    sync::atomic::{
        AtomicPtr, AtomicU32,
        Ordering::{Acquire, Relaxed, Release},
    },
    thread,
};

/// No thread is opening. The kernel gives no user process this id.
const NOBODY: u32 = 0;

/// One value of `T` for every process of a chain of forks.
#[derive(Debug)]
pub(super) struct PerProcess<T> {
    /// # Invariants
    /// Null, or made by `Box::into_raw` and freed by `drop` only. Replaced only by the holder of `opener`.
    current: AtomicPtr<Generation<T>>,
    /// `NOBODY`, or the process id of the thread that opens.
    opener: AtomicU32,
}

#[derive(Debug)]
struct Generation<T> {
    pid: u32,
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
    pub(super) const fn new() -> Self {
        PerProcess { current: AtomicPtr::new(ptr::null_mut()), opener: AtomicU32::new(NOBODY) }
    }

    /// Returns this process's value if it has been opened.
    pub(super) fn get(&self) -> Option<&T> {
        self.of(std::process::id())
    }

    /// Returns this process's value. If there is none, opens it by `open`, which gets the process id.
    ///
    /// # Errors
    /// Those of `open`; the next call tries again.
    pub(super) fn get_or_open<E>(&self, open: impl FnOnce(u32) -> Result<T, E>) -> Result<&T, E> {
        let pid = std::process::id();
        if let Some(value) = self.of(pid) {
            return Ok(value);
        }
        let _turn = self.take_turn(pid);
        if let Some(value) = self.of(pid) {
            return Ok(value);
        }
        let opened = Box::into_raw(Box::new(Generation {
            pid,
            value: open(pid)?,
            // Relaxed: only the holder of the turn replaces the pointer, and taking the turn ordered us after the
            // previous holder.
            inherited: self.current.load(Relaxed),
        }));
        // Release: partner is the Acquire in `of`, which must not see the pointer before the fields of the generation.
        self.current.store(opened, Release);
        // SAFETY: `opened` was made by `Box::into_raw` just now and is freed only by `drop`, which `&self` excludes.
        Ok(unsafe { &(*opened).value })
    }

    fn of(&self, pid: u32) -> Option<&T> {
        // Acquire: partner is the Release store in `get_or_open`.
        let current = self.current.load(Acquire);
        // SAFETY: by the invariant null or a live box, freed only by `drop`, which `&self` excludes.
        let generation = unsafe { current.as_ref() }?;
        (generation.pid == pid).then_some(&generation.value)
    }

    fn take_turn(&self, pid: u32) -> Turn<'_> {
        loop {
            // Relaxed: the exchange below decides.
            let seen = self.opener.load(Relaxed);
            if seen == pid {
                thread::yield_now();
                continue;
            }
            // Acquire: partner is the Release in `Turn::drop`; the new holder sees the generation that the last holder
            // stored.
            if self.opener.compare_exchange(seen, pid, Acquire, Relaxed).is_ok() {
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
        cell.current
            .store(Box::into_raw(Box::new(Generation { pid: NOBODY, value: 1, inherited: ptr::null_mut() })), Release);
        // The word that a child finds if it was forked while another thread was opening.
        cell.opener.store(u32::MAX, Release);
        assert_eq!(cell.get(), None);
        assert_eq!(cell.get_or_open(|_| Ok::<_, ()>(2)), Ok(&2));
    }
}

//! The calling process and thread.

use std::num::NonZeroU64;

/// A process, as all copies of this library in it name it: its id, and above that [some bits](namespace) of its pid
/// namespace. In nested namespaces, processes that are forked from one another may have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u32);

/// The bits of a process id (`PID_MAX_LIMIT` in `include/linux/threads.h`).
const PID_BITS: u32 = 22;

impl Process {
    /// Returns the calling process. Makes two system calls; async-signal-safe.
    pub(crate) fn current() -> Self {
        Self(rustix::process::getpid().as_raw_pid().cast_unsigned() | namespace() << PID_BITS)
    }

    /// Returns the process of which [`to_word`](Self::to_word) made `word`.
    pub(crate) const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// Returns a number that is never zero, and below 2³¹.
    pub(crate) const fn to_word(self) -> u32 {
        self.0
    }

    /// Returns whether both are the same, of processes that are forked from one another. A namespace that is not known
    /// may be any.
    pub(crate) const fn is(self, other: Self) -> bool {
        let (namespace, others) = (self.0 >> PID_BITS, other.0 >> PID_BITS);
        let is_one_namespace = namespace == others || namespace == 0 || others == 0;
        is_one_namespace && (self.0 ^ other.0) << (u32::BITS - PID_BITS) == 0
    }
}

/// Returns a number from 1 to 511 for the calling process's pid namespace, or zero without `/proc`. Those of namespaces
/// that exist at the same time differ, unless there are hundreds: the kernel numbers them one after the other
/// (`proc_alloc_inum` in `fs/proc/generic.c`).
fn namespace() -> u32 {
    const NUMBERS: u64 = (1 << (31 - PID_BITS)) - 1;
    // Miri knows no such files, nor forks.
    if cfg!(miri) {
        return 0;
    }
    rustix::fs::stat(c"/proc/self/ns/pid").map_or(0, |found| (found.st_ino % NUMBERS) as u32 + 1)
}

/// The calling thread of a process. In a forked child, it is a different one.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    process: Process,
    thread: u32,
}

impl Caller {
    /// Returns the calling thread of the calling process. Makes three system calls; async-signal-safe.
    pub fn current() -> Self {
        Self { process: Process::current(), thread: rustix::thread::gettid().as_raw_pid().cast_unsigned() }
    }

    /// Packs both into one word, whose highest bit is zero. Neither is ever zero.
    pub fn to_word(self) -> NonZeroU64 {
        let word = u64::from(self.process.to_word()) << 32 | u64::from(self.thread);
        NonZeroU64::new(word).unwrap_or(NonZeroU64::MAX)
    }

    /// Returns the caller of which [`Caller::to_word`] made `word`.
    pub fn from_word(word: NonZeroU64) -> Self {
        Self { process: Process::from_word((word.get() >> 32) as u32), thread: word.get() as u32 }
    }

    /// Returns whether both are threads of one process.
    pub fn is_same_process(self, other: Self) -> bool {
        self.process.is(other.process)
    }

    /// Returns whether both are the same thread.
    pub fn is_same_thread(self, other: Self) -> bool {
        self.thread == other.thread && self.is_same_process(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::in_pid_namespace;

    #[test]
    fn words_keep_both_numbers() {
        let here = Caller::current();
        assert!(Caller::from_word(here.to_word()).is_same_thread(here));
        assert_eq!(Caller::from_word(here.to_word()).to_word(), here.to_word());
        let there = std::thread::spawn(Caller::current).join().unwrap();
        assert!(!here.is_same_thread(there) && here.is_same_process(there));
    }

    #[test]
    fn a_namespace_that_is_not_known_may_be_any() {
        let process = |namespace: u32, pid: u32| Process::from_word(namespace << PID_BITS | pid);
        for (one, other, is_same) in [
            (process(0, 7), process(3, 7), true),
            (process(3, 7), process(3, 7), true),
            (process(2, 7), process(3, 7), false),
            (process(3, 8), process(3, 7), false),
            (process(0, 8), process(3, 7), false),
        ] {
            assert_eq!((one.is(other), other.is(one)), (is_same, is_same), "{one:?}, {other:?}");
        }
    }

    /// Fails on: process ids that stand for processes. Both of these are number 1, with one thread of number 1.
    #[test]
    fn a_child_in_a_nested_pid_namespace_is_another_process() {
        let status = in_pid_namespace(|| {
            let parent = Caller::current();
            let nested = in_pid_namespace(|| {
                let own = Caller::current();
                own.to_word().get() as u32 == 1 && !own.is_same_process(parent) && !own.is_same_thread(parent)
            });
            nested == Some(0)
        });
        assert!(matches!(status, None | Some(0)), "{status:?}");
    }
}

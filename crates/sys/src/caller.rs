//! The calling process and thread.

use std::num::NonZeroU64;

/// The calling thread of a process. In a forked child, it is a different one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    process: u32,
    thread: u32,
}

impl Caller {
    /// Returns the calling thread of the calling process. Makes two system calls; async-signal-safe.
    pub fn current() -> Self {
        Self {
            process: rustix::process::getpid().as_raw_pid().cast_unsigned(),
            thread: rustix::thread::gettid().as_raw_pid().cast_unsigned(),
        }
    }

    /// Packs both numbers into one word. Neither is ever zero.
    pub fn to_word(self) -> NonZeroU64 {
        NonZeroU64::new(u64::from(self.process) << 32 | u64::from(self.thread)).unwrap_or(NonZeroU64::MAX)
    }

    /// Returns the caller of which [`Caller::to_word`] made `word`.
    pub fn from_word(word: NonZeroU64) -> Self {
        Self { process: (word.get() >> 32) as u32, thread: word.get() as u32 }
    }

    /// Returns whether both are threads of one process.
    pub fn is_same_process(self, other: Self) -> bool {
        self.process == other.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_both_numbers() {
        let here = Caller::current();
        assert_eq!(Caller::from_word(here.to_word()), here);
        let there = std::thread::spawn(Caller::current).join().unwrap();
        assert_ne!(here, there);
        assert!(here.is_same_process(there));
    }
}

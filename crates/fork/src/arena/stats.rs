//! Figures of an arena.

use std::fmt;
use std::io;

/// Blocks that are allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InUse {
    /// How many.
    pub blocks: usize,
    /// Their bytes, including what size classes add.
    pub bytes: usize,
}

/// Bytes by origin. Pages never touched count here, and have no memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// Being filled: the next fork or [`freeze`](super::Arena::freeze) freezes them without copying.
    pub shared: usize,
    /// Frozen.
    pub frozen: usize,
    /// Anonymous memory, since files were refused: a fork copies its page tables, and only
    /// [`refreeze`](super::Arena::refreeze), which copies, can freeze it.
    pub anonymous: usize,
}

/// What an arena holds.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Allocated blocks.
    pub in_use: InUse,
    /// Where memory comes from.
    pub memory: Memory,
    /// Bytes of address space with memory behind them: the sum of [`memory`](Self::memory).
    pub committed: usize,
    /// Bytes of free runs, without free blocks of slabs.
    pub free: usize,
    /// Bytes of the longest free run.
    pub longest_free: usize,
    /// Mappings of the arena, approximately.
    pub segments: usize,
    /// Freezes that froze something, including those by forks.
    pub freezes: usize,
    /// Files that could not be sealed: something, probably a device, still held their pages, and may write to frozen
    /// memory.
    pub unsealed: usize,
    /// Bytes of frozen memory that a fork has left mapped a second time. Each call that takes or gives back a run
    /// unmaps 2 MiB of it, and [`trim`](super::Arena::trim) or [`freeze`](super::Arena::freeze) all. Such memory counts
    /// twice as resident (`RssShmem`), and its files are neither sealed nor closed yet.
    pub aside: usize,
    /// The error number with which the last file was refused.
    pub refused: Option<i32>,
}

impl Stats {
    /// The figures of an arena that was never used.
    pub(super) const NOTHING: Self = Self {
        in_use: InUse { blocks: 0, bytes: 0 },
        memory: Memory { shared: 0, frozen: 0, anonymous: 0 },
        committed: 0,
        free: 0,
        longest_free: 0,
        segments: 0,
        freezes: 0,
        unsealed: 0,
        aside: 0,
        refused: None,
    };
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} blocks of {} bytes in {} mappings", self.in_use.blocks, self.in_use.bytes, self.segments)?;
        let Memory { shared, frozen, anonymous } = self.memory;
        writeln!(f, "shared {shared}, frozen {frozen}, anonymous {anonymous}; free runs {}", self.free)?;
        if self.aside > 0 {
            writeln!(f, "of what is frozen, {} are still mapped a second time", self.aside)?;
        }
        match self.refused {
            Some(errno) => writeln!(f, "memory files are refused: {}", io::Error::from_raw_os_error(errno)),
            None => Ok(()),
        }
    }
}

//! What a check may find, as errors report it.

use std::fmt;

use palimpsest_sys::ObjectName;
use rustix::io::Errno;

/// Who manages memory by system calls that cannot be interposed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RawAllocator {
    /// The Go runtime.
    Go {
        /// The object that contains it.
        object: ObjectName,
    },
    /// musl, whose own calls bypass its symbols.
    Musl,
    /// A program without a C library that could be interposed.
    Static,
}

impl fmt::Display for RawAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Go { object } => write!(f, "the Go runtime in {object}"),
            Self::Musl => f.write_str("musl's C library"),
            Self::Static => f.write_str("a statically linked program"),
        }
    }
}

/// Why a ring is not known to be harmless.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RingHold {
    /// It has this many registered buffers.
    Buffers(u64),
    /// It was used.
    Requests {
        /// Requests taken by the kernel, or queued.
        taken: u64,
        /// Completions.
        posted: u64,
    },
    /// Its queues are in memory of the program, or cannot be mapped for lack of mappings.
    Queues,
    /// This group of buffers is a ring in the program's memory.
    BufferRing {
        /// The group's number.
        group: u16,
    },
    /// It has a region of the program's memory, or may have memory for a network card.
    Region,
    /// It has no descriptor through which it could be asked.
    NoDescriptor,
    /// The kernel does not tell.
    Untold(Errno),
}

impl fmt::Display for RingHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffers(count) => write!(f, "has {count} registered buffers"),
            Self::Requests { taken, posted } => {
                write!(f, "has taken {taken} requests and posted {posted} completions, so that some may be under way")
            }
            Self::Queues => f.write_str("has its queues in the program's memory (IORING_SETUP_NO_MMAP)"),
            Self::BufferRing { group } => write!(f, "has a ring of provided buffers (group {group})"),
            Self::Region => f.write_str("has a region of the program's memory"),
            Self::NoDescriptor => f.write_str("has no descriptor by which it could be asked what it holds"),
            Self::Untold(errno) => write!(f, "does not tell what it holds ({errno}; Linux 6.8 is needed)"),
        }
    }
}

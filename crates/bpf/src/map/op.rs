//! Operations on maps, and why they fail.

use super::Kind;

/// Why an operation on a map fails. A program gets [`errno`](Self::errno), negative.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// There is no such key, or nothing at all.
    #[error("it is not there")]
    NotFound,
    /// The key is there, and should not be.
    #[error("the key is there already")]
    Exists,
    /// There is no room.
    #[error("the map is full")]
    Full,
    /// There is no room in a trie of prefixes.
    #[error("the trie is full")]
    NoSpace,
    /// A key or value has another length.
    #[error("{given} bytes were given for a key or value of {len}")]
    Length {
        /// Bytes that it has.
        len: usize,
        /// Bytes that were given.
        given: usize,
    },
    /// Maps of this kind cannot do that.
    #[error("a map of the kind {kind:?} cannot do that")]
    Unsupported {
        /// The kind.
        kind: Kind,
    },
    /// A prefix is longer than a key.
    #[error("the prefix is longer than the {most} bits of a key")]
    Prefix {
        /// Bits.
        most: usize,
    },
    /// Its values have no locks.
    #[error("the values of the map have no locks")]
    NoLock,
    /// The thread that asks for the lock, of a value or of a part of the map, holds it already, or holds others and
    /// would have to wait for it: in a signal handler that has interrupted a change, inside `change_locked`, or where a
    /// `TimeSource` is asked.
    #[error("this thread holds the lock already, or others, so that it must not wait; is this in a signal handler?")]
    Deadlock,
    /// A thread that this process does not have was changing it when its parent forked, and it may be half changed.
    #[error("the parent of this process was changing it when it forked; make a new map here, or fork at another time")]
    Abandoned,
    /// An unknown flag.
    #[error("the flags {flags:#x} are not known")]
    Flags {
        /// The flags.
        flags: u64,
    },
}

impl OpError {
    /// Returns Linux's number for it.
    pub const fn errno(self) -> i64 {
        match self {
            Self::NotFound => 2,
            Self::Exists => 17,
            Self::Full => 7,
            Self::NoSpace => 28,
            Self::Length { .. } | Self::Flags { .. } | Self::Prefix { .. } | Self::NoLock => 22,
            Self::Deadlock => 35,
            Self::Abandoned => 130,
            Self::Unsupported { .. } => 95,
        }
    }
}

/// When to update. The numbers are Linux's (`BPF_ANY` and what follows it).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Update {
    /// Whether the key is there or not.
    #[default]
    Always = 0,
    /// If the key is not there.
    Insert = 1,
    /// If the key is there.
    Replace = 2,
}

impl Update {
    /// The update with this number.
    ///
    /// # Errors
    ///
    /// [`OpError::Flags`].
    pub const fn new(flags: u64) -> Result<Self, OpError> {
        match flags {
            0 => Ok(Self::Always),
            1 => Ok(Self::Insert),
            2 => Ok(Self::Replace),
            _ => Err(OpError::Flags { flags }),
        }
    }
}

/// What a full queue or stack does. The numbers are Linux's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WhenFull {
    /// It refuses.
    #[default]
    Refuse = 0,
    /// It drops the oldest value (Linux: `BPF_EXIST`).
    DropOldest = 2,
}

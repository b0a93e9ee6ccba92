//! The words of a ring buffer: private to this process, or in memory that others can map.

use alloc::boxed::Box;
use core::ops::Deref;
use core::sync::atomic::AtomicU64;

use super::cells::{WORD, words};
use super::seat::Inherited;
use super::{Definition, MapError};

/// Where the words are.
#[derive(Debug)]
pub(super) enum Memory {
    /// Private to this process.
    Own(Box<[AtomicU64]>),
    /// In memory that other processes can map.
    #[cfg(feature = "std")]
    Shared(palimpsest_sys::memory::words::SharedWords),
}

impl Memory {
    /// Makes `len` bytes of zeros.
    pub(super) fn new(definition: &Definition, len: u64) -> Result<Self, MapError> {
        Ok(Self::Own(words(definition, len / WORD as u64)?))
    }

    /// Makes `len` bytes of zeros that other processes can map.
    #[cfg(feature = "std")]
    pub(super) fn shared(name: &str, len: u64) -> Result<Self, palimpsest_sys::memory::words::SharedWordsError> {
        Ok(Self::Shared(palimpsest_sys::memory::words::SharedWords::new(name, len as usize)?))
    }

    /// What becomes in a child of the one who works on it in its parent.
    pub(super) const fn inherited(&self) -> Inherited {
        match self {
            Self::Own(_) => Inherited::IsFree,
            #[cfg(feature = "std")]
            Self::Shared(_) => Inherited::IsTaken,
        }
    }

    /// The descriptor that other processes map, if the memory is shared.
    #[cfg(feature = "std")]
    pub(super) fn descriptor(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        match self {
            Self::Own(_) => None,
            Self::Shared(words) => Some(words.as_fd()),
        }
    }
}

impl Deref for Memory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Own(words) => words,
            #[cfg(feature = "std")]
            Self::Shared(words) => words,
        }
    }
}

//! A pack, and its directory's entries for the places in it.

use std::ptr::NonNull;
use std::sync::Arc;

use super::directory::{Directory, EntryId};
use super::fault::Fault;
use super::group::Group;
use super::memory::{Kind, PackMemory};
use super::retired::Linked;
use super::{CHUNK, PACK};
use crate::address::CodeAddress;
use crate::observe::Function;
use crate::primitive::AtomicPtr;

/// A pack, or a run of packs that one long program fills.
///
/// It lives as long as it contains a program or a staged image, or its slot's state says so.
pub(super) struct Pack {
    pub(super) memory: PackMemory,
    pub(super) directory: Directory<Meta>,
    pub(super) kind: Kind,
}

impl Pack {
    /// Returns whether it is longer than a slot, and so a run for one program.
    pub(super) fn is_run(&self) -> bool {
        self.memory.len() > PACK
    }
}

/// Some chunks of a pack, and the entry for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) pack: NonNull<Pack>,
    pub(super) slot: u32,
    pub(super) first_chunk: u32,
    pub(super) chunks: u32,
    pub(super) entry: EntryId,
}

impl Place {
    /// Returns the offset from the pack's base, and the length, both in bytes.
    pub(super) fn range(&self) -> (usize, usize) {
        (self.first_chunk as usize * CHUNK, self.len())
    }

    /// Returns the length in bytes.
    pub(super) fn len(&self) -> usize {
        self.chunks as usize * CHUNK
    }

    /// Returns the first chunk behind it.
    pub(super) fn end_chunk(&self) -> u32 {
        self.first_chunk + self.chunks
    }
}

/// Properties that only some programs have.
#[derive(Default)]
pub(super) struct Extras {
    pub(super) name: Box<str>,
    /// Sorted by offset.
    pub(super) faults: Box<[Fault]>,
    /// The functions inside, by offset, for observers.
    pub(super) functions: Box<[Function]>,
    /// The allocation that it is a part of.
    pub(super) group: Option<Arc<Group>>,
}

/// The entry of a program in its pack's directory. 56 bytes.
pub(super) struct Meta {
    /// Written by the thread that pushes it to the stack of the retired; read by the one that takes that.
    pub(super) link: AtomicPtr<Meta>,
    /// The store's generation when the program was put in place: children forked earlier have no handle to it.
    pub(super) born: u64,
    /// Those of all parts of an allocation are one value.
    pub(super) extras: Option<Arc<Extras>>,
    /// # Invariants
    ///
    /// 1. Its pack is in slot `slot`, and lives at least until the place is given back.
    pub(super) place: Place,
    /// Bytes from the pack's base to the program's first.
    pub(super) start: u32,
    pub(super) len: u32,
}

// SAFETY: the pack is `Sync`; `link` is used by one stack at a time.
unsafe impl Send for Meta {}
// SAFETY: as above; the other fields never change.
unsafe impl Sync for Meta {}

// SAFETY: 1. a field of its own.
unsafe impl Linked for Meta {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Meta {
    pub(super) fn pack(&self) -> &Pack {
        // SAFETY: invariant 1; a reference to the entry exists only as long as its chunks are not given back.
        unsafe { self.place.pack.as_ref() }
    }

    pub(super) fn address(&self) -> CodeAddress {
        CodeAddress::new(self.pack().memory.base() + self.start as usize)
    }

    pub(super) fn name(&self) -> &str {
        self.extras.as_ref().map_or("", |extras| &extras.name)
    }

    pub(super) fn functions(&self) -> &[Function] {
        self.extras.as_ref().map_or(&[], |extras| &extras.functions)
    }

    pub(super) fn landing(&self, offset: u32) -> Option<CodeAddress> {
        let faults = &self.extras.as_ref()?.faults;
        let found = faults.binary_search_by_key(&offset, |fault| fault.offset).ok()?;
        Some(self.address().offset(faults[found].landing as usize))
    }
}

/// A pack that is out of use but still mapped, since a reader may see it.
pub(super) struct LaidOut {
    pub(super) first: usize,
    pub(super) pack: NonNull<Pack>,
}

// SAFETY: the pack is `Send`, and the holder of this value frees it.
unsafe impl Send for LaidOut {}

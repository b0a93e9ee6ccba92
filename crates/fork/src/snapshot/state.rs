//! What a snapshot knows. All of it lies in mappings of its own, since heap and statics are restored.

use std::sync::atomic::AtomicPtr;

use palimpsest_sys::memory::extent::{Extent, FileId};
use palimpsest_sys::memory::own::Reserved;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::vec::MappedVec;
use palimpsest_sys::pages::kept::KeptMaps;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::Pagemap;
use palimpsest_sys::pages::vmas::Vmas;

use super::descriptors::Table;
use super::error::Left;
use super::options::{Layout, Sweep};
use crate::arena::NoFiles;

/// Mappings for which there is room. The kernel's limit is 65530 by default, and splitting adds few.
pub(super) const MAPPINGS: usize = 1 << 17;

/// What a part of the memory held when the snapshot was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Contents {
    /// Zeros, in anonymous memory that was not populated.
    Zeros,
    /// The bytes at `offset` of the snapshot's file, which is mapped here, and a second time at `view`.
    Saved { offset: u64, view: usize },
}

/// Memory in the snapshot, with the same contents and rights throughout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) permissions: Permissions,
    pub(super) contents: Contents,
}

impl Part {
    /// Returns where the bytes of `address`, inside this part, are saved.
    pub(super) const fn saved(&self, address: usize) -> Option<usize> {
        match self.contents {
            Contents::Zeros => None,
            Contents::Saved { view, .. } => Some(view + (address - self.start)),
        }
    }

    /// Whether bytes can be stored here once the rights are those of the snapshot.
    pub(super) const fn is_writable(&self) -> bool {
        self.permissions.contains(Permissions::READ_WRITE)
    }
}

/// Bytes that each restore copies back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Copied {
    pub(super) start: usize,
    pub(super) len: usize,
    pub(super) saved: usize,
}

/// Pages that are private to this process and may differ from the snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) start: usize,
    pub(super) len: usize,
    /// Where the bytes are saved; `None` for zeros.
    pub(super) saved: Option<usize>,
}

/// A range that is not in the snapshot, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotTaken {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
    /// Why.
    pub reason: Left,
}

#[expect(clippy::large_enum_variant, reason = "there is one of it, in a page of its own")]
/// Whether the snapshot includes the process's state beside memory.
#[derive(Debug)]
pub(super) enum Reach {
    /// Only chosen memory.
    Ranges,
    /// Where everything is mapped, and the program break.
    Whole(Whole),
}

/// What a snapshot of the whole process knows of the address space.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) layout: Layout,
    /// The mappings when the snapshot was taken.
    pub(super) reference: Vmas,
    /// The present mappings; the second is for kernels without `PROCMAP_QUERY`.
    pub(super) kept: Option<KeptMaps>,
    pub(super) current: Vmas,
    /// Our own memory and what was excepted, ascending: restores neither remove nor make mappings here.
    pub(super) excluded: MappedVec<Span>,
    /// The program break.
    pub(super) program_break: usize,
    /// The running stack.
    pub(super) stack: Span,
    /// Arenas make no files while the snapshot lives.
    pub(super) _no_files: NoFiles,
}

/// Everything that a restore needs. It lives in its [`Own`] mapping.
#[derive(Debug)]
pub(super) struct State {
    pub(super) reach: Reach,
    pub(super) sweep: Sweep,
    /// Pages that may stay private, in bytes.
    pub(super) resident: usize,
    pub(super) page: usize,
    /// The process whose page tables `pagemap` shows.
    pub(super) process: u32,
    pub(super) pagemap: Pagemap,
    pub(super) extent: Extent,
    /// Ascending and disjoint.
    pub(super) parts: MappedVec<Part>,
    /// What a sweep asks about: parts, and the small gaps between them.
    pub(super) groups: MappedVec<Span>,
    pub(super) copies: MappedVec<Copied>,
    pub(super) known: MappedVec<Known>,
    /// Whether the last sweep had to leave other pages private.
    pub(super) missed: bool,
    pub(super) declared: MappedVec<Known>,
    pub(super) left: MappedVec<NotTaken>,
    pub(super) views: Reserved,
    /// Where `copies` are saved.
    pub(super) saved: Reserved,
    pub(super) descriptors: Option<Table>,
    /// Page faults of the process at the end of the last restore.
    pub(super) faults: u64,
    pub(super) restores: u32,
    /// Whether forks know of it.
    pub(super) listed: bool,
    /// The next snapshot of this process; see [`heirs`](super::heirs).
    pub(super) next: AtomicPtr<Self>,
}

impl State {
    /// Returns the files that the snapshot has open in this process: a forked child opens others when it needs them.
    pub(super) fn own_files(&self) -> [FileId; 3] {
        let pagemap = (self.process == std::process::id()).then(|| self.pagemap.id()).flatten();
        let kept = match &self.reach {
            Reach::Whole(whole) => whole.kept.as_ref().and_then(KeptMaps::id),
            Reach::Ranges => None,
        };
        [self.extent.id(), pagemap.unwrap_or_default(), kept.unwrap_or_default()]
    }
}

/// Returns a pointer to `address`, which is in a mapping of this process.
pub(super) fn pointer(address: usize) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(address)
}

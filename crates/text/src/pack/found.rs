//! What is found at an address.

use std::fmt;
use std::ops::Range;

use super::contents::Meta;
use super::directory::ReadGuard;
use super::group::{Group, Ownership};
use super::parts::{Part, Parts};
use crate::address::CodeAddress;

/// The program or data that covers an address, as [`Packs::lookup`](super::Packs::lookup) finds it.
///
/// While it lives no retired program is reclaimed; drop it before leaving a signal handler by `longjmp`.
pub struct Found<'a> {
    /// Valid as long as the guard, though its type says as long as the packs.
    meta: &'a Meta,
    offset: u32,
    _guard: ReadGuard<'a>,
}

impl<'a> Found<'a> {
    /// Wraps `meta`, which was found under `guard`.
    pub(super) fn new(meta: &'a Meta, offset: u32, guard: ReadGuard<'a>) -> Self {
        Self { meta, offset, _guard: guard }
    }

    /// Returns the program's first address.
    pub fn address(&self) -> CodeAddress {
        self.meta.address()
    }

    /// Returns the length of the program in bytes.
    pub fn len(&self) -> usize {
        self.meta.len as usize
    }

    /// Returns false: there are no empty programs.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the program's name, empty if it has none.
    pub fn name(&self) -> &str {
        self.meta.name()
    }

    /// Returns the distance of the looked-up address from the program's start, in bytes.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Returns what it is: code, or which kind of data.
    pub fn part(&self) -> Part {
        self.meta.pack().kind.part()
    }

    /// Returns where all parts of its [allocation](super::Allocation) are, if it is part of one; empty ranges for parts
    /// that it does not have.
    pub fn parts(&self) -> Option<&Parts<Range<usize>>> {
        self.group().map(Group::ranges)
    }

    /// Returns who owns it. A program or data without an allocation has a handle, as long as it is not retired.
    pub fn ownership(&self) -> Ownership {
        self.group().map_or(Ownership::Handle, Group::ownership)
    }

    pub(super) fn group(&self) -> Option<&Group> {
        self.meta.extras.as_ref()?.group.as_deref()
    }

    /// Returns where to continue if the instruction at the address has faulted, if the program tells.
    pub fn landing(&self) -> Option<CodeAddress> {
        self.meta.landing(self.offset)
    }
}

impl fmt::Debug for Found<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found")
            .field("name", &self.name())
            .field("address", &self.address())
            .field("offset", &self.offset)
            .finish()
    }
}

//! What is found at an address.

use std::fmt;

use super::contents::Meta;
use super::directory::ReadGuard;
use crate::address::CodeAddress;

/// The program or data that covers an address, as [`Packs::lookup`](super::Packs::lookup) finds it.
///
/// While it lives no program that was retired is reclaimed; drop it before leaving a signal handler by `longjmp`.
pub struct Found<'a> {
    /// Behind the guard, though written as if it lived as long as the packs.
    meta: &'a Meta,
    offset: u32,
    _guard: ReadGuard<'a>,
}

impl<'a> Found<'a> {
    /// `guard` is the one under which `meta` was found.
    pub(super) fn new(meta: &'a Meta, offset: u32, guard: ReadGuard<'a>) -> Self {
        Self { meta, offset, _guard: guard }
    }

    /// Where the program starts.
    pub fn address(&self) -> CodeAddress {
        self.meta.address()
    }

    /// Length of the program in bytes.
    pub fn len(&self) -> usize {
        self.meta.len as usize
    }

    /// Always false: there are no empty programs.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The program's name, empty if it has none.
    pub fn name(&self) -> &str {
        self.meta.name()
    }

    /// The address that was looked up, in bytes from the program's start.
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// Where to go on if the instruction at the address has faulted, if the program says.
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

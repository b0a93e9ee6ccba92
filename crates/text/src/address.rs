//! Addresses of code.

use std::fmt;

/// An address in an executable view of a pack: where code runs, never where it is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CodeAddress(usize);

impl CodeAddress {
    /// Returns the address as a number.
    pub const fn new(address: usize) -> Self {
        Self(address)
    }

    /// Returns the number.
    pub const fn get(self) -> usize {
        self.0
    }

    /// Returns the address as a pointer; reading through it is the caller's claim that the code is still there.
    pub fn as_ptr(self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.0)
    }

    /// Returns the address `bytes` further on.
    #[must_use]
    pub const fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for CodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for CodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CodeAddress({:#x})", self.0)
    }
}

impl fmt::LowerHex for CodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

//! Accesses: what an instruction does, and in which mode.

use crate::attributes::{Attributes, Privilege, Rights};

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AccessKind {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

/// An access to memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// The kind.
    pub kind: AccessKind,
    /// The mode.
    pub from: Privilege,
}

impl Access {
    /// A load by user mode.
    pub const USER_READ: Self = Self { kind: AccessKind::Read, from: Privilege::User };
    /// A store by user mode.
    pub const USER_WRITE: Self = Self { kind: AccessKind::Write, from: Privilege::User };
    /// An instruction fetch by user mode.
    pub const USER_EXECUTE: Self = Self { kind: AccessKind::Execute, from: Privilege::User };
    /// A load by the kernel.
    pub const KERNEL_READ: Self = Self { kind: AccessKind::Read, from: Privilege::Kernel };
    /// A store by the kernel.
    pub const KERNEL_WRITE: Self = Self { kind: AccessKind::Write, from: Privilege::Kernel };
    /// An instruction fetch by the kernel.
    pub const KERNEL_EXECUTE: Self = Self { kind: AccessKind::Execute, from: Privilege::Kernel };

    /// Returns the right that the access needs.
    #[inline]
    pub const fn right(self) -> Rights {
        match self.kind {
            AccessKind::Read => Rights::READ,
            AccessKind::Write => Rights::WRITE,
            AccessKind::Execute => Rights::EXECUTE,
        }
    }

    /// Returns whether a page with these attributes allows the access. User mode reaches no page of the kernel. The
    /// kernel reads and writes user mode's pages, if the CPU allows it at that moment (SMAP, PAN and SUM are the
    /// kernel's matter), and never runs them (SMEP; PXN; the U bit of RISC-V).
    #[inline]
    pub fn is_allowed_by(self, attributes: &Attributes) -> bool {
        let mode = match (self.from, attributes.privilege) {
            (Privilege::User, Privilege::Kernel) => false,
            (Privilege::Kernel, Privilege::User) => self.kind != AccessKind::Execute,
            (Privilege::User, Privilege::User) | (Privilege::Kernel, Privilege::Kernel) => true,
        };
        mode && attributes.rights.contains(self.right())
    }
}

//! What an entry allows, in terms common to all formats.

use bitflags::bitflags;

bitflags! {
    /// What may be done with a page. Present formats cannot express writing or executing without reading, so that a set
    /// without [`READ`](Self::READ) is only valid if it is empty: then the page keeps its frame, and every access
    /// faults.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Rights: u8 {
        /// Loads.
        const READ = 1;
        /// Stores.
        const WRITE = 2;
        /// Instruction fetch.
        const EXECUTE = 4;
    }
}

impl Rights {
    /// Returns whether every format can express the set.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.is_empty() || self.contains(Self::READ)
    }
}

/// Who may use a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Privilege {
    /// Only the kernel (ring 0, EL1, S-mode).
    Kernel,
    /// User mode, too (ring 3, EL0, U-mode).
    User,
}

/// Whether a translation survives a switch of address spaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// It belongs to one address space.
    Local,
    /// It is the same in all address spaces (G, not nG).
    Global,
}

/// What happens to a page when a space that maps it is forked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// Parent and child each get their own: the first to write copies it.
    Private,
    /// Parent and child write to the same page.
    Shared,
}

/// Index of the memory type in the CPU's own table: PAT (Intel SDM volume 3, 13.12), MAIR_EL1 (Arm ARM D19.2.102), or
/// the PBMT field of RISC-V's Svpbmt. 0 is ordinary memory after reset on x86-64 and RISC-V, and whatever MAIR says on
/// AArch64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct MemoryType(pub u8);

/// Everything about a page but its address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Attributes {
    /// What may be done with it.
    pub rights: Rights,
    /// Who may use it.
    pub privilege: Privilege,
    /// Whether translations survive a switch of spaces.
    pub scope: Scope,
    /// What happens to it in a fork.
    pub sharing: Sharing,
    /// The memory type.
    pub memory: MemoryType,
}

impl Attributes {
    /// Returns attributes of ordinary user memory.
    pub const fn user(rights: Rights) -> Self {
        Self {
            rights,
            privilege: Privilege::User,
            scope: Scope::Local,
            sharing: Sharing::Private,
            memory: MemoryType(0),
        }
    }

    /// Returns attributes of ordinary kernel memory.
    pub const fn kernel(rights: Rights) -> Self {
        Self {
            rights,
            privilege: Privilege::Kernel,
            scope: Scope::Global,
            sharing: Sharing::Shared,
            memory: MemoryType(0),
        }
    }
}

/// Whether the hardware lets stores pass.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Stores {
    /// As the rights say.
    Pass,
    /// They fault, whatever the rights say: the page or the table is shared and must be copied first.
    Fault,
}

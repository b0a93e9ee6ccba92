//! What an entry allows, in terms that every format knows.

use bitflags::bitflags;

bitflags! {
    /// What may be done with a page. Formats of today cannot express writing or executing without reading, so that a
    /// set without [`READ`](Self::READ) is only valid if it is empty: the page keeps its frame, and every access
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
    /// Whether every format can express the set.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.is_empty() || self.contains(Self::READ)
    }
}

/// Who may use a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Privilege {
    /// The kernel alone (ring 0, EL1, S-mode).
    Kernel,
    /// User mode too (ring 3, EL0, U-mode).
    User,
}

/// Whether a translation outlives a switch of address spaces.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scope {
    /// It belongs to one address space.
    Local,
    /// It is the same in all of them (G, not nG).
    Global,
}

/// What becomes of a page when a space that maps it is forked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// Parent and child each have their own: whoever writes first copies it.
    Private,
    /// Parent and child write to the same.
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
    /// Who may do it.
    pub privilege: Privilege,
    /// How long translations live.
    pub scope: Scope,
    /// Whose it is after a fork.
    pub sharing: Sharing,
    /// How memory behaves.
    pub memory: MemoryType,
}

impl Attributes {
    /// Ordinary user memory.
    pub const fn user(rights: Rights) -> Self {
        Self {
            rights,
            privilege: Privilege::User,
            scope: Scope::Local,
            sharing: Sharing::Private,
            memory: MemoryType(0),
        }
    }

    /// Ordinary kernel memory.
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

//! Why an operation was refused. After an error the tables translate as before.

use core::ops::Range;

use crate::address::{Frame, LAST_PAGE, PageSize, VirtAddr};
use crate::attributes::Rights;

/// A range of virtual addresses is wrong.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// It is empty, or its end lies before its start.
    #[error("the range {0:?} is empty")]
    Empty(Range<VirtAddr>),
    /// It contains the last page of all addresses. The address behind that page is no 64-bit number, so that no
    /// operation takes it, in any format.
    #[error("the range from {start} on has the last page of all, which ends at 2^64; end it at {LAST_PAGE}")]
    LastPage {
        /// Its start.
        start: VirtAddr,
    },
    /// It is not whole pages.
    #[error("the range {0:?} does not start and end at multiples of 4096")]
    Unaligned(Range<VirtAddr>),
    /// The format cannot translate it.
    #[error("the range {range:?} is not canonical for {format}")]
    NotCanonical {
        /// The range asked for.
        range: Range<VirtAddr>,
        /// The format's name.
        format: &'static str,
    },
}

/// Why nothing was mapped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// The addresses are wrong.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// There is no memory for tables.
    #[error(transparent)]
    NoMemory(#[from] NoTables),
    /// Something is mapped there; unmap it first.
    #[error("{address} is mapped already, by {size:?} pages")]
    Mapped {
        /// The first such address.
        address: VirtAddr,
        /// The size of the page that it is in.
        size: PageSize,
    },
    /// Entries of this format cannot hold the physical addresses, or the machine does not have them.
    #[error(
        "frames from {first} for {bytes:#x} bytes end above {end:#x}, where those end that this machine and {format} \
         have"
    )]
    Physical {
        /// The first frame.
        first: Frame,
        /// Their length in bytes.
        bytes: u64,
        /// The limit.
        end: u64,
        /// The format's name.
        format: &'static str,
    },
    /// No format can express the rights.
    #[error("rights {0:?} without READ cannot be expressed")]
    Rights(Rights),
    /// Entries of this format cannot name the memory type.
    #[error("memory type {memory} cannot be named by entries of {format}, which has {types}, from 0 on")]
    MemoryType {
        /// The type asked for.
        memory: u8,
        /// The number of types.
        types: u8,
        /// The format's name.
        format: &'static str,
    },
    /// The pages are global and private: after a fork, a write copies such a page, and CPUs would use one space's
    /// translation in the other.
    #[error("frames from {first} cannot be mapped as global and private; map them as shared, or as local")]
    PrivateGlobal {
        /// The first frame.
        first: Frame,
    },
    /// The addresses are not aligned to the size asked for.
    #[error(
        "{address} and {frame} cannot be mapped by {size:?} pages: one of them, or the length, is no multiple of the \
         size"
    )]
    Size {
        /// The first address.
        address: VirtAddr,
        /// The first frame.
        frame: Frame,
        /// The size asked for.
        size: PageSize,
    },
}

/// Why nothing was changed, for operations on what is mapped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    /// The addresses are wrong.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// There is no memory for tables.
    #[error(transparent)]
    NoMemory(#[from] NoTables),
    /// No format can express the rights.
    #[error("rights {0:?} without READ cannot be expressed")]
    Rights(Rights),
    /// A page belongs to the kernel: the calling program may run through it.
    #[error("{address} is the kernel's; if nobody uses it, `..._kernel` operations change it")]
    Kernel {
        /// The first such address.
        address: VirtAddr,
    },
    /// A page is pinned: a device may be writing to it.
    #[error("{address} is pinned; unpin it first")]
    Pinned {
        /// The first such address.
        address: VirtAddr,
    },
    /// The destination of a move is in use.
    #[error("{address}, where pages are to move, is mapped already")]
    Mapped {
        /// The first such address.
        address: VirtAddr,
    },
    /// Nothing is mapped where something must be.
    #[error("{address} is not mapped")]
    NotMapped {
        /// The first such address.
        address: VirtAddr,
    },
    /// Source and destination overlap.
    #[error("{from:?} cannot move to {to}, which overlaps it")]
    Overlap {
        /// The source.
        from: Range<VirtAddr>,
        /// The destination.
        to: VirtAddr,
    },
    /// Source and destination differ in their offset within large pages, and a page there is large.
    #[error("the large page at {address} cannot move to {to}, which is not aligned to its size; split it first")]
    Misaligned {
        /// The page.
        address: VirtAddr,
        /// Its destination.
        to: VirtAddr,
    },
    /// The range has copies on several nodes.
    #[error("{address} is replicated; drop the replicas first")]
    Replicated {
        /// The first such address.
        address: VirtAddr,
    },
}

/// The machine has no memory for the tables that an operation needs. An operation reserves all before it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{needed} tables are needed, and only {got} could be allocated")]
pub struct NoTables {
    /// Maximum number of tables that the operation needs.
    pub needed: usize,
    /// The number that could be allocated.
    pub got: usize,
}

/// Why a space was not forked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ForkError {
    /// There is no memory for the child's own tables.
    #[error(transparent)]
    NoMemory(#[from] NoTables),
    /// A private page that is pinned or the kernel's data must be copied at once, but there is no memory for it.
    #[error("the page at {address}, pinned or the kernel's data, must be copied, and there is no memory for it")]
    NoPage {
        /// Its address.
        address: VirtAddr,
    },
}

/// Why a fault was not resolved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultError {
    /// There is no memory for tables.
    #[error(transparent)]
    NoMemory(#[from] NoTables),
    /// There is no memory for the copy of a page.
    #[error("the page at {address} must be copied, and there is no memory for it")]
    NoPage {
        /// Its address.
        address: VirtAddr,
    },
}

/// Why a page was not pinned or unpinned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// Nothing is mapped there.
    #[error("{address} is not mapped")]
    NotMapped {
        /// The address asked for.
        address: VirtAddr,
    },
    /// The page is not pinned by this space.
    #[error("{address} is not pinned")]
    NotPinned {
        /// The address asked for.
        address: VirtAddr,
    },
    /// The page could not be made the space's own.
    #[error(transparent)]
    Fault(#[from] FaultError),
}

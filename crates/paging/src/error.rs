//! Why an operation was refused. After an error the tables translate as before.

use core::ops::Range;

use crate::address::{Frame, LAST_PAGE, PageSize, VirtAddr};
use crate::attributes::Rights;

/// Something is wrong with a range of virtual addresses.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// Nothing to do, or the end lies before the start.
    #[error("the range {0:?} is empty")]
    Empty(Range<VirtAddr>),
    /// The last page of all addresses would be in it, and the first address behind that is no number: no operation
    /// takes that page, in any format.
    #[error("the range from {start} on has the last page of all, which ends at 2^64; end it at {LAST_PAGE}")]
    LastPage {
        /// Where it starts.
        start: VirtAddr,
    },
    /// Not whole pages.
    #[error("the range {0:?} does not start and end at multiples of 4096")]
    Unaligned(Range<VirtAddr>),
    /// The format cannot translate it.
    #[error("the range {range:?} is not canonical for {format}")]
    NotCanonical {
        /// What was asked for.
        range: Range<VirtAddr>,
        /// The format's name.
        format: &'static str,
    },
}

/// Why nothing was mapped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapError {
    /// Wrong addresses.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// No memory for tables.
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
    /// Physical addresses that entries of this format cannot hold, or that the machine does not have.
    #[error(
        "frames from {first} for {bytes:#x} bytes end above {end:#x}, where those end that this machine and {format} \
         have"
    )]
    Physical {
        /// The first frame.
        first: Frame,
        /// How many bytes.
        bytes: u64,
        /// The limit.
        end: u64,
        /// The format's name.
        format: &'static str,
    },
    /// Rights that no format can express.
    #[error("rights {0:?} without READ cannot be expressed")]
    Rights(Rights),
    /// A memory type that entries of this format cannot name.
    #[error("memory type {memory} cannot be named by entries of {format}, which has {types}, from 0 on")]
    MemoryType {
        /// What was asked for.
        memory: u8,
        /// How many there are.
        types: u8,
        /// The format's name.
        format: &'static str,
    },
    /// Pages that are global and private: a fork copies such a page when it is written, and CPUs would use one space's
    /// translation in the other.
    #[error("frames from {first} cannot be mapped as global and private; map them as shared, or as local")]
    PrivateGlobal {
        /// The first frame.
        first: Frame,
    },
    /// A size was demanded to which addresses are not aligned.
    #[error(
        "{address} and {frame} cannot be mapped by {size:?} pages: one of them, or the length, is no multiple of the \
         size"
    )]
    Size {
        /// The first address.
        address: VirtAddr,
        /// The first frame.
        frame: Frame,
        /// What was demanded.
        size: PageSize,
    },
}

/// Why nothing was changed, for operations on what is mapped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    /// Wrong addresses.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// No memory for tables.
    #[error(transparent)]
    NoMemory(#[from] NoTables),
    /// Rights that no format can express.
    #[error("rights {0:?} without READ cannot be expressed")]
    Rights(Rights),
    /// A page is the kernel's: the program that asks may run by it.
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

/// The machine has no memory for the tables that an operation needs. All are reserved before it starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{needed} tables are needed, and only {got} could be allocated")]
pub struct NoTables {
    /// Tables that the operation needs at most.
    pub needed: usize,
    /// What there was.
    pub got: usize,
}

/// Why a space was not forked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ForkError {
    /// No memory for the child's own tables.
    #[error(transparent)]
    NoMemory(#[from] NoTables),
    /// A pinned page must be copied at once, and there is no memory for the copy.
    #[error("the pinned page at {address} must be copied, and there is no memory for it")]
    NoPage {
        /// Where it is mapped.
        address: VirtAddr,
    },
}

/// Why a fault was not resolved.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FaultError {
    /// No memory for tables.
    #[error(transparent)]
    NoMemory(#[from] NoTables),
    /// No memory for the copy of a page.
    #[error("the page at {address} must be copied, and there is no memory for it")]
    NoPage {
        /// Where it is mapped.
        address: VirtAddr,
    },
}

/// Why a page was not pinned or unpinned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// Nothing is mapped there.
    #[error("{address} is not mapped")]
    NotMapped {
        /// What was asked for.
        address: VirtAddr,
    },
    /// The page is not pinned by this space.
    #[error("{address} is not pinned")]
    NotPinned {
        /// What was asked for.
        address: VirtAddr,
    },
    /// The page could not be made the space's own.
    #[error(transparent)]
    Fault(#[from] FaultError),
}

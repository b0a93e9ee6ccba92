//! The errors of packs, by phase.

use palimpsest_sys::{Causes, CoreSyncSetupError, MapError, ProcMemError, SyncError, WitnessError};

use super::backing::{Backing, BackingError};
use super::fault::Fault;
use super::parts::Part;
use super::policy::WriteView;
use super::{MAX_ALIGN, PACK};
use crate::address::CodeAddress;
use crate::observe::Function;

/// Why packs could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The region is too short, or longer than direct branches reach.
    #[error(
        "a region of {len} bytes: it must have {PACK} bytes or more, and at most {max}, the reach of a direct branch; \
         open several Packs for more"
    )]
    RegionLength {
        /// The length asked for, in bytes.
        len: usize,
        /// The largest length, in bytes.
        max: usize,
    },
    /// There is not enough address space.
    #[error(
        "cannot reserve {len} bytes of address space for packs; ask for less with PacksBuilder::region_len, or do \
         without PacksBuilder::near"
    )]
    Reserve {
        /// The smallest length that was tried, in bytes.
        len: usize,
        /// The reason.
        #[source]
        source: MapError,
    },
    /// The backing that was asked for does not work here.
    #[error("packs cannot be backed by {backing} here; leave the choice to Palimpsest, or see `palimpsest doctor`")]
    Backing {
        /// The backing.
        backing: Backing,
        /// The reason.
        #[source]
        source: BackingError,
    },
    /// The chosen backing cannot have the chosen write view.
    #[error(
        "packs of {backing} cannot have the write view {write_view:?}; only proc-mem has none, and always: leave one \
         of the two to Palimpsest"
    )]
    WriteView {
        /// The backing.
        backing: Backing,
        /// The write view.
        write_view: WriteView,
    },
    /// No backing works here.
    #[error("no backing for packs works here ({}); see `palimpsest doctor`", list(.refused))]
    NoBacking {
        /// Every backing, with the reason.
        refused: Vec<(Backing, BackingError)>,
    },
    /// Neither way of core synchronisation works.
    #[error("cores cannot be synchronised")]
    CoreSync(#[from] CoreSyncSetupError),
    /// Forked children cannot be watched.
    #[error("forked children cannot be watched; ForkPolicy::Omit does without")]
    Witness(#[from] WitnessError),
}

fn list(refused: &[(Backing, BackingError)]) -> String {
    let lines: Vec<_> = refused.iter().map(|(backing, error)| format!("{backing}: {}", Causes(error))).collect();
    lines.join("; ")
}

/// Why there is no place for a program.
#[derive(Debug, thiserror::Error)]
pub enum StageError {
    /// A program without bytes.
    #[error("a program of 0 bytes cannot be placed")]
    Empty,
    /// The alignment is no power of two, or too large.
    #[error("an alignment of {align} bytes: it must be a power of two of at most {MAX_ALIGN}")]
    Align {
        /// The alignment asked for, in bytes.
        align: usize,
    },
    /// Longer than the whole region.
    #[error(
        "a program of {len} bytes does not fit a region of {region} bytes; \
         open Packs with a larger PacksBuilder::region_len"
    )]
    TooLong {
        /// Length of the program, in bytes.
        len: usize,
        /// Length of the region, in bytes.
        region: usize,
    },
    /// The region is full.
    #[error(
        "no room for {len} bytes in one piece in a region of {region} bytes, of which {retired} are held by retired \
         programs; drop programs and reclaim, or open Packs with a larger PacksBuilder::region_len"
    )]
    Full {
        /// Length of the program, in bytes.
        len: usize,
        /// Length of the region, in bytes.
        region: usize,
        /// Bytes of programs that are retired and not yet reclaimed.
        retired: usize,
    },
    /// There is no memory for another pack.
    #[error("no memory for another pack; the {packs} packs that there are stay usable")]
    Grow {
        /// The number of existing packs.
        packs: usize,
        /// The reason.
        #[source]
        source: BackingError,
    },
    /// This process was forked from the one that opened the packs, and cannot open its own.
    #[error("a forked child could not open packs of its own")]
    Child(#[source] Box<OpenError>),
}

/// Why there is no place for an allocation.
#[derive(Debug, thiserror::Error)]
pub enum AllocateError {
    /// All parts have 0 bytes.
    #[error("an allocation of 0 bytes: give one of its parts a length")]
    Nothing,
    /// There is no place for a part.
    #[error("no place for the part {part:?}, of {len} bytes")]
    Part {
        /// The part.
        part: Part,
        /// Its length, in bytes.
        len: usize,
        /// Why not.
        #[source]
        source: StageError,
    },
    /// The packs cannot be written at all times.
    #[error(
        "packs of {backing} with the write view {write_view:?} cannot be written in place; open them with \
         WriteView::Standing, or write to a private image"
    )]
    InPlace {
        /// What the packs are made of.
        backing: Backing,
        /// When they can be written.
        write_view: WriteView,
    },
}

/// Why an allocation was not shrunk. It is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShrinkError {
    /// The allocation has no such part.
    #[error("the allocation has no part {part:?}")]
    NoPart {
        /// The part.
        part: Part,
    },
    /// A part cannot become longer, or have no bytes.
    #[error("the part {part:?} has {len} bytes and cannot have {wanted}: 1 to {len} are possible")]
    Length {
        /// The part.
        part: Part,
        /// Its length, in bytes.
        len: usize,
        /// The length asked for, in bytes.
        wanted: usize,
    },
    /// The place is the parent's.
    #[error(transparent)]
    Forked(#[from] ForkedError),
}

/// A forked child cannot write to places of its parent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the process was forked after {address} was allocated in place; allocate it again in the child")]
pub struct ForkedError {
    /// The place.
    pub address: CodeAddress,
}

/// Why nothing was released.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    /// There is nothing at the address.
    #[error("nothing is at {address:#x}: it was released and reclaimed, is of other packs, or never was allocated")]
    NotFound {
        /// The address.
        address: usize,
    },
    /// The part at the address begins elsewhere.
    #[error("{address:#x} is inside what begins at {start}; release it by that address")]
    Inside {
        /// The address.
        address: usize,
        /// Where the part begins.
        start: CodeAddress,
    },
    /// A handle owns it.
    #[error("what is at {address:#x} is held by a handle (Program, Data or Allocated): drop that")]
    Held {
        /// The address.
        address: usize,
    },
    /// It was released before.
    #[error("what is at {address:#x} was released before, and is not yet reclaimed")]
    Released {
        /// The address.
        address: usize,
    },
}

/// A function was said to be where there is no code.
#[derive(Debug, thiserror::Error)]
#[error(
    "function `{}` of {} bytes at offset {} is not inside the code, which has {code_len} bytes",
    function.name,
    function.len,
    function.offset
)]
pub struct FunctionError {
    /// The function.
    pub function: Function,
    /// Bytes of the allocation's code.
    pub code_len: usize,
}

/// Why a fault table was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// An offset or a landing is not in the program.
    #[error(
        "fault at offset {} with landing {} is outside the program, which has {len} bytes",
        fault.offset,
        fault.landing
    )]
    Outside {
        /// The entry.
        fault: Fault,
        /// Length of the program, in bytes.
        len: usize,
    },
    /// One instruction has two landings.
    #[error(
        "the fault at offset {offset} has two landings, {} and {}; give each instruction one",
        landings[0],
        landings[1]
    )]
    Twice {
        /// The instruction.
        offset: u32,
        /// The two landings.
        landings: [u32; 2],
    },
}

/// Why bytes could not be stored in a pack.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The kernel did not store them.
    #[error(transparent)]
    ProcMem(#[from] ProcMemError),
    /// The write view could not be opened for the copy, or not be closed after it.
    #[error(
        "the write view of a pack could not be opened or closed; does a seccomp filter forbid mprotect? \
         WriteView::Standing needs none"
    )]
    Window(#[source] MapError),
}

/// Why a staged program was not put in place. Its memory is filled with traps and free again.
#[derive(Debug, thiserror::Error)]
pub enum FinalizeError {
    /// The code could not be written.
    #[error("the code could not be written")]
    Write(#[from] WriteError),
    /// Other cores could not be made to fetch the new code.
    #[error("the code was withdrawn, since other cores could not be synchronised")]
    Sync(#[from] SyncError),
    /// The process was forked between `stage` and `finalize`; the child cannot write to its parent's packs.
    #[error("the process was forked after {address} was staged; stage it again in the child")]
    Forked {
        /// The program's address.
        address: CodeAddress,
    },
}

/// Why a program could not be loaded in one step.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no place for it.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// It could not be put in place.
    #[error(transparent)]
    Finalize(#[from] FinalizeError),
}

/// Why retired memory was not reclaimed. It stays retired, and the next call tries again.
#[derive(Debug, thiserror::Error)]
pub enum ReclaimError {
    /// Cores could not be synchronised, so that a thread might be inside unnoticed.
    #[error("retired programs cannot be reclaimed while cores cannot be synchronised")]
    Sync(#[from] SyncError),
    /// Forks cannot be watched, so that a child might be inside unnoticed.
    #[error("retired programs cannot be reclaimed while forks cannot be watched")]
    Witness(#[from] WitnessError),
    /// Traps could not be written.
    #[error("traps could not be written over retired programs")]
    Fill(#[from] WriteError),
}

/// An entry point is not in its program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("offset {offset} is outside the program at {address}, which has {len} bytes")]
pub struct OutsideProgram {
    /// The offset asked for, in bytes from the program's start.
    pub offset: usize,
    /// Length of the program, in bytes.
    pub len: usize,
    /// Where the program starts.
    pub address: CodeAddress,
}

//! The errors of poking.

use palimpsest_sys::NotLoaded;
use palimpsest_sys::arch::INSTRUCTION_ALIGN;
use palimpsest_sys::threads::hold::StopError;
use palimpsest_sys::trap::TrapError;
use palimpsest_sys::{CoreSyncSetupError, CreateError, MapError, SyncError, TextWriteError};

use super::arch::Refusal;
use super::site::{Code, MAX_SITE};
use crate::address::CodeAddress;
use crate::pack::{OutsideProgram, WriteError};

/// Why a site cannot be part of a batch. The batch is as before.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// The old and the new code differ in length.
    #[error("a site of {old} bytes cannot become {new} bytes; fill the rest with a NOP")]
    Lengths {
        /// Length of the old code, in bytes.
        old: usize,
        /// Length of the new code, in bytes.
        new: usize,
    },
    /// The site has no bytes, or more than an instruction.
    #[error("a site of {len} bytes: one instruction has 1 to {MAX_SITE}")]
    Length {
        /// Length of the site, in bytes.
        len: usize,
    },
    /// Not in the program.
    #[error(transparent)]
    Outside(#[from] OutsideProgram),
    /// The architecture does not let the instruction be changed.
    #[error("{old} at {address:#x} cannot become {new} while other cores may run it ({refusal:?})")]
    Refused {
        /// The site's address.
        address: usize,
        /// The bytes that must stand there before.
        old: Code,
        /// The bytes that stand there afterwards.
        new: Code,
        /// The reason.
        refusal: Refusal,
    },
}

/// Why a batch was not applied. Nothing has changed unless the variant says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum PokeError {
    /// Two sites of the batch overlap.
    #[error("the sites at {first:#x} and {second:#x} overlap; apply one after the other, in two batches")]
    Overlap {
        /// The lower site.
        first: usize,
        /// The higher site.
        second: usize,
    },
    /// The write view of a pack could not be opened.
    #[error(transparent)]
    View(#[from] WriteError),
    /// The code is not what the batch expects.
    #[error("{address:#x} holds {found} and not {expected}; was it poked before, or is there a breakpoint?")]
    Mismatch {
        /// The site's address.
        address: usize,
        /// The expected bytes.
        expected: Code,
        /// The bytes found.
        found: Code,
    },
    /// The program belongs to the process that this one was forked from.
    #[error("the program at {address} is shared with the process that this one was forked from; load it again here")]
    Inherited {
        /// The program's address.
        address: CodeAddress,
    },
    /// Traps were asked for, but the new code cannot be emulated.
    #[error("{new} at {address:#x} is no NOP, JMP or Jcc, which traps can stand for; leave the choice to Palimpsest")]
    NotEmulated {
        /// The site's address.
        address: usize,
        /// The new bytes.
        new: Code,
    },
    /// Single stores were asked for, but the site does not fit one.
    #[error(
        "the {len} bytes at {address:#x} do not lie in one aligned word of a program; \
         apply the batch by traps, or align the site"
    )]
    NotSingleStore {
        /// The site's address.
        address: usize,
        /// Length of the site, in bytes.
        len: usize,
    },
    /// Traps were asked for, but this architecture does not change code by traps.
    #[error("code is not changed by traps on this architecture; leave the choice to Palimpsest")]
    NoTraps,
    /// Detours were asked for, which only static calls can use.
    #[error("only static calls are changed by detours; leave the choice to Palimpsest")]
    NoDetours,
    /// Other threads cannot be held still, which sites that fit no single store need.
    #[error("the other threads cannot be held; align the sites such that each lies in one word of a program")]
    Hold(#[source] StopError),
    /// A trap would end a thread.
    #[error("thread {tid} blocks SIGTRAP and would die of a trap; unblock it there, or leave the choice to Palimpsest")]
    Blocked {
        /// The thread's id.
        tid: u32,
    },
    /// The threads' signal masks cannot be read.
    #[error("cannot find out whether a thread blocks SIGTRAP; is /proc mounted?")]
    Threads(#[source] std::io::Error),
    /// The batch has too many sites.
    #[error("a batch of {sites} sites; the most is {max}, apply several")]
    TooMany {
        /// Sites in the batch.
        sites: usize,
        /// The maximum.
        max: usize,
    },
    /// Core synchronisation is not available.
    #[error("cores cannot be synchronised")]
    CoreSync(#[from] CoreSyncSetupError),
    /// There is no memory for the table that handlers read.
    #[error("no memory for the table of sites")]
    Table(#[from] MapError),
    /// There is no memory for the table that handlers of forked children read.
    #[error("no memory for the shared table of sites")]
    SharedTable(#[from] CreateError),
    /// The handler for SIGTRAP could not be installed.
    #[error(transparent)]
    Trap(#[from] TrapError),
    /// The handlers could be unloaded.
    #[error(transparent)]
    Unloadable(#[from] NotLoaded),
    /// Code could not be written.
    #[error("code could not be written")]
    Write(#[source] Box<TextWriteError>),
    /// Cores could not be synchronised; nothing has changed.
    #[error("cores could not be synchronised")]
    Sync(#[from] SyncError),
    /// All sites are new, but some core may still run old code for a while.
    #[error("the code is changed, but other cores may run the old code for a while")]
    Unsynced(#[source] Box<PokeError>),
    /// Code could not be written, nor could what had been written be taken back: some sites are new, the others old.
    #[error("{changed} of {sites} sites are changed: the others could not be written, nor these taken back")]
    Partial {
        /// Sites that hold the new code.
        changed: usize,
        /// Sites in the batch.
        sites: usize,
        /// Why a site could not be written.
        #[source]
        source: Box<PokeError>,
    },
    /// A batch failed half-way. Its sites behave as the new code says, through traps, and no further batch is possible.
    #[error("a batch of this process has failed half-way; its sites work by traps from now on, and none can be poked")]
    Stuck(#[source] Option<Box<PokeError>>),
}

impl From<TextWriteError> for PokeError {
    fn from(error: TextWriteError) -> Self {
        Self::Write(Box::new(error))
    }
}

/// Why code that nobody runs could not be written.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Not in the program.
    #[error(transparent)]
    Outside(#[from] OutsideProgram),
    /// The range does not consist of whole instructions.
    #[error("{len} bytes at {address:#x} are not whole instructions, which start at multiples of {INSTRUCTION_ALIGN}")]
    Misaligned {
        /// The first address.
        address: usize,
        /// The number of bytes.
        len: usize,
    },
    /// The instruction does not fit a whole number of times.
    #[error("{len} bytes cannot be filled with an instruction of {instruction}; fill a multiple of its length")]
    Pattern {
        /// Bytes to fill.
        len: usize,
        /// Length of the instruction, in bytes.
        instruction: usize,
    },
    /// The code could not be written, or cores could not be synchronised afterwards.
    #[error(transparent)]
    Poke(#[from] PokeError),
}

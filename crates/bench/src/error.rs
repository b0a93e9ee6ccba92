//! Errors of placing a program, and of page tables.

use std::io;

use palimpsest_paging::{
    ChangeError, CursorMapError, FaultError, ForkError, MapError, NoTables, RangeError, SeekError,
};
use palimpsest_sys::{CoreSyncSetupError, SyncError};
use palimpsest_text::key::SwitchError;
use palimpsest_text::poke::{AddError, PokeError};
use palimpsest_text::{FinalizeError, LoadError, OpenError, ReclaimError, StageError};

/// Why one program could not be placed, made executable, changed or freed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The programs to measure were not compiled.
    #[error("cannot compile the programs to measure: {reason}")]
    Compile {
        /// What the compiler said.
        reason: String,
    },
    /// No memory for the code.
    #[error("cannot map {len} bytes for code (`vm.max_map_count` limits the number of mappings)")]
    Map {
        /// Bytes asked for.
        len: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Written code did not become executable.
    #[error("cannot make {len} bytes of code executable (`vm.max_map_count` limits the number of mappings)")]
    Protect {
        /// Bytes asked for.
        len: usize,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// No packs.
    #[error("packs cannot be opened")]
    Open(#[from] OpenError),
    /// The packs did not take the code.
    #[error("the packs did not take a program")]
    Load(#[from] LoadError),
    /// The packs had no place for the code.
    #[error("the packs have no place for a program")]
    Stage(#[from] StageError),
    /// Staged programs did not become executable.
    #[error("staged programs did not become executable")]
    Finalize(#[from] FinalizeError),
    /// Retired programs could not be reclaimed.
    #[error("the packs cannot reclaim freed programs")]
    Reclaim(#[from] ReclaimError),
    /// Cores cannot be synchronised at all.
    #[error("cores cannot be synchronised here")]
    CoreSync(#[from] CoreSyncSetupError),
    /// One synchronisation failed.
    #[error("cores were not synchronised")]
    Sync(#[from] SyncError),
    /// A batch does not accept a site.
    #[error("a batch does not take a site")]
    Add(#[from] AddError),
    /// A batch of changes failed.
    #[error("the sites of a batch were not changed")]
    Poke(#[from] PokeError),
    /// A static key was not switched.
    #[error("a static key was not switched")]
    Switch(#[from] SwitchError),
    /// The kernel refused a handler.
    #[error("cannot handle signal {signal}")]
    Signal {
        /// Its number.
        signal: i32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// No batch could be stopped while all its sites were traps.
    #[error("no batch of {sites} sites was stopped with all traps in place, in {attempts} attempts")]
    NotHeld {
        /// Sites of the batch.
        sites: usize,
        /// How often it was stopped.
        attempts: usize,
    },
    /// A peer refused.
    #[error("{peer} refused {len} bytes of code: {reason}")]
    Peer {
        /// Which peer.
        peer: &'static str,
        /// Length of the code in bytes.
        len: usize,
        /// What it said.
        reason: String,
    },
    /// A peer that this build does not contain.
    #[error("{peer} is not in this build: run `cargo xtask bench`, or build with `--features peers`")]
    NotBuilt {
        /// Which peer.
        peer: &'static str,
    },
    /// uBPF, which builds contain where it can be built.
    #[error("uBPF is not in this build: run `cargo xtask bench` where CMake and libclang are installed")]
    NoUbpf,
}

/// Why page tables could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// No memory for the tables' machine.
    #[error("there is no memory for {tables} tables and the counts of {pages} pages")]
    Machine {
        /// Tables that there should be room for.
        tables: usize,
        /// Pages.
        pages: usize,
        /// Why.
        #[source]
        source: PlaceError,
    },
    /// No table is left.
    #[error(transparent)]
    NoTables(#[from] NoTables),
    /// Something was not mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// A cursor did not map.
    #[error(transparent)]
    CursorMap(#[from] CursorMapError),
    /// Something was not changed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A wrong range.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// A cursor cannot go there.
    #[error(transparent)]
    Seek(#[from] SeekError),
    /// A space was not forked.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// A fault was not resolved.
    #[error(transparent)]
    Fault(#[from] FaultError),
    /// A peer refused.
    #[error("{peer} refused: {reason}")]
    Peer {
        /// Which peer.
        peer: &'static str,
        /// What it said.
        reason: String,
    },
    /// The figures would be worthless.
    #[error("{what} is {found:#x} and should be {expected:#x}")]
    Wrong {
        /// What was checked.
        what: &'static str,
        /// What it should be.
        expected: u64,
        /// What it is.
        found: u64,
    },
}

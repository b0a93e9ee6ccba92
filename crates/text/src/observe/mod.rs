//! Observers: they tell profilers, debuggers and unwinders about code that no file on disk describes.
//!
//! A pack calls every [`Observer`] after the bytes of a program are in place and before its handle is returned, and
//! again when the code can no longer run. The trait and its types are always here; the observers themselves need the
//! feature `observe`:
//!
//! | observer | who reads it | removal |
//! |---|---|---|
//! | `PerfMap` | profilers that read `/tmp/perf-PID.map`; `perf` itself only with some backings, see there | none: the format cannot express it |
//! | `JitDump` | `perf record -k mono` followed by `perf inject --jit` | by time: a later program at the same address wins |
//! | `GdbJit` | gdb, lldb | yes |
//! | `UnwindRegistry` | `_Unwind_Backtrace`, `std::backtrace`, panics crossing a frame | yes |
//!
//! An observer never changes whether a program runs: its failure is an [`ObserveError`] that the pack counts and
//! traces, and the load succeeds.
//!
//! # fork
//! `PerfMap` and `JitDump` take no lock once they are made, and notice a fork: the child writes files of its own with
//! what the child loads. What was loaded before the fork is only in the parent's file (`perf` copies the parent's maps
//! on a fork event, so a jitdump still resolves it). `GdbJit` and `UnwindRegistry` hold a mutex for the length of one
//! registration; a child that another thread forks during it must not load or drop programs, as with any mutex (POSIX
//! allows such a child async-signal-safe calls only). Under [`ForkPolicy::Omit`](crate::ForkPolicy::Omit) they forget
//! the parent's programs when the child first needs packs of its own.
//!
//! # What all observers of a process share
//!
//! Statics, and who may access them:
//!
//! - `LIST` of `gdb_jit`, and the descriptor that the debugger knows by name: the holder of the list's mutex; the
//!   debugger, while this process is stopped; other users of this interface in the process, without a lock.
//! - `DUMPS` of `jit_dump` and `MAPS` of `perf_map`, the open files: the holder of its mutex, which only creation of
//!   such an observer takes.
//! - `LIBUNWIND_MARKER` of `unwind`: everybody; only the dynamic loader has written it.

#[cfg(feature = "observe")]
mod arch;
#[cfg(feature = "observe")]
mod eh_frame;
mod functions;
#[cfg(feature = "observe")]
mod gdb_jit;
#[cfg(feature = "observe")]
mod jit_dump;
mod lines;
#[cfg(feature = "observe")]
mod output_file;
#[cfg(feature = "observe")]
mod per_process;
#[cfg(feature = "observe")]
mod perf_map;
#[cfg(feature = "observe")]
mod symbol_name;
#[cfg(feature = "observe")]
mod unwind;

#[cfg(feature = "observe")]
pub use self::{
    eh_frame::frame_pointer_eh_frame, gdb_jit::GdbJit, jit_dump::JitDump, perf_map::PerfMap, unwind::UnwindRegistry,
};

pub use self::functions::Function;
pub use self::lines::{SourceLine, SourceLines};

use std::ops::Range;

use crate::address::CodeAddress;
use crate::poke::Code;

/// Follows programs as they are loaded, changed and unloaded.
///
/// Both calls may arrive from several threads at once, for different programs. For one program they are ordered:
/// `loaded` returns before `unloaded` begins, and `unloaded` returns before another program is announced at an
/// overlapping address.
pub trait Observer: Send + Sync {
    /// Called after the code is in place and before its handle is returned.
    ///
    /// # Errors
    /// The reason why the observer did not record the program. The program is loaded all the same, and `unloaded` will
    /// still be called for it.
    fn loaded(&self, loaded: &Loaded<'_>) -> Result<(), ObserveError>;

    /// Called when the code can no longer run, just before its bytes are refilled with traps.
    ///
    /// `len` is in bytes. An observer that failed in `loaded`, or that keeps nothing per program, answers `Ok`.
    ///
    /// # Errors
    /// The reason why the observer did not forget the program.
    fn unloaded(&self, address: CodeAddress, len: usize) -> Result<(), ObserveError>;

    /// Called in a forked child, perhaps several times, before it loads its first program: the programs that the
    /// observer was told of by other processes are gone from these addresses, since children do not get them
    /// ([`ForkPolicy::Omit`](crate::ForkPolicy::Omit)). `unloaded` is never called for them. Other threads of the child
    /// may already load their own there. It must not use the packs, which are not the child's yet: it would be called
    /// again, without end.
    ///
    /// # Errors
    /// The reason why the observer did not forget a program.
    fn omitted(&self, _addresses: Range<usize>) -> Result<(), ObserveError> {
        Ok(())
    }

    /// Called after a batch has changed sites of a program, before the batch returns, once per program. An observer
    /// that keeps no code need do nothing.
    ///
    /// # Errors
    /// The reason why the observer did not record the change. The program is changed all the same.
    fn patched(&self, _patched: &Patched<'_>) -> Result<(), ObserveError> {
        Ok(())
    }
}

/// A program that has just been changed in place.
#[derive(Clone, Copy, Debug)]
pub struct Patched<'a> {
    /// The program's name.
    pub name: &'a str,
    /// Where the program runs.
    pub address: CodeAddress,
    /// All bytes of the program as they are now.
    pub code: &'a [u8],
    /// The changes, by address.
    pub patches: &'a [Patch],
    /// The functions inside, as in [`Loaded::functions`].
    pub functions: &'a [Function],
}

/// One change of a [`Patched`] program.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// The address of the first changed byte.
    pub address: usize,
    /// The bytes before.
    pub old: Code,
    /// The bytes now.
    pub new: Code,
}

/// A program that has just been placed.
#[derive(Clone, Copy, Debug)]
pub struct Loaded<'a> {
    /// The name given by the program's generator: any text, also empty.
    pub name: &'a str,
    /// Where the program runs.
    pub address: CodeAddress,
    /// The bytes at `address`.
    pub code: &'a [u8],
    /// Bytes of an `.eh_frame` section, if the program has one: CIEs and FDEs whose pointers are absolute
    /// (`DW_EH_PE_absptr`) and final, without a terminator.
    pub eh_frame: Option<&'a [u8]>,
    /// The lines of the source, if the generator has told them.
    pub lines: Option<&'a SourceLines>,
    /// The functions inside, if the generator has told them: they have names of their own. Some may be partly or wholly
    /// outside of `code`.
    pub functions: &'a [Function],
}

/// An observer could not record or forget a program.
#[derive(Debug, thiserror::Error)]
#[error(
    "observer {observer} missed a change: {source}; the program is not affected, remove the observer if its view is \
     not needed"
)]
pub struct ObserveError {
    observer: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl ObserveError {
    /// Wraps the cause `source` of a failure of the observer called `observer`.
    pub fn new(observer: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        ObserveError { observer, source: source.into() }
    }

    /// Returns the name of the observer that failed.
    #[must_use]
    pub fn observer(&self) -> &'static str {
        self.observer
    }
}

#[cfg(test)]
mod tests {
    use std::{error::Error, io};

    use super::*;

    #[test]
    fn the_error_keeps_its_cause() {
        let error = ObserveError::new("perf-map", io::Error::from_raw_os_error(libc::ENOSPC));
        assert_eq!(error.observer(), "perf-map");
        assert!(error.to_string().contains("perf-map"));
        let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(cause.and_then(io::Error::raw_os_error), Some(libc::ENOSPC));
    }
}

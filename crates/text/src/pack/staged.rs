//! Programs on their way into a pack.

use std::fmt;
use std::slice;
use std::sync::Arc;

use palimpsest_sys::arch::{self, Coherence};

use super::block::{Block, Written, write_all};
use super::contents::Extras;
use super::error::{FaultError, FinalizeError};
use super::fault::Fault;
use super::program::Program;
use super::store::Store;
use crate::address::CodeAddress;
use crate::observe::{Loaded, SourceLines};

/// A place in a pack, and a private image of the program.
///
/// The address is final from the start, so that relocations can be computed against it. Nothing is executable before
/// [`finalize`](Self::finalize). Dropping it gives the place back.
pub struct Staged {
    block: Block,
    image: Vec<u8>,
    extras: Extras,
    eh_frame: Option<Vec<u8>>,
    lines: Option<SourceLines>,
}

impl Staged {
    pub(super) fn new(block: Block) -> Self {
        let mut image = vec![0; block.len()];
        arch::fill_traps(&mut image);
        Self { block, image, extras: Extras::default(), eh_frame: None, lines: None }
    }

    /// Returns the address where the program will run.
    pub fn address(&self) -> CodeAddress {
        self.block.address()
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.block.len()
    }

    /// Returns false: an empty program cannot be staged.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the image that will be copied into the pack: at first filled with traps.
    pub fn image(&mut self) -> &mut [u8] {
        &mut self.image
    }

    /// Gives the program a name, for observers and [`Packs::lookup`](super::Packs::lookup).
    pub fn set_name(&mut self, name: &str) {
        self.extras.name = name.into();
    }

    /// Sets where to continue after faults, for the signal handler that calls
    /// [`Found::landing`](super::Found::landing). The order does not matter.
    ///
    /// # Errors
    ///
    /// [`FaultError`] for an offset outside the program, or one with two landings; then nothing changes.
    pub fn set_faults(&mut self, mut faults: Vec<Fault>) -> Result<(), FaultError> {
        let len = self.len();
        faults.sort_unstable();
        if let Some(&fault) = faults.iter().find(|fault| fault.offset.max(fault.landing) as usize >= len) {
            return Err(FaultError::Outside { fault, len });
        }
        if let Some(pair) = faults.windows(2).find(|pair| pair[0].offset == pair[1].offset) {
            return Err(FaultError::Twice { offset: pair[0].offset, landings: [pair[0].landing, pair[1].landing] });
        }
        self.extras.faults = faults.into();
        Ok(())
    }

    /// Gives the program unwind tables: bytes of an `.eh_frame` section (CIEs and FDEs with absolute pointers to the
    /// final address, without the terminator), for observers.
    pub fn set_eh_frame(&mut self, eh_frame: Vec<u8>) {
        self.eh_frame = Some(eh_frame);
    }

    /// Tells observers which lines of a source the program comes from; nothing else keeps them. Worth making only if
    /// there are [observers](super::Packs::is_observed).
    pub fn set_lines(&mut self, lines: SourceLines) {
        self.lines = Some(lines);
    }

    /// Copies the image into the pack and makes it a program.
    ///
    /// On x86-64 that is all. Where instruction fetch does not see stores by itself (AArch64), the caches are flushed
    /// once and the cores synchronised once; [`Packs::finalize_all`](super::Packs::finalize_all) shares the latter
    /// among many.
    ///
    /// # Errors
    ///
    /// See [`FinalizeError`]; the place is free again.
    pub fn finalize(mut self) -> Result<Program, FinalizeError> {
        write_all(slice::from_mut(&mut self))?;
        synchronize(self.block.store())?;
        Ok(self.publish())
    }

    fn store(&self) -> &Store {
        self.block.store()
    }

    /// Makes the program known. Call it after [`write_all`] and [`synchronize`].
    fn publish(self) -> Program {
        let has_extras = !self.extras.name.is_empty() || !self.extras.faults.is_empty();
        let extras = has_extras.then(|| Arc::new(self.extras));
        let (eh_frame, lines) = (self.eh_frame.as_deref(), self.lines.as_ref());
        let loaded = Described { code: &self.image, eh_frame, lines };
        publish(self.block, extras, &loaded)
    }
}

impl Written for Staged {
    fn blocks(&mut self) -> impl Iterator<Item = &mut Block> {
        std::iter::once(&mut self.block)
    }

    fn images(&self) -> impl Iterator<Item = (&Block, Option<&[u8]>)> {
        std::iter::once((&self.block, Some(&*self.image)))
    }
}

/// Finalizes programs of any packs: all or none.
pub(crate) fn finalize_all(mut staged: Vec<Staged>) -> Result<Vec<Program>, FinalizeError> {
    write_all(&mut staged)?;
    if let Some(one) = staged.first() {
        // Concerns the process, whatever packs they are in.
        synchronize(one.store())?;
    }
    Ok(staged.into_iter().map(Staged::publish).collect())
}

/// Information for observers, which nothing else keeps.
pub(super) struct Described<'a> {
    pub(super) code: &'a [u8],
    pub(super) eh_frame: Option<&'a [u8]>,
    pub(super) lines: Option<&'a SourceLines>,
}

/// Makes a written block a program, and tells the observers.
pub(super) fn publish(block: Block, extras: Option<Arc<Extras>>, described: &Described<'_>) -> Program {
    let program = Program(block.publish(extras));
    program.0.store().observe(|observer| {
        observer.loaded(&Loaded {
            name: program.name(),
            address: program.address(),
            code: described.code,
            eh_frame: described.eh_frame,
            lines: described.lines,
            functions: program.0.meta().functions(),
        })
    });
    program
}

/// Makes every core see what has been written, if this ISA needs that.
pub(super) fn synchronize(store: &Store) -> Result<(), FinalizeError> {
    match arch::COHERENCE {
        Coherence::Coherent => Ok(()),
        Coherence::NeedsFlushAndSync => Ok(store.sync_cores()?),
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("name", &self.extras.name)
            .field("address", &self.address())
            .field("len", &self.len())
            .finish()
    }
}

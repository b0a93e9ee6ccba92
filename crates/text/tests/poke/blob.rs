//! A range of this binary's own text that tests fill with code.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use palimpsest_sys::{Piece, TextWriter};
use palimpsest_text::poke::Batch;

use super::{Generated, Version};

/// Bytes of the range.
const LEN: usize = 1 << 17;

core::arch::global_asm!(
    ".pushsection .text.palimpsest_blob, \"ax\"",
    ".balign 4096",
    "palimpsest_blob:",
    ".fill {len}, 1, 0",
    ".popsection",
    ".hidden palimpsest_blob",
    ".global palimpsest_blob",
    len = const LEN,
);

unsafe extern "C" {
    safe static palimpsest_blob: u8;
}

/// Code in the text of this binary, for one test at a time.
pub(crate) struct Blob {
    pub(crate) code: Generated,
    _alone: MutexGuard<'static, ()>,
}

impl Blob {
    pub(crate) fn new(code: Generated) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(code.code.len() <= LEN, "{} bytes do not fit", code.code.len());
        let blob = Self { code, _alone: alone };
        let pieces = [Piece::of_text(blob.address(), &blob.code.code)];
        // SAFETY: 1. this binary's text, to which nobody has a reference; 2. nobody runs it.
        unsafe { TextWriter::new().write(pieces.into_iter()) }.unwrap();
        palimpsest_sys::arch::flush_instruction_cache(blob.range());
        palimpsest_sys::CoreSync::new().unwrap().sync().unwrap();
        blob
    }

    pub(crate) fn address(&self) -> usize {
        (&raw const palimpsest_blob).expose_provenance()
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.address()..self.address() + self.code.code.len()
    }

    /// Adds a site to a batch.
    pub(crate) fn add(&self, batch: &mut Batch<'_>, index: usize, version: Version) {
        let (offset, from, to) = self.code.change(index, version);
        // SAFETY: 1. this binary's text; 2. generated as sites; 3. the tests work with both versions; 4. nobody refers
        // to the blob.
        unsafe { batch.add_text(self.address() + offset, from, to) }.unwrap();
    }

    pub(crate) fn run(&self) -> Vec<Version> {
        // SAFETY: 1. written in `new`, and used only by this test.
        unsafe { self.code.run(&raw const palimpsest_blob) }
    }
}

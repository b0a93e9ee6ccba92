//! What the command line asks for: words that QEMU puts into memory before the kernel begins, or leaves zero.
//! `xtask/src/guest/mod.rs` knows where.

use crate::arch::layout;
use crate::memory::{ASKED_AT, alias};

/// A word of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// Rounds of random families.
    Stress,
    /// Not 0: programs have their full lengths.
    WholePrograms,
    /// The slot of the image, plus one; the boot code reads it too.
    Slot,
    /// Not 0: only the checks of the kernel's own image.
    Brief,
}

/// Returns the word; 0 if nothing was asked for.
pub(crate) fn word(asked: Asked) -> u64 {
    #[expect(clippy::cast_ptr_alignment, reason = "words behind a multiple of a page")]
    let words = alias(layout::RAM_BASE + ASKED_AT).cast::<u64>();
    // SAFETY: memory that nobody else uses and that is mapped; QEMU has put numbers there, or left it zero.
    unsafe { words.wrapping_add(asked as usize).read_volatile() }
}

//! The architectures.

pub(super) mod aarch64;
pub(super) mod x86_64;

use super::buffer::{Buffer, Gap, Mark};
use super::frame::Frame;
use super::lines::Lines;
use super::unwinding::Frames;
use super::{CompileError, Surroundings, Target};

/// The compiler for the machine that this runs on.
pub(super) const NATIVE: Option<Target> = {
    if cfg!(target_arch = "x86_64") {
        Some(Target::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Target::Aarch64)
    } else {
        None
    }
};

/// Where an architecture puts addresses of helpers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In instructions.
    Inside,
    /// Behind the code.
    BehindTheCode,
}

/// An architecture: how instructions become code.
pub(super) trait Isa {
    /// Where it puts addresses.
    const LITERALS: Place;
    /// Up to which length of code, in bytes, every jump reaches its target in its shortest form.
    const REACH: usize;
    /// How its frames are unwound.
    const FRAMES: Frames;
    /// How code lies in lines, if it matters where short loops lie.
    const LINES: Option<Lines>;

    /// Begins a function.
    fn prologue(buffer: &mut Buffer, frame: &Frame);

    /// Writes the code of the instruction that `surroundings` describe.
    fn instruction(buffer: &mut Buffer, surroundings: &Surroundings<'_>) -> Result<(), CompileError>;

    /// Ends a function: where it leaves, or a jump there.
    fn leave(buffer: &mut Buffer, frame: &Frame);

    /// Writes the code through which helpers call `function`, which has this frame: it gets the gauge as `r5`, and
    /// returns it as a second result.
    fn entry(buffer: &mut Buffer, function: Mark, frame: &Frame);

    /// Writes the distance from `gap` to `place`.
    fn patch(code: &mut [u8], gap: Gap, place: usize);
}

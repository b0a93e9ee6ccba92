//! What an allocation consists of.

/// A part of an [`Allocation`](super::Allocation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The code.
    Code,
    /// Data that the code reads.
    ReadOnly,
    /// Data that the code reads and writes.
    ReadWrite,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 3] = [Self::Code, Self::ReadOnly, Self::ReadWrite];
}

/// A value for each part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts<T> {
    /// The value for the code.
    pub code: T,
    /// The value for the data that the code reads.
    pub read_only: T,
    /// The value for the data that the code reads and writes.
    pub read_write: T,
}

impl<T> Parts<T> {
    /// Returns the value for `part`.
    pub fn get(&self, part: Part) -> &T {
        match part {
            Part::Code => &self.code,
            Part::ReadOnly => &self.read_only,
            Part::ReadWrite => &self.read_write,
        }
    }

    pub(super) fn get_mut(&mut self, part: Part) -> &mut T {
        match part {
            Part::Code => &mut self.code,
            Part::ReadOnly => &mut self.read_only,
            Part::ReadWrite => &mut self.read_write,
        }
    }

    pub(super) fn each_mut(&mut self) -> [&mut T; 3] {
        [&mut self.code, &mut self.read_only, &mut self.read_write]
    }
}

/// Length and alignment of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// The length in bytes; 0 if there is no such part.
    pub len: usize,
    /// The alignment in bytes: a power of two, of at most [`MAX_ALIGN`](super::MAX_ALIGN).
    pub align: usize,
}

/// Where the bytes of an allocation are written until it is finalized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Working {
    /// In an image on the heap, which is copied into place: nothing is executable before all of it is there.
    #[default]
    Private,
    /// In place, through the write view, without a copy. Bytes can be run as soon as they are written, by any thread
    /// that jumps there, so this is for hosts that trust what they write. Needs packs with
    /// [`WriteView::Standing`](super::WriteView::Standing).
    InPlace,
}

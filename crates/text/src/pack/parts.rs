//! What an allocation consists of.

/// A part of an [`Allocation`](super::Allocation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// What runs.
    Code,
    /// Data that the code reads.
    ReadOnly,
    /// Data that the code reads and writes.
    ReadWrite,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Code, Self::ReadOnly, Self::ReadWrite];
}

/// Something of each part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts<T> {
    /// Of the code.
    pub code: T,
    /// Of the data that the code reads.
    pub read_only: T,
    /// Of the data that the code reads and writes.
    pub read_write: T,
}

impl<T> Parts<T> {
    /// That of `part`.
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

/// How long a part is to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// In bytes. 0: there is no such part.
    pub len: usize,
    /// A power of two, in bytes, of at most [`MAX_ALIGN`](super::MAX_ALIGN).
    pub align: usize,
}

/// Where the bytes of an allocation are written until it is finalized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Working {
    /// In an image on the heap, which is copied into place: nothing is executable before all of it is.
    #[default]
    Private,
    /// In place, through the write view: no copy. What is written can be run at once, by whoever jumps there, so this
    /// is for hosts that trust what they write. Needs packs with [`WriteView::Standing`](super::WriteView::Standing).
    InPlace,
}

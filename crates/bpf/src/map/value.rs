//! Values on their way into maps and out of them. Values of programs are copied piece by piece, so that no length needs
//! memory of its own: a signal handler may have interrupted the allocator.

use core::ops::{Deref, DerefMut};

use alloc::vec::Vec;

/// Bytes of a piece: 8 words.
pub(crate) const PIECE: usize = 64;

/// Bytes that lie where they cannot be borrowed: others may write to them meanwhile.
pub(crate) trait Far {
    /// How many there are.
    fn len(&self) -> usize;

    /// Copies those from `at` on, as many as `piece` has.
    fn copy(&self, at: usize, piece: &mut [u8]);
}

/// A value that a map gets.
#[derive(Clone, Copy)]
pub(crate) enum Value<'a> {
    /// In one piece.
    Near(&'a [u8]),
    Far(&'a dyn Far),
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Near(bytes)
    }
}

impl Value<'_> {
    /// How many bytes it has.
    pub(super) fn len(self) -> usize {
        match self {
            Self::Near(bytes) => bytes.len(),
            Self::Far(bytes) => bytes.len(),
        }
    }

    /// Passes its pieces to `take`, in order, each with its offset. All but the last are whole words.
    #[inline]
    pub(super) fn each_piece(self, mut take: impl FnMut(usize, &[u8])) {
        match self {
            Self::Near(bytes) => take(0, bytes),
            Self::Far(bytes) => {
                let mut piece = [0; PIECE];
                for at in (0..bytes.len()).step_by(PIECE) {
                    let piece = &mut piece[..PIECE.min(bytes.len() - at)];
                    bytes.copy(at, piece);
                    take(at, piece);
                }
            }
        }
    }
}

/// Where a value goes: gets its pieces in order, each with its offset.
pub(crate) type Out<'a> = dyn FnMut(usize, &[u8]) + 'a;

/// Room for a copy of some bytes, without the allocator if they are few.
#[derive(Debug)]
pub struct Copied {
    few: [u8; FEW],
    len: usize,
    /// All of them, if they are many.
    many: Vec<u8>,
}

/// Bytes that are few: a program's stack has no more.
const FEW: usize = 512;

impl Copied {
    /// Returns room for `len` bytes, which are zero.
    pub(crate) fn zeros(len: usize) -> Self {
        let many = if len > FEW { alloc::vec![0; len] } else { Vec::new() };
        Self { few: [0; FEW], len, many }
    }
}

impl Deref for Copied {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        if self.len > FEW { &self.many } else { &self.few[..self.len] }
    }
}

impl DerefMut for Copied {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.len > FEW { &mut self.many } else { &mut self.few[..self.len] }
    }
}

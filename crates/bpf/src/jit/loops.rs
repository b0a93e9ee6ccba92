//! Short loops, each of which is to lie in one line of code: room is reserved before its first instruction, of which as
//! much remains when gaps are closed as the loop needs to begin with the next line.

use alloc::vec::Vec;

use super::buffer::Buffer;
use super::lines::Lines;
use crate::code::Code;

/// A loop: its first instruction, and the last one that jumps back to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Loop {
    first: usize,
    last: usize,
}

/// The loops of a program that may fit into a line, by their first instructions.
pub(super) struct Loops {
    /// The first instruction of the next one; none has this number if there is none.
    pub(super) next: usize,
    /// In order, the next one last.
    rest: Vec<Loop>,
    lines: Option<Lines>,
}

impl Loops {
    /// Returns the loops of `code`, if it matters where they lie.
    pub(super) fn of(code: &Code, lines: Option<Lines>) -> Self {
        /// Bytes of an instruction, on average, in loops that fit: an estimate. Room before loops that do not fit would
        /// make jumps over it long.
        const USUAL: usize = 3;
        let most = lines.map_or(0, |lines| lines.len as usize / USUAL);
        let loops = code.jumps_back().filter(|(first, last)| last - first < most);
        let mut rest: Vec<Loop> = loops.map(|(first, last)| Loop { first, last }).collect();
        // Of those with the same beginning, the longest one remains.
        rest.sort_unstable_by_key(|one| core::cmp::Reverse((one.first, one.last)));
        rest.dedup_by_key(|one| one.first);
        Self { next: rest.last().map_or(usize::MAX, |next| next.first), rest, lines }
    }

    /// Reserves room before the next one, which begins here.
    #[cold]
    pub(super) fn reserve(&mut self, buffer: &mut Buffer) {
        if let (Some(lines), Some(next)) = (self.lines, self.rest.pop()) {
            buffer.reserve(lines, next.last);
        }
        self.next = self.rest.last().map_or(usize::MAX, |next| next.first);
    }
}

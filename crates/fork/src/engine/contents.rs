//! Which pages each extent holds, known without its descriptor: one bit for each page of a piece.
//!
//! Pages that an extent does not hold read as zeros, and reading them through a mapping would allocate memory: whoever
//! copies must know them. Pieces that are not in the table count as held: those that are whole, so that a big process
//! has few pages of this table for each fork to copy; and those that do not fit, which costs memory and loses nothing.

use std::ops::Range;

use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::vec::MappedVec;

use super::entry::MOST_SERIAL;
use super::piece::PIECE;
use super::runs::PieceRuns;

/// Most pages of a piece.
const PAGES: usize = PIECE / 4096;
/// Most pieces in the table: 1 TiB.
const PIECES: usize = 1 << 19;

/// What an extent holds of one piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceContents {
    extent: u32,
    /// The piece's offset in the extent, in pieces.
    piece: u32,
    pages: [u64; PAGES / 64],
}

impl PieceContents {
    fn key(&self) -> (u32, u32) {
        (self.extent, self.piece)
    }
}

/// The pages of all extents.
#[derive(Debug)]
pub(super) struct Contents {
    /// By extent and piece. Extents get rising numbers, and are filled from start to end, one after the other.
    all: MappedVec<PieceContents>,
    /// The number of the last extent.
    serial: u32,
    /// The extent and piece that was last found to be whole, and taken out.
    whole: Option<(u32, u32)>,
}

impl Contents {
    /// Returns the table's address space in bytes: enough for all memory of the machine, 1 TiB at most.
    pub(super) fn bytes() -> usize {
        let memory = rustix::system::sysinfo();
        let units = usize::try_from(memory.totalram).unwrap_or(usize::MAX);
        let bytes = units.saturating_mul(usize::try_from(memory.mem_unit).unwrap_or(1).max(1));
        (bytes / PIECE).clamp(1 << 10, PIECES) * size_of::<PieceContents>()
    }

    pub(super) const fn new(all: MappedVec<PieceContents>) -> Self {
        Self { all, serial: 0, whole: None }
    }

    /// Returns an unused number for a new extent. Numbers begin again after two thousand million.
    pub(super) fn next_serial(&mut self, is_in_use: impl Fn(u32) -> bool) -> u32 {
        loop {
            self.serial = if self.serial < MOST_SERIAL { self.serial + 1 } else { 1 };
            if !is_in_use(self.serial) {
                return self.serial;
            }
        }
    }

    /// Notes that `extent` holds the whole pages at these offsets, which lie in one piece.
    pub(super) fn note(&mut self, extent: u32, offsets: Range<usize>) {
        let key = (extent, (offsets.start / PIECE) as u32);
        let place = match self.all.binary_search_by_key(&key, PieceContents::key) {
            Ok(place) => place,
            Err(place) => {
                // It is whole; in the table again, it would hold these pages only.
                if Some(key) <= self.whole {
                    return;
                }
                let new = PieceContents { extent, piece: key.1, pages: [0; PAGES / 64] };
                // Out of order it would not be found: better not to have it at all.
                if place != self.all.len() || self.all.push(new).is_err() {
                    return;
                }
                place
            }
        };
        let Some(held) = self.all.get_mut(place) else { return };
        let page = rustix::param::page_size();
        for page in (offsets.start % PIECE) / page..((offsets.end - 1) % PIECE) / page + 1 {
            held.pages[page / 64] |= 1 << (page % 64);
        }
        let count: u32 = held.pages.iter().map(|pages| pages.count_ones()).sum();
        if count as usize == PIECE / page && place + 1 == self.all.len() {
            self.all.truncate(place);
            self.whole = Some(key);
        }
    }

    /// Adds the pages of `piece` that `extent` holds, whose offset 0 is at the address `base`.
    pub(super) fn add_to(&self, runs: &mut PieceRuns, extent: u32, base: usize, piece: Span) {
        let page = rustix::param::page_size();
        // A moved mapping may have one piece of its extent in two pieces of addresses.
        let mut is_whole = false;
        let mut part = Span::new(piece.start, piece.start);
        while part.end < piece.end {
            let offset = part.end.wrapping_sub(base);
            part = Span::new(part.end, piece.end.min(part.end + PIECE - offset % PIECE));
            let key = (extent, (offset / PIECE) as u32);
            let Ok(place) = self.all.binary_search_by_key(&key, PieceContents::key) else {
                is_whole |= runs.push(part).is_err();
                continue;
            };
            let pages = &self.all[place].pages;
            let is_held = |address: usize| {
                let index = address.wrapping_sub(base) % PIECE / page;
                pages[index / 64] & 1 << (index % 64) != 0
            };
            let mut at = part.start;
            while at < part.end {
                let alike = (at..part.end).step_by(page).take_while(|next| is_held(*next) == is_held(at)).count();
                let run = Span::new(at, at + alike * page);
                if is_held(at) {
                    is_whole |= runs.push(run).is_err();
                }
                at = run.end;
            }
        }
        if is_whole {
            runs.set(piece);
        } else {
            runs.join();
        }
    }

    /// Forgets an extent.
    pub(super) fn forget(&mut self, extent: u32) {
        let first = self.all.partition_point(|held| held.extent < extent);
        let behind = self.all.partition_point(|held| held.extent <= extent);
        // Not written without need: a child may share these pages.
        if first == behind {
            return;
        }
        for index in behind..self.all.len() {
            self.all[first + index - behind] = self.all[index];
        }
        let left = self.all.len() - (behind - first);
        self.all.truncate(left);
    }

    /// Keeps only the extents for which `is_kept` returns true.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(u32) -> bool) {
        let mut kept = 0;
        let (mut extent, mut answer) = (0, false);
        for index in 0..self.all.len() {
            let held = self.all[index];
            if held.extent != extent {
                (extent, answer) = (held.extent, is_kept(held.extent));
            }
            if answer {
                self.all[kept] = held;
                kept += 1;
            }
        }
        self.all.truncate(kept);
    }

    /// Returns the addresses of the table.
    pub(super) fn range(&self) -> Range<usize> {
        self.all.range()
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::pages::maps::Permissions;

    use super::*;
    use crate::engine::entry::Entry;

    fn empty() -> Contents {
        Contents::new(MappedVec::with_capacity(16).expect("memory"))
    }

    fn runs(contents: &Contents, extent: u32, base: usize, piece: Span) -> Vec<Span> {
        let mut runs = PieceRuns::new();
        contents.add_to(&mut runs, extent, base, piece);
        runs.to_vec()
    }

    #[test]
    fn pages_that_were_noted_are_told_wherever_their_extent_is_shown() {
        let page = rustix::param::page_size();
        let mut contents = empty();
        let (first, second) = (contents.next_serial(|_| false), contents.next_serial(|_| false));
        contents.note(first, page..3 * page);
        contents.note(first, 8 * page..9 * page);
        contents.note(first, PIECE - page..PIECE);
        contents.note(first, PIECE..PIECE + 2 * page);
        contents.note(second, 0..page);
        // Out of order: counts as if the extent held everything.
        contents.note(first, 2 * PIECE..2 * PIECE + page);
        for base in [7 * PIECE, 7 * PIECE + 5 * page] {
            let at = |start: usize, end: usize| Span::new(base + start, base + end);
            let all = runs(&contents, first, base, at(0, PIECE));
            assert_eq!(all, [at(page, 3 * page), at(8 * page, 9 * page), at(PIECE - page, PIECE)]);
            assert_eq!(runs(&contents, first, base, at(2 * page, 4 * page)), [at(2 * page, 3 * page)]);
            // As after a move: one piece of addresses with the ends of two pieces of the extent.
            let across = runs(&contents, first, base, at(PIECE - 2 * page, PIECE + 4 * page));
            assert_eq!(across, [at(PIECE - page, PIECE + 2 * page)]);
            let unknown = at(2 * PIECE, 2 * PIECE + 4 * page);
            assert_eq!(runs(&contents, first, base, unknown), [unknown]);
            assert_eq!(runs(&contents, second, base, at(0, PIECE)), [at(0, page)]);
        }
        contents.retain(|extent| extent == second);
        assert_eq!(runs(&contents, second, 0, Span::new(0, PIECE)), [Span::new(0, page)]);
        assert_eq!(runs(&contents, first, 0, Span::new(0, PIECE)), [Span::new(0, PIECE)]);
    }

    /// Fails on: a piece that stays in the table although it is whole; one that is noted again once it is out, and then
    /// lacks the rest; pages of an earlier one that are not noted any more.
    #[test]
    fn whole_pieces_take_no_place() {
        let page = rustix::param::page_size();
        let mut contents = empty();
        let extent = contents.next_serial(|_| false);
        for piece in 0..1000 {
            let (start, end) = (piece * PIECE, (piece + 1) * PIECE);
            contents.note(extent, start..start + page);
            contents.note(extent, start + page..end);
            contents.note(extent, start + page..start + 2 * page);
            assert_eq!(contents.all.len(), 0);
            assert_eq!(runs(&contents, extent, 0, Span::new(start, end)), [Span::new(start, end)]);
        }
        contents.note(extent, 1000 * PIECE..1001 * PIECE - page);
        contents.note(extent, 1001 * PIECE..1002 * PIECE);
        let last = Span::new(1000 * PIECE, 1001 * PIECE);
        assert_eq!(runs(&contents, extent, 0, last), [Span::new(last.start, last.end - page)]);
        contents.note(extent, last.end - page..last.end);
        assert_eq!(runs(&contents, extent, 0, last), [last], "also behind one that is out");
    }

    #[test]
    fn numbers_begin_again_where_the_map_has_no_room_and_leave_out_those_in_use() {
        let mut contents = empty();
        contents.serial = MOST_SERIAL - 1;
        let next = [(); 3].map(|()| contents.next_serial(|serial| serial == 1));
        assert_eq!(next, [MOST_SERIAL, 2, 3]);
        let kept = Entry::new(Permissions::READ, None, MOST_SERIAL).erased();
        assert_eq!(kept.extent(), Some(MOST_SERIAL));
    }

    #[test]
    fn what_there_was_no_room_for_is_taken_for_held() {
        let page = rustix::param::page_size();
        let mut contents = empty();
        let extent = contents.next_serial(|_| false);
        for piece in 0..1000 {
            contents.note(extent, piece * PIECE..piece * PIECE + page);
        }
        assert_eq!(runs(&contents, extent, 0, Span::new(0, PIECE)), [Span::new(0, page)]);
        let late = Span::new(999 * PIECE, 1000 * PIECE);
        assert_eq!(runs(&contents, extent, 0, late), [late]);
    }
}

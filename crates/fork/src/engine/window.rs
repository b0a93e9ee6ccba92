//! How much memory to search for the next populated page in one go.
//!
//! The kernel looks at every present page of the searched memory, not only up to the first. So where pages are found, a
//! search reaches no farther than a piece; where none are found, each search reaches farther than the last.

use palimpsest_sys::memory::span::Span;

use super::piece::PIECE;

/// The most memory to search in one go.
const MOST: usize = 16 * PIECE;

/// The length of the next search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window(usize);

impl Window {
    /// Begins with a piece.
    pub(super) const fn new() -> Self {
        Self(PIECE)
    }

    /// Returns the part of `rest` to search next: up to the end of a piece, or several.
    pub(super) fn of(self, rest: Span) -> Span {
        Span::new(rest.start, rest.end.min((rest.start & !(PIECE - 1)) + self.0))
    }

    /// Notes whether the last search has found anything.
    pub(super) fn searched(&mut self, found: bool) {
        self.0 = if found { PIECE } else { (2 * self.0).min(MOST) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches `rest`, in which `is_populated` says which pieces have pages. Returns the number of searches, and the
    /// bytes whose pages the kernel has looked at.
    fn search(rest: Span, is_populated: impl Fn(usize) -> bool) -> (usize, usize) {
        let (mut window, mut at, mut searches, mut looked) = (Window::new(), rest.start, 0, 0);
        while at < rest.end {
            let part = window.of(Span::new(at, rest.end));
            let pieces = || part.cut(PIECE).filter(|piece| is_populated(piece.start / PIECE));
            (searches, looked) = (searches + 1, looked + pieces().map(|piece| piece.len()).sum::<usize>());
            let found = pieces().next();
            window.searched(found.is_some());
            at = found.map_or(part.end, |piece| piece.end);
        }
        (searches, looked)
    }

    /// Fails on: looking at 32 MiB for each piece; searching empty memory a piece at a time.
    #[test]
    fn pages_are_looked_at_once_and_what_is_empty_in_few_steps() {
        let all = Span::new(4 * PIECE, 1028 * PIECE);
        assert_eq!(search(all, |_| true), (1024, all.len()));
        let (searches, looked) = search(all, |_| false);
        assert!(searches <= 1024 / 16 + 5 && looked == 0, "{searches}");
        // One in eight.
        let (searches, looked) = search(all, |piece| piece % 8 == 7);
        assert!(searches <= 1024 / 2 + 5 && looked <= 2 * all.len() / 8, "{searches} searches, {looked} bytes");
    }

    #[test]
    fn a_search_ends_with_a_piece_or_with_the_rest() {
        let rest = Span::new(PIECE + 4096, 3 * PIECE);
        assert_eq!(Window::new().of(rest), Span::new(rest.start, 2 * PIECE));
        let mut window = Window::new();
        window.searched(false);
        assert_eq!(window.of(rest), rest);
        window.searched(true);
        assert_eq!(window, Window::new());
    }
}

//! Lines of the source that a program comes from.

#[cfg(feature = "observe")]
use std::ops::Range;
use std::{collections::BTreeMap, sync::Arc};

/// The name of files without one: a table of lines has no empty names, since one ends its list of files.
const UNNAMED: &str = "?";

/// The lines of the source: each holds from its offset in the program up to the next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SourceLines {
    files: Vec<Arc<str>>,
    /// The number of each file.
    known: BTreeMap<Arc<str>, u32>,
    /// The places, by offset.
    places: Vec<Place>,
}

/// A place where a line begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    offset: u32,
    file: u32,
    line: u32,
    column: u32,
}

/// A line of a source, from an offset of a program on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SourceLine<'a> {
    /// Offset in the program, in bytes.
    pub offset: u32,
    /// The file, as its compiler named it.
    pub file: &'a str,
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1; 0 if it is not known.
    pub column: u32,
}

impl SourceLines {
    /// Creates a list without lines.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line. Of two at the same offset the later one stays. Leaves out a line before the last one's offset,
    /// since code comes in order, and a line whose file name contains a zero byte, which debuggers cannot be given. A
    /// file with an empty name is called `?`.
    pub fn add(&mut self, line: SourceLine<'_>) {
        let SourceLine { offset, file: name, line, column } = line;
        let name = if name.is_empty() { UNNAMED } else { name };
        let is_in_order = self.places.last().is_none_or(|last| last.offset <= offset);
        if !is_in_order || name.contains('\0') {
            return;
        }
        let file = match self.known.get(name) {
            Some(known) => *known,
            None => {
                let (name, number) = (Arc::<str>::from(name), self.files.len() as u32);
                self.files.push(Arc::clone(&name));
                self.known.insert(name, number);
                number
            }
        };
        self.places.pop_if(|last| last.offset == offset);
        self.places.push(Place { offset, file, line, column });
    }

    /// Returns whether there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns all lines, by offset.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = SourceLine<'_>> {
        self.places.iter().map(|place| self.line(place))
    }

    fn line(&self, &Place { offset, file, line, column }: &Place) -> SourceLine<'_> {
        SourceLine { offset, file: &self.files[file as usize], line, column }
    }

    /// Returns the lines that hold somewhere in `range`, in bytes of the program, each with the number of its file. The
    /// first begins with the range, though its code may begin before.
    #[cfg(feature = "observe")]
    pub(super) fn within(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = (usize, SourceLine<'_>)> {
        let start = u32::try_from(range.start).unwrap_or(u32::MAX);
        let behind = self.places.partition_point(|place| (place.offset as usize) < range.end);
        let first = self.places.partition_point(|place| place.offset <= start).saturating_sub(1);
        let first = if range.is_empty() { behind } else { first.min(behind) };
        self.places[first..behind].iter().map(move |place| {
            let line = self.line(place);
            (place.file as usize, SourceLine { offset: line.offset.max(start), ..line })
        })
    }

    /// Returns the files, each once.
    #[cfg(feature = "observe")]
    pub(super) fn files(&self) -> impl ExactSizeIterator<Item = &str> {
        self.files.iter().map(|file| &**file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_in_order_and_one_for_each_offset() {
        let mut lines = SourceLines::new();
        assert!(lines.is_empty());
        for (offset, file, line) in [(0, "a.c", 1), (4, "b.h", 7), (4, "a.c", 2), (3, "a.c", 9), (8, "x\0y", 3)] {
            lines.add(SourceLine { offset, file, line, column: 5 });
        }
        let found: Vec<_> = lines.iter().map(|line| (line.offset, line.file, line.line, line.column)).collect();
        assert_eq!(found, [(0, "a.c", 1, 5), (4, "a.c", 2, 5)]);
    }

    /// Fails on: a line that began before the range and is left out, or is not moved; lines behind; an empty range.
    #[test]
    #[cfg(feature = "observe")]
    fn a_range_has_the_lines_that_hold_inside() {
        let mut lines = SourceLines::new();
        for (offset, line) in [(2, 20), (8, 80), (12, 120)] {
            lines.add(SourceLine { offset, file: "a.c", line, column: 0 });
        }
        let within = |range| lines.within(range).map(|(_, line)| (line.offset, line.line)).collect::<Vec<_>>();
        assert_eq!(within(0..100), [(2, 20), (8, 80), (12, 120)]);
        assert_eq!(within(5..12), [(5, 20), (8, 80)]);
        assert_eq!(within(8..13), [(8, 80), (12, 120)]);
        assert_eq!(within(50..60), [(50, 120)]);
        for none in [0..2, 2..2, 5..5, 50..50] {
            assert_eq!(within(none.clone()), [], "{none:?}");
        }
        assert_eq!(SourceLines::new().within(0..9).len(), 0);
    }

    #[test]
    fn a_file_without_a_name_gets_one() {
        let mut lines = SourceLines::new();
        lines.add(SourceLine { offset: 0, file: "", line: 1, column: 0 });
        lines.add(SourceLine { offset: 1, file: "?", line: 2, column: 0 });
        let found: Vec<_> = lines.iter().map(|line| (line.offset, line.file, line.line)).collect();
        assert_eq!(found, [(0, "?", 1), (1, "?", 2)]);
        assert_eq!(lines.files.len(), 1);
    }
}

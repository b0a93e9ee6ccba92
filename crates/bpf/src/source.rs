//! A program's name, and the lines of a source that its slots come from: for profilers and debuggers.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Most files. An object can name a different one in each line, in few bytes by repeating them.
const MOST_FILES: usize = 4096;

/// A program's name and lines of its source. Only observers of packs show it; nothing depends on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Source {
    name: String,
    files: Vec<Arc<str>>,
    /// The number of each file.
    known: BTreeMap<Arc<str>, u32>,
    /// By slot, one for each.
    lines: Vec<Line>,
}

/// The slots, from one on, that come from a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    slot: u32,
    file: u32,
    line: u32,
    column: u32,
}

impl Source {
    /// Makes a name without lines.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_string(), ..Self::default() }
    }

    /// Notes that the slots from `slot` on come from this line, up to the slot of the next line added. Of two lines for
    /// one slot the later one stays. A line whose slot lies before the last one's is left out, and so is a line of any
    /// file after the first 4096.
    pub fn add(&mut self, slot: u32, file: &str, line: u32, column: u32) {
        if self.lines.last().is_some_and(|last| last.slot > slot) {
            return;
        }
        let file = match self.known.get(file) {
            Some(known) => *known,
            None if self.files.len() == MOST_FILES => return,
            None => {
                let (name, number) = (Arc::<str>::from(file), self.files.len() as u32);
                self.files.push(Arc::clone(&name));
                self.known.insert(name, number);
                number
            }
        };
        self.lines.pop_if(|last| last.slot == slot);
        self.lines.push(Line { slot, file, line, column });
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lines: slot, file, line and column.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = (u32, &str, u32, u32)> {
        self.lines.iter().map(|line| (line.slot, &*self.files[line.file as usize], line.line, line.column))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;

    #[test]
    fn one_line_stays_for_each_slot() {
        let mut source = Source::new("one");
        for (slot, file, line) in [(0, "a.c", 1), (0, "a.c", 2), (3, "b.h", 3), (2, "b.h", 4), (3, "a.c", 5)] {
            source.add(slot, file, line, 0);
        }
        let lines: Vec<_> = source.lines().collect();
        assert_eq!(lines, [(0, "a.c", 2, 0), (3, "a.c", 5, 0)]);
    }

    #[test]
    fn names_are_kept_once_and_not_more_than_so_many() {
        let mut source = Source::new("many");
        for slot in 0..2 * MOST_FILES as u32 {
            source.add(slot, &format!("{slot}.c"), 1, 0);
        }
        assert_eq!((source.files.len(), source.known.len(), source.lines.len()), (MOST_FILES, MOST_FILES, MOST_FILES));
        // The list and the table share each text.
        assert!(source.files.iter().all(|name| Arc::strong_count(name) == 2));
        // Lines of known files are added as before.
        source.add(2 * MOST_FILES as u32, "7.c", 2, 0);
        assert_eq!(source.lines().last(), Some((2 * MOST_FILES as u32, "7.c", 2, 0)));
    }
}

//! What a program is called and which lines of a source its slots come from: for profilers and debuggers.

use alloc::collections::BTreeMap;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

/// A program's name, and lines of its source. Nothing depends on it but what observers of packs show.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Source {
    name: String,
    files: Vec<String>,
    known: BTreeMap<String, u32>,
    /// By slot.
    lines: Vec<Line>,
}

/// The slots from one on that come from a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    slot: u32,
    file: u32,
    line: u32,
    column: u32,
}

impl Source {
    /// A name without lines.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_string(), ..Self::default() }
    }

    /// Says that the slots from `slot` on come from this line, up to the slot of the next line that is added; one that
    /// lies before the last is left out.
    pub fn add(&mut self, slot: u32, file: &str, line: u32, column: u32) {
        if self.lines.last().is_some_and(|last| last.slot > slot) {
            return;
        }
        let file = match self.known.get(file) {
            Some(known) => *known,
            None => {
                let number = self.files.len() as u32;
                self.files.push(file.to_string());
                self.known.insert(file.to_string(), number);
                number
            }
        };
        self.lines.push(Line { slot, file, line, column });
    }

    /// The program's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The lines: slot, file, line and column.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = (u32, &str, u32, u32)> {
        self.lines.iter().map(|line| (line.slot, self.files[line.file as usize].as_str(), line.line, line.column))
    }
}

//! Bytes of machine code, and places in them that are not known yet.

use alloc::vec::Vec;

/// A place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// The beginning of an instruction.
    Instruction(usize),
    /// The first instruction of a function, by its number, behind what the function begins with: where jumps to that
    /// instruction go. Calls go to [`Self::Instruction`], before that.
    Body(usize),
    /// What helpers call to call a function, by its number.
    Entry(usize),
    /// The end of a function, by its number: where it leaves.
    Leave(usize),
    /// An address behind the code.
    Literal(usize),
}

/// A distance that is to be filled in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Where the distance is written, in bytes.
    pub(super) at: usize,
    /// What kind of distance; known to the architecture.
    pub(super) form: u8,
    to: Mark,
}

/// Code that is being made.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    gaps: Vec<Gap>,
    /// Where instructions begin: of this pass as far as it has come, of the one before behind that.
    starts: Vec<u32>,
    /// Where functions go on behind what they begin with.
    bodies: Vec<u32>,
    /// Where helpers call functions, if that is a place of its own.
    entries: Vec<u32>,
    /// Where functions leave.
    leaves: Vec<u32>,
    literals: Vec<u32>,
    /// Loads that may fault, and where the code goes on then, in bytes.
    faults: Vec<(u32, u32)>,
    /// The function that is being made.
    function: usize,
    /// Whether `leaves` of it is of this pass.
    has_left: bool,
}

/// No place yet.
const UNKNOWN: u32 = u32::MAX;

impl Buffer {
    pub(super) fn new(instructions: usize, functions: usize) -> Self {
        Self {
            // About what x86-64 takes for an instruction.
            bytes: Vec::with_capacity(6 * instructions + 64),
            gaps: Vec::new(),
            starts: alloc::vec![UNKNOWN; instructions],
            bodies: alloc::vec![UNKNOWN; functions],
            entries: alloc::vec![UNKNOWN; functions],
            leaves: alloc::vec![UNKNOWN; functions],
            literals: Vec::new(),
            faults: Vec::new(),
            function: 0,
            has_left: false,
        }
    }

    /// Begins the second pass, which knows the places of the first.
    pub(super) fn begin_again(&mut self) {
        self.bytes.clear();
        self.gaps.clear();
        self.faults.clear();
    }

    pub(super) fn begin_function(&mut self, function: usize) {
        (self.function, self.has_left) = (function, false);
    }

    pub(super) fn begin_instruction(&mut self, index: usize) {
        self.starts[index] = self.bytes.len() as u32;
    }

    /// Notes that the function has begun: its first instruction comes next.
    pub(super) fn begin_body(&mut self) {
        self.bodies[self.function] = self.bytes.len() as u32;
    }

    /// Notes that helpers call the function here.
    pub(super) fn begin_entry(&mut self, function: usize) {
        self.entries[function] = self.bytes.len() as u32;
    }

    /// Whether the function has a place where it leaves.
    pub(super) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Notes that the function leaves from here. False if it has a place for that already.
    pub(super) fn begin_leave(&mut self) -> bool {
        if self.has_left {
            return false;
        }
        self.has_left = true;
        self.leaves[self.function] = self.bytes.len() as u32;
        true
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The first `len` of `line`. All are copied, which is faster than as many as there are.
    pub(super) fn push_line(&mut self, line: &[u8; 16], len: usize) {
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(line);
        self.bytes.truncate(end);
    }

    pub(super) fn byte(&self, at: usize) -> u8 {
        self.bytes[at]
    }

    /// Replaces one byte.
    pub(super) fn set(&mut self, at: usize, byte: u8) {
        self.bytes[at] = byte;
    }

    /// Notes a distance that is written `before` bytes before the end.
    pub(super) fn gap(&mut self, before: usize, form: u8, to: Mark) {
        self.gaps.push(Gap { at: self.bytes.len() - before, form, to });
    }

    fn place(&self, mark: Mark) -> u32 {
        match mark {
            Mark::Instruction(index) => self.starts[index],
            Mark::Body(function) => self.bodies[function],
            Mark::Entry(function) => self.entries[function],
            Mark::Leave(function) => self.leaves[function],
            Mark::Literal(index) => self.literals.get(index).copied().unwrap_or(UNKNOWN),
        }
    }

    /// How far `mark` is from here at most, in bytes; `None` if that is not known yet. What lies ahead has its place of
    /// the first pass, where all was longer, and so has what this is measured against.
    pub(super) fn distance(&self, mark: Mark) -> Option<i64> {
        let place = self.place(mark);
        (place != UNKNOWN).then(|| i64::from(place) - self.bytes.len() as i64)
    }

    /// Notes that the instruction at `start`, behind which the code ends, may fault, and that it goes on behind it
    /// then.
    pub(super) fn may_fault(&mut self, start: usize) {
        self.faults.push((start as u32, self.bytes.len() as u32));
    }

    /// Puts addresses behind the code.
    pub(super) fn append_literals(&mut self, values: impl Iterator<Item = u64>) {
        self.literals.clear();
        for value in values {
            if self.literals.is_empty() {
                self.bytes.resize(self.bytes.len().next_multiple_of(size_of::<u64>()), 0);
            }
            self.literals.push(self.bytes.len() as u32);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Has `patch` write every distance: it gets the code, the gap, and where that goes.
    pub(super) fn fill_in(&mut self, patch: fn(&mut [u8], Gap, usize)) {
        for gap in core::mem::take(&mut self.gaps) {
            let place = self.place(gap.to) as usize;
            patch(&mut self.bytes, gap, place);
        }
    }

    /// The code, where instructions begin, and where it may fault.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<u32>, Vec<(u32, u32)>) {
        (self.bytes, self.starts, self.faults)
    }
}

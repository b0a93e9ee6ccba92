//! Bytes of machine code, and distances in them that are not known yet.

use alloc::vec::Vec;
use core::ops::Range;

/// A place in the code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// The beginning of an instruction.
    Instruction(usize),
    /// The first instruction of a function, by its number, behind the function's prologue: jumps to that instruction go
    /// here. Calls go to [`Self::Instruction`], before the prologue.
    Body(usize),
    /// Where helpers call a function, by its number.
    Entry(usize),
    /// The end of a function, by its number: where it leaves.
    Leave(usize),
    /// An address behind the code.
    Literal(usize),
}

/// A distance still to be filled in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gap {
    /// Where the distance is written, in bytes.
    pub(super) at: u32,
    /// What kind of distance; known to the architecture.
    pub(super) form: u8,
    /// The jump's short form, used if its target is near; `None` if it has none.
    short: Option<Short>,
    to: Mark,
}

/// The short form of a jump: an opcode of one byte, and a distance of one byte from behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    pub(super) opcode: u8,
    /// The kind of its distance.
    pub(super) form: u8,
    /// Bytes of the long form, which ends with its distance.
    pub(super) long: u8,
}

/// Bytes of a short form.
const SHORT: u32 = 2;

/// What to assume about an unknown distance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unknown {
    /// It is near.
    Near,
    /// It is far.
    Far,
}

/// Places of a function.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// Behind its prologue.
    body: u32,
    /// Where helpers call it, if that is a separate place.
    entry: u32,
    /// Where it leaves.
    leave: u32,
}

/// Code that is being made.
#[derive(Debug)]
pub(super) struct Buffer {
    bytes: Vec<u8>,
    gaps: Vec<Gap>,
    /// Where instructions begin: in this pass as far as it has come, behind that in the previous pass.
    starts: Vec<u32>,
    places: Vec<Places>,
    literals: Vec<u32>,
    /// Loads that may fault, and where the code then goes on, in bytes.
    faults: Vec<(u32, u32)>,
    /// Distances of one byte, and where they lead, of jumps over other jumps.
    holes: Vec<(u32, u32)>,
    unknown: Unknown,
    /// The function under work.
    function: usize,
    /// Whether the place where it leaves is of this pass.
    has_left: bool,
}

/// No place yet.
const UNKNOWN: u32 = u32::MAX;

impl Buffer {
    pub(super) fn new(instructions: usize, functions: usize, unknown: Unknown) -> Self {
        Self {
            // About what x86-64 takes for an instruction.
            bytes: Vec::with_capacity(6 * instructions + 64),
            // In most programs one instruction in ten is a jump.
            gaps: Vec::with_capacity(instructions / 8 + 4),
            starts: alloc::vec![UNKNOWN; instructions],
            places: alloc::vec![Places { body: UNKNOWN, entry: UNKNOWN, leave: UNKNOWN }; functions],
            literals: Vec::new(),
            faults: Vec::new(),
            holes: Vec::new(),
            unknown,
            function: 0,
            has_left: false,
        }
    }

    /// Begins the second pass, which knows the places of the first.
    pub(super) fn begin_again(&mut self) {
        self.bytes.clear();
        self.gaps.clear();
        self.faults.clear();
        self.holes.clear();
    }

    pub(super) fn begin_function(&mut self, function: usize) {
        (self.function, self.has_left) = (function, false);
    }

    pub(super) fn begin_instruction(&mut self, index: usize) {
        self.starts[index] = self.bytes.len() as u32;
    }

    /// Notes that the function has begun: its first instruction comes next.
    pub(super) fn begin_body(&mut self) {
        self.places[self.function].body = self.bytes.len() as u32;
    }

    /// Notes that helpers call the function here.
    pub(super) fn begin_entry(&mut self, function: usize) {
        self.places[function].entry = self.bytes.len() as u32;
    }

    /// Whether the function has a place where it leaves.
    pub(super) const fn has_left(&self) -> bool {
        self.has_left
    }

    /// Notes that the function leaves from here. Returns false if it has a place for that already.
    pub(super) fn begin_leave(&mut self) -> bool {
        if self.has_left {
            return false;
        }
        self.has_left = true;
        self.places[self.function].leave = self.bytes.len() as u32;
        true
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Adds the first `len` bytes of `line`. Copies all of it, which is faster than copying `len`.
    pub(super) fn push_line(&mut self, line: u128, len: usize) {
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(&line.to_le_bytes());
        self.bytes.truncate(end);
    }

    /// Does the same for at most 8 bytes.
    pub(super) fn push_short(&mut self, line: u64, len: usize) {
        let end = self.bytes.len() + len;
        self.bytes.extend_from_slice(&line.to_le_bytes());
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
        self.gaps.push(Gap { at: (self.bytes.len() - before) as u32, form, short: None, to });
    }

    /// Notes a jump in its long form, which ends here with a distance of 4 bytes.
    pub(super) fn jump(&mut self, form: u8, short: Short, to: Mark) {
        self.gaps.push(Gap { at: self.bytes.len() as u32 - 4, form, short: Some(short), to });
    }

    /// Notes that the distance of one byte at `at`, of a jump that goes here, changes if jumps in between are
    /// shortened.
    pub(super) fn end_hole(&mut self, at: usize) {
        if self.gaps.last().is_some_and(|gap| gap.at as usize > at) {
            self.holes.push((at as u32, self.bytes.len() as u32));
        }
    }

    fn place(&self, mark: Mark) -> u32 {
        match mark {
            Mark::Instruction(index) => self.starts[index],
            Mark::Body(function) => self.places[function].body,
            Mark::Entry(function) => self.places[function].entry,
            Mark::Leave(function) => self.places[function].leave,
            Mark::Literal(index) => self.literals.get(index).copied().unwrap_or(UNKNOWN),
        }
    }

    /// Whether `mark` is less than `reach` bytes from here. What lies ahead has its place from the first pass, in which
    /// everything was longer, and so has what it is measured against.
    pub(super) fn is_near(&self, mark: Mark, reach: i64) -> bool {
        match self.place(mark) {
            UNKNOWN => self.unknown == Unknown::Near,
            place => (-reach..reach).contains(&(i64::from(place) - self.bytes.len() as i64)),
        }
    }

    /// Notes that the instruction at `start`, behind which the code ends, may fault, and that the program then goes on
    /// behind it.
    pub(super) fn may_fault(&mut self, start: usize) {
        self.faults.push((start as u32, self.bytes.len() as u32));
    }

    /// Gives near jumps their short form, and closes the gaps.
    ///
    /// Nothing moves further away by this: a jump that is near before is near afterwards. What lies before a jump is in
    /// its final place already, so that jumps back are measured exactly.
    pub(super) fn shorten(&mut self) {
        let mut gaps = core::mem::take(&mut self.gaps);
        // Where a shortened jump ended, and how many bytes were cut out up to there.
        let mut cuts: Vec<(u32, u32)> = Vec::with_capacity(gaps.len());
        // Up to which old place the code has moved; how much was cut out; the next instruction.
        let (mut done, mut cut, mut next) = (0, 0, 0);
        for gap in &mut gaps {
            let end = gap.at + 4;
            while let Some(start) = self.starts.get_mut(next).filter(|start| **start < end) {
                *start -= cut;
                next += 1;
            }
            gap.at -= cut;
            let Some(short) = gap.short else { continue };
            let to = match gap.to {
                // It has moved.
                Mark::Instruction(index) if index < next => self.starts[index] + cut,
                mark => self.place(mark),
            };
            let long = u32::from(short.long);
            // From behind the short form to what is behind, and from behind the long form to what is ahead.
            let from = if to < end { end - long + SHORT } else { end };
            if i8::try_from(i64::from(to) - i64::from(from)).is_err() {
                continue;
            }
            let start = end - long;
            self.close_up(done..start, cut);
            let at = (start - cut) as usize;
            self.bytes[at] = short.opcode;
            (gap.at, gap.form) = (at as u32 + 1, short.form);
            cut += long - SHORT;
            cuts.push((end, cut));
            done = end;
        }
        self.gaps = gaps;
        if cut == 0 {
            return;
        }
        self.close_up(done..self.bytes.len() as u32, cut);
        self.bytes.truncate(self.bytes.len() - cut as usize);
        self.starts[next..].iter_mut().for_each(|start| *start -= cut);
        let moved = |place: u32| {
            let before = cuts.partition_point(|(end, _)| *end <= place);
            if place == UNKNOWN || before == 0 { place } else { place - cuts[before - 1].1 }
        };
        for places in &mut self.places {
            let Places { body, entry, leave } = *places;
            *places = Places { body: moved(body), entry: moved(entry), leave: moved(leave) };
        }
        for (start, landing) in &mut self.faults {
            (*start, *landing) = (moved(*start), moved(*landing));
        }
        for (at, end) in core::mem::take(&mut self.holes) {
            let at = moved(at);
            self.bytes[at as usize] = (moved(end) - at - 1) as u8;
        }
    }

    /// Moves bytes down.
    fn close_up(&mut self, old: Range<u32>, by: u32) {
        if by != 0 {
            self.bytes.copy_within(old.start as usize..old.end as usize, (old.start - by) as usize);
        }
    }

    /// Adds addresses behind the code.
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

    /// Calls `patch` for every distance, with the code, the gap, and its target.
    pub(super) fn fill_in(&mut self, patch: fn(&mut [u8], Gap, usize)) {
        for gap in core::mem::take(&mut self.gaps) {
            let place = self.place(gap.to) as usize;
            patch(&mut self.bytes, gap, place);
        }
    }

    /// Returns the code, where instructions begin, and where it may fault.
    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<u32>, Vec<(u32, u32)>) {
        (self.bytes, self.starts, self.faults)
    }
}

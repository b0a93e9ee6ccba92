//! Bytes of machine code, and distances in them that are not known yet.

use alloc::vec::Vec;
use core::ops::Range;

use super::lines::Lines;
use super::unwinding::{Step, Unwinding};

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

/// Bytes that are reserved before a loop.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Where they end, and the loop begins.
    end: u32,
    /// The last instruction of the loop.
    last: usize,
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
    /// What is done to the stack, and behind which place, if somebody wants to know.
    steps: Option<Vec<(u32, Step)>>,
    /// Distances of one byte, and where they lead, of jumps over other jumps.
    holes: Vec<(u32, u32)>,
    /// Room before loops.
    rooms: Vec<Room>,
    unknown: Unknown,
    /// The function under work.
    function: usize,
    /// Whether the place where it leaves is of this pass.
    has_left: bool,
}

/// No place yet.
const UNKNOWN: u32 = u32::MAX;

impl Buffer {
    pub(super) fn new(instructions: usize, functions: usize, unknown: Unknown, unwinding: Unwinding) -> Self {
        Self {
            // About what x86-64 takes for an instruction.
            bytes: Vec::with_capacity(6 * instructions + 64),
            // In most programs one instruction in ten is a jump.
            gaps: Vec::with_capacity(instructions / 8 + 4),
            starts: alloc::vec![UNKNOWN; instructions],
            places: alloc::vec![Places { body: UNKNOWN, entry: UNKNOWN, leave: UNKNOWN }; functions],
            literals: Vec::new(),
            faults: Vec::new(),
            steps: (unwinding == Unwinding::Told).then(Vec::new),
            holes: Vec::new(),
            rooms: Vec::new(),
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
        self.steps.iter_mut().for_each(Vec::clear);
        self.holes.clear();
        self.rooms.clear();
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

    /// Reserves room before the loop that begins here and ends with the instruction `last`.
    pub(super) fn reserve(&mut self, lines: Lines, last: usize) {
        self.bytes.resize(self.bytes.len() + lines.room() as usize, 0);
        self.rooms.push(Room { end: self.bytes.len() as u32, last });
    }

    /// Whether loops lie in lines, if those of the code do.
    pub(super) const fn has_room(&self) -> bool {
        !self.rooms.is_empty()
    }

    /// Notes that the instruction at `start`, behind which the code ends, may fault, and that the program then goes on
    /// behind it.
    pub(super) fn may_fault(&mut self, start: usize) {
        self.faults.push((start as u32, self.bytes.len() as u32));
    }

    /// Notes what the code up to here has done to the stack.
    pub(super) fn step(&mut self, step: Step) {
        let place = self.bytes.len() as u32;
        self.steps.iter_mut().for_each(|steps| steps.push((place, step)));
    }

    /// Gives near jumps their short form, keeps as much of the room before loops as these need, and closes the gaps.
    ///
    /// Nothing moves further away by this: a jump that is near before is near afterwards. What lies before a jump is in
    /// its final place already, so that jumps back are measured exactly.
    pub(super) fn shorten(&mut self, lines: Option<Lines>) {
        let mut gaps = core::mem::take(&mut self.gaps);
        let rooms = core::mem::take(&mut self.rooms);
        // One for each, and one for the end.
        let cuts = Vec::with_capacity(gaps.len() + rooms.len() + 1);
        let mut closed = Closed { done: 0, cut: 0, cuts };
        // The next instruction, the next room, and where that ends.
        let (mut next, mut room) = (0, 0);
        let mut room_end = rooms.first().map_or(UNKNOWN, |room| room.end);
        for index in 0..gaps.len() {
            // Each loop has a jump behind its beginning.
            while room_end <= gaps[index].at
                && let Some(lines) = lines
            {
                self.settle(&mut next, room_end, closed.cut);
                let start = room_end - lines.room();
                let len = self.loop_len(&rooms[room..], &gaps[index..], lines);
                let kept = lines.wanted(start - closed.cut, len);
                let at = closed.close_up(&mut self.bytes, start..room_end, kept) as usize;
                (lines.idle)(&mut self.bytes[at..at + kept as usize]);
                room += 1;
                room_end = rooms.get(room).map_or(UNKNOWN, |room| room.end);
            }
            let gap = &mut gaps[index];
            let end = gap.at + 4;
            self.settle(&mut next, end, closed.cut);
            gap.at -= closed.cut;
            let Some(short) = gap.short else { continue };
            let to = match gap.to {
                // It has moved.
                Mark::Instruction(index) if index < next => self.starts[index] + closed.cut,
                mark => self.place(mark),
            };
            let long = u32::from(short.long);
            // From behind the short form to what is behind, and from behind the long form to what is ahead.
            let from = if to < end { end - long + SHORT } else { end };
            if i8::try_from(i64::from(to) - i64::from(from)).is_err() {
                continue;
            }
            let at = closed.close_up(&mut self.bytes, end - long..end, SHORT);
            self.bytes[at as usize] = short.opcode;
            (gap.at, gap.form) = (at + 1, short.form);
        }
        self.gaps = gaps;
        if closed.cut == 0 {
            return;
        }
        let len = self.bytes.len() as u32;
        closed.close_up(&mut self.bytes, len..len, 0);
        self.bytes.truncate((len - closed.cut) as usize);
        self.starts[next..].iter_mut().for_each(|start| *start -= closed.cut);
        for places in &mut self.places {
            let Places { body, entry, leave } = *places;
            *places = Places { body: closed.moved(body), entry: closed.moved(entry), leave: closed.moved(leave) };
        }
        for (start, landing) in &mut self.faults {
            (*start, *landing) = (closed.moved(*start), closed.moved(*landing));
        }
        for (place, _) in self.steps.iter_mut().flatten() {
            *place = closed.moved(*place);
        }
        for (at, end) in core::mem::take(&mut self.holes) {
            let at = closed.moved(at);
            self.bytes[at as usize] = (closed.moved(end) - at - 1) as u8;
        }
    }

    /// Moves the beginnings of instructions before `end` by what was cut out before them.
    #[inline(always)]
    fn settle(&mut self, next: &mut usize, end: u32, cut: u32) {
        while let Some(start) = self.starts.get_mut(*next).filter(|start| **start < end) {
            *start -= cut;
            *next += 1;
        }
    }

    /// Returns how many bytes the loop behind the first of `rooms` will have, if it fits into a line, so that loops in
    /// it need no room. Nothing from there on has moved yet; `gaps` are those behind its beginning.
    fn loop_len(&self, rooms: &[Room], gaps: &[Gap], lines: Lines) -> u32 {
        let Room { end: start, last } = rooms[0];
        let end = self.starts.get(last + 1).map_or(self.bytes.len() as u32, |end| *end);
        let is_near = |gap: &&Gap| {
            let to = self.place(gap.to);
            to >= start && i8::try_from(i64::from(to) - i64::from(gap.at + 4)).is_ok()
        };
        let near = gaps.iter().take_while(|gap| gap.at < end).filter(is_near);
        let cut = near.filter_map(|gap| gap.short).map(|short| u32::from(short.long) - SHORT);
        // Of loops in it, and of one that begins right behind it.
        let others = rooms[1..].iter().take_while(|other| other.end <= end).map(|_| lines.room());
        end - start - cut.sum::<u32>() - others.sum::<u32>()
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

    /// Returns the code, where instructions begin, where it may fault, and what it does to the stack.
    pub(super) fn into_parts(self) -> Parts {
        Parts { bytes: self.bytes, starts: self.starts, faults: self.faults, steps: self.steps.unwrap_or_default() }
    }
}

/// What a buffer becomes.
pub(super) struct Parts {
    pub(super) bytes: Vec<u8>,
    /// Where instructions begin.
    pub(super) starts: Vec<u32>,
    /// Loads that may fault, and where the code then goes on.
    pub(super) faults: Vec<(u32, u32)>,
    /// What is done to the stack, and behind which place.
    pub(super) steps: Vec<(u32, Step)>,
}

/// Code from which bytes are cut out, from its beginning to its end.
struct Closed {
    /// Up to which old place it has moved.
    done: u32,
    /// How much was cut out up to there.
    cut: u32,
    /// Old places behind what was cut out, and how much that was up to there.
    cuts: Vec<(u32, u32)>,
}

impl Closed {
    /// Moves bytes down up to `old.start`, and leaves `kept` of the bytes in `old`. Returns where these are.
    #[inline(always)]
    fn close_up(&mut self, bytes: &mut [u8], old: Range<u32>, kept: u32) -> u32 {
        if self.cut != 0 {
            bytes.copy_within(self.done as usize..old.start as usize, (self.done - self.cut) as usize);
        }
        let at = old.start - self.cut;
        self.cut += old.end - old.start - kept;
        self.cuts.push((old.end, self.cut));
        self.done = old.end;
        at
    }

    /// Returns where an old place is.
    fn moved(&self, place: u32) -> u32 {
        let before = self.cuts.partition_point(|(end, _)| *end <= place);
        if place == UNKNOWN || before == 0 { place } else { place - self.cuts[before - 1].1 }
    }
}

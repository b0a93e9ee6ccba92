//! Watches how a program is followed: first which steps lead to where it is refused, then what they change.
//!
//! The latest way is followed first, and each to its end. So the steps that lead to a way are some parts of ways that
//! are still followed, or were just before, and nothing is kept of others.

use alloc::vec::Vec;

use super::Statistics;
use super::reads::reads;
use crate::code::Code;
use crate::insn::Instruction;
use crate::verify::state::{Known, Place, State};

/// Steps one behind the other, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    first: usize,
    last: usize,
}

/// Where a way begins that is still to be followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Fork {
    /// How many parts lead to it.
    parts: usize,
    /// The step at which it leaves the last of them.
    at: usize,
}

/// A step that leads to where a program is refused.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    /// The number of its instruction.
    pub(super) at: usize,
    pub(super) instruction: Instruction,
    /// How many functions are around its function.
    pub(super) depth: usize,
    /// What the instruction looks at.
    pub(super) reads: Vec<Place>,
    /// What is no longer known when the step begins, since it differs from round to round.
    pub(super) forgotten: Vec<(Place, Known)>,
    /// What is known behind it that was not before.
    pub(super) changes: Vec<(Place, Known)>,
    /// Whether another way goes on from here, too.
    pub(super) is_fork: bool,
}

/// The steps that lead to where a program is refused, the last ones of them.
#[derive(Debug)]
pub(super) struct Way {
    /// Steps before.
    pub(super) left_out: usize,
    /// What is known before the first of these.
    pub(super) before: Vec<(Place, Known)>,
    /// Whether a timer calls the function in which it begins.
    pub(super) is_later: bool,
    /// The state in which the last one is followed.
    pub(super) state: State,
    pub(super) entries: Vec<Entry>,
}

/// What is noted of the steps of a way, while it is followed a second time.
struct Capture {
    parts: Vec<Part>,
    /// Steps of the way that are left out, and how many of them are still to come.
    left_out: usize,
    to_skip: usize,
    /// The step that is followed, if it is noted.
    is_on: bool,
    way: Option<Way>,
}

/// Watches how a program is followed.
pub(in crate::verify) struct Watch {
    /// The first instruction of each function.
    functions: Vec<usize>,
    /// Of ways that are still to be followed.
    forks: Vec<Fork>,
    /// Lead to the present step.
    parts: Vec<Part>,
    step: usize,
    capture: Option<Capture>,
    pub(super) statistics: Statistics,
}

impl Watch {
    pub(in crate::verify) fn new(code: &Code) -> Self {
        let functions: Vec<usize> = code.functions().collect();
        let stack = functions.iter().map(|first| (code.slot(*first), 0)).collect();
        let statistics = Statistics { stack, ..Statistics::EMPTY };
        Self { functions, forks: Vec::new(), parts: Vec::new(), step: 0, capture: None, statistics }
    }

    /// Watches once more, and notes the last `most` of the steps that lead to the present one.
    pub(in crate::verify) fn again(self, code: &Code, most: usize) -> Self {
        let Self { mut parts, step, .. } = self;
        if let Some(last) = parts.last_mut() {
            last.last = step;
        }
        let count: usize = parts.iter().map(|part| part.last + 1 - part.first).sum();
        let left_out = count.saturating_sub(most);
        let capture = Capture { parts, left_out, to_skip: left_out, is_on: false, way: None };
        Self { capture: Some(capture), ..Self::new(code) }
    }

    /// Returns what was noted.
    pub(super) fn noted(self) -> Option<Way> {
        let mut way = self.capture?.way?;
        way.look_at_reads();
        Some(way)
    }

    /// A way that is not the continuation of any is to be followed.
    #[cold]
    pub(in crate::verify) fn add_root(&mut self) {
        self.add(Fork { parts: 0, at: 0 });
    }

    /// A way that goes on from the present step is to be followed, too.
    #[cold]
    pub(in crate::verify) fn add_fork(&mut self) {
        self.add(Fork { parts: self.parts.len(), at: self.step });
        if let Some(entry) = self.capture.as_mut().and_then(Capture::entry) {
            entry.is_fork = true;
        }
    }

    fn add(&mut self, fork: Fork) {
        self.forks.push(fork);
        self.statistics.most_waiting = self.statistics.most_waiting.max(self.forks.len());
    }

    /// The latest way that is to be followed is followed.
    #[cold]
    pub(in crate::verify) fn begin(&mut self) {
        self.statistics.ways += 1;
        let Some(Fork { parts, at }) = self.forks.pop() else { return };
        self.parts.truncate(parts);
        if let Some(last) = self.parts.last_mut() {
            last.last = at;
        }
        self.parts.push(Part { first: self.step + 1, last: usize::MAX });
    }

    /// A step begins.
    #[cold]
    pub(in crate::verify) fn arrive(&mut self, at: usize, instruction: Instruction, state: &State) {
        self.step += 1;
        self.statistics.followed = self.step;
        let function = self.functions.partition_point(|first| *first <= at).saturating_sub(1);
        if let Some((_, stack)) = self.statistics.stack.get_mut(function) {
            *stack = (*stack).max(state.top().stack_len());
        }
        if let Some(capture) = &mut self.capture {
            capture.arrive(self.step, (at, instruction), state);
        }
    }

    /// The way ends, since from here on another one was followed.
    #[cold]
    pub(in crate::verify) fn meet(&mut self) {
        self.statistics.met += 1;
    }

    /// The way goes on, with what it has forgotten; `live` has a bit for each register that is read again.
    #[cold]
    pub(in crate::verify) fn go_on(&mut self, live: u16, state: &State) {
        if let Some(capture) = &mut self.capture {
            capture.go_on(live, state);
        }
    }

    /// A state is kept.
    #[cold]
    pub(in crate::verify) fn keep(&mut self) {
        self.statistics.kept += 1;
    }
}

impl Capture {
    fn entry(&mut self) -> Option<&mut Entry> {
        self.way.as_mut().filter(|_| self.is_on)?.entries.last_mut()
    }

    /// Whether a step is one of those that are noted.
    fn has(&mut self, step: usize) -> bool {
        let place = self.parts.partition_point(|part| part.last < step);
        let is_part = self.parts.get(place).is_some_and(|part| part.first <= step);
        if is_part && self.to_skip > 0 {
            self.to_skip -= 1;
            return false;
        }
        is_part
    }

    fn arrive(&mut self, step: usize, (at, instruction): (usize, Instruction), state: &State) {
        self.is_on = self.has(step);
        if !self.is_on {
            return;
        }
        let entry = Entry {
            at,
            instruction,
            depth: state.frames.len() - 1,
            reads: Vec::new(),
            forgotten: Vec::new(),
            changes: Vec::new(),
            is_fork: false,
        };
        match &mut self.way {
            None => {
                self.way = Some(Way {
                    left_out: self.left_out,
                    before: state.all_known(),
                    is_later: state.frames[0].callback.is_some(),
                    state: state.clone(),
                    entries: Vec::from([entry]),
                });
            }
            Some(way) => {
                way.look_at_reads();
                if let Some(last) = way.entries.last_mut() {
                    last.changes = state.changes_since(&way.state);
                }
                way.state = state.clone();
                way.entries.push(entry);
            }
        }
    }

    fn go_on(&mut self, live: u16, state: &State) {
        let Some(way) = self.way.as_mut().filter(|_| self.is_on) else { return };
        if let Some(entry) = way.entries.last_mut() {
            entry.forgotten = state.changes_since(&way.state);
            // Of others nobody wants to know.
            entry.forgotten.retain(|(place, _)| match place {
                Place::Register(depth, register) => *depth != entry.depth || live & 1 << register.number() != 0,
                _ => true,
            });
            way.state = state.clone();
        }
    }
}

impl Way {
    /// Notes what the last step looks at: its state is not gone yet.
    fn look_at_reads(&mut self) {
        if let Some(entry) = self.entries.last_mut() {
            entry.reads = reads(&entry.instruction, &self.state);
        }
    }
}

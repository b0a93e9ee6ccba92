//! Follows every way through a program.

use alloc::vec::Vec;
use core::cell::Cell;

use super::fault::{Fault, VerifyError};
use super::live::live;
use super::scalar::Scalar;
use super::state::{Area, State, Value};
use super::step::{Next, Step};
use super::{BUDGET, ContextUse, Contract};
use crate::code::Code;
use crate::insn::{Instruction, Register, Wide};

/// Instructions between two states that are kept of one way, at the least.
const APART: usize = 8;
/// Kept states of one place that are looked at, the latest first.
const LOOKED_AT: usize = 64;
/// Values of registers and stack in all kept states and all ways that are to be followed, at most: some hundred MiB.
pub(super) const MOST_VALUES: usize = 8 << 20;

/// A state that was met, where ways meet.
struct Kept {
    /// Without what nobody looks at again.
    state: State,
    /// The state before it on its way.
    before: Option<usize>,
    /// Ways from here that have not ended: while there are some, what is followed now came by here, since the latest
    /// way is followed first.
    open: usize,
    /// `may_goto`s and calls by helpers on the way to it.
    rounds: usize,
}

/// A way that is to be followed.
struct Way {
    at: usize,
    state: State,
    /// The last kept state on it.
    before: Option<usize>,
    /// `may_goto`s and calls by helpers on it.
    rounds: usize,
    /// Whether a helper calls the function that begins here.
    entering: bool,
    /// Instructions since the last kept state.
    since: usize,
}

/// Whether a way enters a function that a helper calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Entering {
    Yes,
    No,
}

struct Explorer<'a> {
    code: &'a Code,
    contract: &'a Contract,
    live: Vec<u16>,
    kept: Vec<Kept>,
    /// The kept states of each instruction that several ways lead to; `None` for others.
    meetings: Vec<Option<Vec<usize>>>,
    pending: Vec<Way>,
    /// Values in `kept` and `pending`.
    values: usize,
    context_use: Cell<ContextUse>,
    /// Whether each instruction is a load that may find nothing.
    probes: Vec<Cell<bool>>,
}

/// Follows every way through `code`; keeps at most `most_values` of [`State::weight`].
pub(super) fn explore(
    code: &Code,
    contract: &Contract,
    most_values: usize,
) -> Result<(ContextUse, Vec<u32>), VerifyError> {
    let mut explorer = Explorer {
        code,
        contract,
        live: live(code),
        kept: Vec::new(),
        meetings: meetings(code),
        pending: Vec::new(),
        values: 0,
        context_use: Cell::new(ContextUse::Plain),
        probes: alloc::vec![Cell::new(false); code.instructions().len()],
    };
    let mut state = State::new();
    if contract.context.is_some() {
        let registers = state.top_mut();
        registers.set(Register::R1, Value::Pointer(Area::Context, Scalar::constant(0)));
        registers.set(Register::R2, Value::Scalar(Scalar::UNKNOWN));
    }
    explorer.values += state.weight();
    explorer.pending.push(Way { at: 0, state, before: None, rounds: 0, entering: false, since: 0 });
    let budget = contract.budget.unwrap_or(BUDGET);
    let mut followed = 0;
    while let Some(mut way) = explorer.pending.pop() {
        explorer.values -= way.state.weight();
        loop {
            let at = way.at;
            followed += 1;
            let outcome = if followed > budget {
                Err(Fault::Budget { budget })
            } else if explorer.values > most_values {
                Err(Fault::Values { most: most_values })
            } else {
                explorer.advance(&mut way)
            };
            match outcome {
                Ok(true) => {}
                Ok(false) => break,
                Err(fault) => {
                    return Err(VerifyError { slot: code.slot(at), instruction: code.instructions()[at], fault });
                }
            }
        }
        explorer.end(way.before);
    }
    let probes = (0..).zip(&explorer.probes).filter(|(_, is_probe)| is_probe.get()).map(|(index, _)| index);
    Ok((explorer.context_use.get(), probes.collect()))
}

/// Where several ways meet: targets of jumps, and what `may_goto` guards.
fn meetings(code: &Code) -> Vec<Option<Vec<usize>>> {
    let mut meetings = Vec::new();
    meetings.resize_with(code.instructions().len(), || None);
    for (index, instruction) in code.instructions().iter().enumerate() {
        let distance = match *instruction {
            Instruction::Jump { offset, .. } => offset,
            Instruction::Branch { offset, .. } => offset.into(),
            Instruction::MayGoto { offset } => {
                meetings[index] = Some(Vec::new());
                offset.into()
            }
            Instruction::LoadWide { value: Wide::Function(distance), .. } => distance,
            _ => continue,
        };
        if let Some(target) = code.target(index, distance) {
            meetings[target] = Some(Vec::new());
        }
    }
    meetings
}

impl Explorer<'_> {
    /// Follows one instruction; false where the way ends.
    fn advance(&mut self, way: &mut Way) -> Result<bool, Fault> {
        if self.meetings[way.at].is_some() && self.is_known(way)? {
            return Ok(false);
        }
        way.since += 1;
        if matches!(self.code.instructions()[way.at], Instruction::MayGoto { .. }) {
            way.rounds += 1;
        }
        let step = Step {
            code: self.code,
            contract: self.contract,
            at: way.at,
            state: &mut way.state,
            context_use: &self.context_use,
            is_probe: &self.probes[way.at],
        };
        match step.follow()? {
            Next::One(at) => way.at = at,
            Next::Two(at, other, state) => {
                way.at = at;
                self.push(way, other, state, Entering::No);
            }
            Next::Iterate { behind, enter, entered } => {
                way.at = behind;
                self.push(way, enter, entered, Entering::Yes);
            }
            Next::Ended => return Ok(false),
        }
        Ok(true)
    }

    /// Notes another way that goes on from `way`.
    fn push(&mut self, way: &Way, at: usize, state: State, entering: Entering) {
        if let Some(before) = way.before {
            self.kept[before].open += 1;
        }
        let Way { before, rounds, since, .. } = *way;
        self.values += state.weight();
        let entering = entering == Entering::Yes;
        self.pending.push(Way { at, state, before, rounds: rounds + usize::from(entering), entering, since });
    }

    /// Whether the way need not be followed, since one from here that includes it was. Otherwise keeps its state.
    fn is_known(&mut self, way: &mut Way) -> Result<bool, Fault> {
        // A helper that calls a function counts, as `may_goto` does.
        let guarded = core::mem::take(&mut way.entering)
            || matches!(self.code.instructions()[way.at], Instruction::MayGoto { .. });
        let mut state = way.state.clone();
        state.forget(way.at, &self.live);
        let met = self.meetings[way.at].as_deref().unwrap_or_default();
        let mut earlier_round = None;
        for &index in met.iter().rev().take(LOOKED_AT) {
            let kept = &self.kept[index];
            let is_open = kept.open > 0;
            if is_open && guarded && earlier_round.is_none() && kept.state.has_functions_of(&state) {
                earlier_round = Some(index);
            }
            if !kept.state.includes(&state) {
                continue;
            }
            match is_open {
                false => return Ok(true),
                // Another round from here does what was done before, and the count ends it.
                true if guarded => return Ok(true),
                true if kept.state == state && kept.rounds == way.rounds => return Err(Fault::Endless),
                true => {}
            }
        }
        if let Some(earlier) = earlier_round {
            // What differs from round to round is forgotten, so that few rounds say all.
            state = self.kept[earlier].state.widened(&state);
            way.state = state.clone();
        } else if way.since < APART && !guarded && !met.is_empty() {
            return Ok(false);
        }
        let index = self.kept.len();
        self.values += state.weight();
        self.kept.push(Kept { state, before: way.before, open: 1, rounds: way.rounds });
        if let Some(met) = &mut self.meetings[way.at] {
            met.push(index);
        }
        (way.before, way.since) = (Some(index), 0);
        Ok(false)
    }

    /// Notes that a way has ended whose last kept state is `before`.
    fn end(&mut self, mut before: Option<usize>) {
        while let Some(index) = before {
            let kept = &mut self.kept[index];
            kept.open -= 1;
            if kept.open > 0 {
                return;
            }
            before = kept.before;
        }
    }
}

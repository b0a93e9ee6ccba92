//! How a program was verified: the way that led to where it was refused, and what it took.
//!
//! A program is first verified as ever. Only then, and only for whoever asks, it is followed again, watched (`watch`):
//! once to see which steps lead to the refusal, and once to note what they change. `matter` finds those that the
//! refusal is about, and `words` says what is known.

mod matter;
mod reads;
mod watch;
mod words;

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};

pub(super) use watch::Watch;

use super::Contract;
use super::fault::VerifyError;
use super::state::{Known, Place};
use crate::code::Code;
use crate::insn::Instruction;
use matter::matter;
use watch::{Entry, Way};
use words::Speaker;

/// Which steps of a way are told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Detail {
    /// Those that matter for the refusal: what it is about and what that was made of, comparisons, calls, and what is
    /// to be given back.
    #[default]
    Way,
    /// All.
    All,
}

/// What verification took.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// Instructions that were followed, on all ways together.
    pub followed: usize,
    /// Ways.
    pub ways: usize,
    /// Ways that ended since others from there on had been followed.
    pub met: usize,
    /// States that were kept for others to meet.
    pub kept: usize,
    /// Most ways that were still to be followed.
    pub most_waiting: usize,
    /// For each function the slot where it begins, and how many bytes of its stack are used at most.
    pub stack: Vec<(usize, usize)>,
}

/// Something that a step makes known.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct LogChange {
    /// Registers, or bytes of the stack.
    pub place: String,
    /// What is there.
    pub value: String,
}

/// An instruction on the way.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogStep {
    /// Its slot, from 0.
    pub slot: usize,
    /// The instruction.
    pub instruction: Instruction,
    /// How many functions are around its function.
    pub depth: usize,
    /// What is no longer known when it begins, since it differs from round to round of a loop.
    pub forgotten: Vec<LogChange>,
    /// Where the way goes on, if the instruction leaves a choice.
    pub turn: Option<String>,
    /// What is known behind it that was not before.
    pub changes: Vec<LogChange>,
    /// More changes, which are not told.
    pub more: usize,
}

/// Tells how a program was verified ([`Contract::verify_logged`]).
///
/// ```
/// use palimpsest_bpf::verify::{ContextAccess, Contract, Detail, Log};
/// use palimpsest_bpf::{Code, asm};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let code = Code::new(&asm::assemble("r2 = *(u8 *)(r1 + 0)\n r1 += r2\n r0 = *(u8 *)(r1 + 0)\n exit")?)?;
/// let mut log = Log::new(Detail::Way);
/// assert!(Contract::new().context(8, ContextAccess::Read).verify_logged(code, &mut log).is_err());
/// assert_eq!(log.steps()[1].changes[0].value, "context + (0 to 255)");
/// println!("{log}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Log {
    detail: Detail,
    most: usize,
    begin: Option<Begin>,
    steps: Vec<LogStep>,
    error: Option<VerifyError>,
    statistics: Statistics,
}

/// Where a way begins.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Begin {
    /// Steps before the first one that is told which are left out, since the log would be too long.
    left_out: usize,
    /// Steps that do not matter.
    passed_over: usize,
    /// What begins.
    what: String,
    /// What is known there.
    known: Vec<LogChange>,
}

/// Names of what programs know by index; may lack some.
#[derive(Debug, Default)]
pub(crate) struct Names {
    pub(crate) maps: Vec<String>,
    pub(crate) functions: Vec<String>,
}

/// Steps that are told, if nobody sets another number.
const MOST_STEPS: usize = 200;
/// Steps that are looked at for each one that is told, if some do not matter.
const LOOKED_AT: usize = 8;

impl Log {
    /// Makes an empty log.
    pub const fn new(detail: Detail) -> Self {
        Self { detail, most: MOST_STEPS, begin: None, steps: Vec::new(), error: None, statistics: Statistics::EMPTY }
    }

    /// Tells at most the last `most` steps; 200 if not set. Each has at most 16 [changes](LogStep::changes).
    pub fn most_steps(self, most: usize) -> Self {
        Self { most: most.max(1), ..self }
    }

    /// The steps that led to where the program was refused, the refused instruction last; empty if it was not.
    pub fn steps(&self) -> &[LogStep] {
        &self.steps
    }

    /// Returns how many steps at the beginning of the way are left out, since the log would be too long.
    pub fn left_out(&self) -> usize {
        self.begin.as_ref().map_or(0, |begin| begin.left_out)
    }

    /// Returns how many steps among those that are told are not, since they do not matter.
    pub fn passed_over(&self) -> usize {
        self.begin.as_ref().map_or(0, |begin| begin.passed_over)
    }

    /// What is known before the first step that is told.
    pub fn before(&self) -> &[LogChange] {
        self.begin.as_ref().map_or(&[], |begin| &begin.known)
    }

    /// What verification took; of several attempts, the one that counts.
    pub const fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Shows the log with lines of a source: `line` tells that of a slot.
    pub fn with_lines<F: Fn(usize) -> Option<String>>(&self, line: F) -> impl Display {
        Shown { log: self, line }
    }

    /// Forgets what it tells.
    pub(super) fn clear(&mut self) {
        *self = Self { most: self.most, ..Self::new(self.detail) };
    }

    /// Returns how many steps are looked at.
    pub(super) const fn looked_at(&self) -> usize {
        match self.detail {
            Detail::Way => self.most.saturating_mul(LOOKED_AT),
            Detail::All => self.most,
        }
    }

    /// Tells what a verification took that was watched.
    pub(super) fn tell_statistics(&mut self, watch: &Watch) {
        self.statistics.clone_from(&watch.statistics);
    }

    /// Tells how a program came to be refused.
    pub(super) fn tell_way(
        &mut self,
        watch: Watch,
        error: VerifyError,
        (code, contract, names): (&Code, &Contract, &Names),
    ) {
        self.error = Some(error);
        let Some(way) = watch.noted() else { return };
        let speaker = Speaker { code, contract, names };
        let (mut shown, wanted) = match self.detail {
            Detail::Way => matter(&way, &error.fault),
            Detail::All => (alloc::vec![true; way.entries.len()], way.before.iter().map(|(place, _)| *place).collect()),
        };
        // Of those that matter the last ones.
        let too_many = shown.iter().filter(|shown| **shown).count().saturating_sub(self.most);
        let first = if too_many == 0 {
            0
        } else {
            let behind = shown.iter().enumerate().filter(|(_, shown)| **shown).nth(too_many);
            behind.map_or(0, |(place, _)| place)
        };
        shown[..first].fill(false);
        let told = way.entries.iter().enumerate().filter(|(place, _)| shown[*place]);
        self.steps = told.map(|(place, entry)| step(&speaker, entry, way.entries.get(place + 1))).collect();
        let passed_over = way.entries.len() - first - self.steps.len();
        let known = if first == 0 {
            let known: Vec<_> = way.before.iter().filter(|(place, _)| wanted.contains(place)).cloned().collect();
            speaker.changes(&known, way.entries[0].depth).0
        } else {
            Vec::new()
        };
        let what = begin(&way, code);
        self.begin = Some(Begin { left_out: way.left_out + first, passed_over, what, known });
    }
}

/// Tells a step, behind which the way goes on with `next`.
fn step(speaker: &Speaker<'_>, entry: &Entry, next: Option<&Entry>) -> LogStep {
    let here = next.map_or(entry.depth, |next| next.depth);
    let (forgotten, _) = speaker.changes(&entry.forgotten, entry.depth);
    // Every call takes them from the caller.
    let is_taken = |(place, known): &&(Place, Known)| match place {
        Place::Register(depth, register) => {
            *depth < here && here > entry.depth && known.is_nothing() && register.number() < 6
        }
        _ => false,
    };
    let changes: Vec<_> = entry.changes.iter().filter(|change| !is_taken(change)).cloned().collect();
    let (changes, more) = speaker.changes(&changes, here);
    LogStep {
        slot: speaker.code.slot(entry.at),
        instruction: entry.instruction,
        depth: entry.depth,
        forgotten,
        turn: next.and_then(|next| speaker.turn(entry, next)),
        changes,
        more,
    }
}

/// Says where a way begins.
fn begin(way: &Way, code: &Code) -> String {
    match code.slot(way.entries[0].at) {
        slot if way.is_later => format!("a timer calls the function in slot {slot}"),
        0 => String::from("the program begins"),
        slot => format!("the function in slot {slot}, which is verified alone, begins"),
    }
}

impl Statistics {
    const EMPTY: Self = Self { followed: 0, ways: 0, met: 0, kept: 0, most_waiting: 0, stack: Vec::new() };
}

impl Display for Statistics {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { followed, ways, met, kept, most_waiting, stack } = self;
        write!(
            f,
            "instructions followed: {followed}; ways: {ways}, ended where others had been: {met}, waiting at most: \
             {most_waiting}; states kept: {kept}; stack: "
        )?;
        for (place, (slot, len)) in stack.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{len} bytes")?;
            if *slot > 0 {
                write!(f, " (function in slot {slot})")?;
            }
        }
        Ok(())
    }
}

/// A log with lines.
struct Shown<'a, F> {
    log: &'a Log,
    line: F,
}

impl Display for Log {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.with_lines(|_| None).fmt(f)
    }
}

/// Writes what is known, one behind the other.
fn list(f: &mut Formatter<'_>, changes: &[LogChange]) -> fmt::Result {
    for (index, LogChange { place, value }) in changes.iter().enumerate() {
        let comma = if index == 0 { "" } else { "; " };
        write!(f, "{comma}{place}: {value}")?;
    }
    Ok(())
}

impl<F: Fn(usize) -> Option<String>> Display for Shown<'_, F> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { log, line } = self;
        if let Some(begin) = &log.begin {
            writeln!(f, "{begin}")?;
        }
        let mut source = None;
        for step in &log.steps {
            let here = line(step.slot);
            if here.is_some() && here != source {
                writeln!(f, "; {}", here.as_deref().unwrap_or_default())?;
            }
            source = here;
            writeln!(f, "{step}")?;
        }
        if let Some(error) = &log.error {
            writeln!(f, "refused: {}", error.fault)?;
        }
        write!(f, "{}", log.statistics)
    }
}

impl Display for Begin {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { left_out, passed_over, what, known } = self;
        match left_out {
            0 => f.write_str(what)?,
            _ => write!(f, "steps left out at the beginning: {left_out}")?,
        }
        if !known.is_empty() {
            f.write_str("; ")?;
            list(f, known)?;
        }
        if *passed_over > 0 {
            write!(f, "\n(steps that do not matter here, and are passed over: {passed_over})")?;
        }
        Ok(())
    }
}

impl Display for LogStep {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        /// Columns of the text of an instruction.
        const WIDTH: usize = 34;
        let Self { slot, instruction, depth, forgotten, turn, changes, more } = self;
        let indent = 2 * depth;
        if !forgotten.is_empty() {
            write!(f, "{:indent$}        differs from round to round, and is forgotten: ", "")?;
            list(f, forgotten)?;
            writeln!(f)?;
        }
        let text = format!("{instruction}");
        write!(f, "{slot:6}: {:indent$}{text}", "")?;
        if turn.is_none() && changes.is_empty() {
            return Ok(());
        }
        let gap = WIDTH.saturating_sub(text.chars().count() + indent);
        write!(f, "{:gap$}  ", "")?;
        if let Some(turn) = turn {
            f.write_str(turn)?;
            f.write_str(if changes.is_empty() { "" } else { "; " })?;
        }
        list(f, changes)?;
        if *more > 0 { write!(f, "; and {more} more") } else { Ok(()) }
    }
}

//! What `verify --json`, `run --json` and `bench --json` say. Fields are only added; what changes its meaning changes
//! `version`.

use std::io::{self, Write};

use palimpsest_bpf::elf::{Explained, Program, SourceLine};
use palimpsest_bpf::verify::{Log, LogChange, LogStep, Verified, VerifyError};
use serde::Serialize;

use super::engine::EngineError;

/// The shape of these documents.
const VERSION: u32 = 1;

/// A document: what is said, and who says it.
#[derive(Serialize)]
struct Document<T> {
    version: u32,
    palimpsest: &'static str,
    #[serde(flatten)]
    content: T,
}

/// Writes a document.
pub(super) fn write(content: impl Serialize) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let document = Document { version: VERSION, palimpsest: env!("CARGO_PKG_VERSION"), content };
    serde_json::to_writer_pretty(&mut out, &document)?;
    writeln!(out)
}

/// What `verify` says.
#[derive(Serialize)]
pub(super) struct Verification {
    /// Whether all are.
    pub(super) verified: bool,
    pub(super) programs: Vec<Checked>,
}

/// A program that was looked at.
#[derive(Serialize)]
pub(super) struct Checked {
    /// Its name, if it is an object's.
    program: Option<String>,
    verified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    measures: Option<Measures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Refusal>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<Logged>,
}

/// What the verifier has found out.
#[derive(Serialize)]
pub(super) struct Measures {
    slots: usize,
    functions: usize,
    /// Of them active at once, at most.
    frames: usize,
    /// Instructions that were followed.
    followed: usize,
    /// Jumps back in a run, if its loops take fuel.
    fuel: Option<u64>,
    /// Loads that may find nothing.
    probes: usize,
    /// Stores that are checked when it runs.
    checked_stores: usize,
}

impl Measures {
    pub(super) fn of(verified: &Verified) -> Self {
        let code = verified.code();
        Self {
            slots: code.len(),
            functions: code.functions().len(),
            frames: code.frames(),
            followed: verified.followed(),
            fuel: verified.fuel(),
            probes: verified.probes().len(),
            checked_stores: verified.checked_stores().len(),
        }
    }
}

/// Why a program is refused.
#[derive(Serialize)]
pub(super) struct Refusal {
    /// Where, in slots from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instruction: Option<String>,
    /// Why, and what to change.
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<Line>,
}

/// A line of the source.
#[derive(Serialize)]
struct Line {
    file: String,
    line: u32,
    /// 0 if it is not known.
    column: u32,
    text: String,
}

impl Line {
    fn of(line: &SourceLine) -> Self {
        let (file, text) = (line.file().to_owned(), line.text().to_owned());
        Self { file, line: line.line(), column: line.column(), text }
    }
}

impl Refusal {
    fn by(error: &VerifyError, explained: Option<&Explained>) -> Self {
        Self {
            slot: Some(error.slot),
            instruction: Some(error.instruction.to_string()),
            reason: error.fault.to_string(),
            line: explained.and_then(Explained::line).map(Line::of),
        }
    }

    /// Returns why a program is refused, if that is what the error says.
    fn of(error: &EngineError) -> Option<Self> {
        match error {
            EngineError::Verify(error) | EngineError::Compiler(error) => Some(Self::by(error, None)),
            EngineError::Explained(explained) => Some(Self::by(explained.error(), Some(explained))),
            EngineError::Structure(error) => {
                Some(Self { slot: None, instruction: None, reason: error.to_string(), line: None })
            }
            _ => None,
        }
    }
}

impl Checked {
    /// Says what became of a program, which has a name if it is an object's. An error that is not about it is returned.
    pub(super) fn new(
        program: Option<&Program>,
        result: Result<Verified, EngineError>,
        log: Option<&Log>,
    ) -> Result<Self, EngineError> {
        let (measures, refusal) = match result {
            Ok(verified) => (Some(Measures::of(&verified)), None),
            Err(error) => (None, Some(Refusal::of(&error).ok_or(error)?)),
        };
        let verified = measures.is_some();
        let log = log.map(|log| Logged::of(log, program));
        Ok(Self { program: program.map(|program| program.name().to_owned()), verified, measures, refusal, log })
    }

    pub(super) const fn is_verified(&self) -> bool {
        self.verified
    }
}

/// How a program was verified.
#[derive(Serialize)]
struct Logged {
    statistics: Taken,
    /// Steps at the beginning of the way that are not told, since the log would be too long.
    left_out: usize,
    /// Steps that are not told, since they do not matter for the refusal.
    passed_over: usize,
    /// What is known before the first step.
    before: Vec<Known>,
    /// The way to a refusal.
    steps: Vec<Step>,
}

/// What verification took.
#[derive(Serialize)]
struct Taken {
    followed: usize,
    ways: usize,
    met: usize,
    kept: usize,
    most_waiting: usize,
    stack: Vec<Stack>,
}

/// What a function uses of its stack.
#[derive(Serialize)]
struct Stack {
    /// Where the function begins.
    slot: usize,
    bytes: usize,
}

/// An instruction on the way.
#[derive(Serialize)]
struct Step {
    slot: usize,
    instruction: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<Line>,
    /// How many functions are around its function.
    depth: usize,
    /// What is no longer known when it begins.
    forgotten: Vec<Known>,
    /// Where the way goes on, if the instruction leaves a choice.
    turn: Option<String>,
    /// What is known behind it that was not before.
    changes: Vec<Known>,
    /// More of them, which are not told.
    more: usize,
}

/// What is known of registers, or of bytes of the stack.
#[derive(Serialize)]
struct Known {
    place: String,
    value: String,
}

impl Known {
    fn all(changes: &[LogChange]) -> Vec<Self> {
        changes.iter().map(|change| Self { place: change.place.clone(), value: change.value.clone() }).collect()
    }
}

impl Logged {
    fn of(log: &Log, program: Option<&Program>) -> Self {
        let step = |step: &LogStep| Step {
            slot: step.slot,
            instruction: step.instruction.to_string(),
            line: program.and_then(|program| program.line(step.slot)).as_ref().map(Line::of),
            depth: step.depth,
            forgotten: Known::all(&step.forgotten),
            turn: step.turn.clone(),
            changes: Known::all(&step.changes),
            more: step.more,
        };
        let taken = log.statistics();
        Self {
            statistics: Taken {
                followed: taken.followed,
                ways: taken.ways,
                met: taken.met,
                kept: taken.kept,
                most_waiting: taken.most_waiting,
                stack: taken.stack.iter().map(|&(slot, bytes)| Stack { slot, bytes }).collect(),
            },
            left_out: log.left_out(),
            passed_over: log.passed_over(),
            before: Known::all(log.before()),
            steps: log.steps().iter().map(step).collect(),
        }
    }
}

/// What `run` says.
#[derive(Serialize)]
pub(super) struct Ran {
    /// Its name, if it is an object's.
    pub(super) program: Option<String>,
    pub(super) engine: &'static str,
    /// In hexadecimal digits, since not every reader of JSON has 64 bits; none if there is no result.
    pub(super) r0: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Refusal>,
    /// Why it was ended, or not begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Ran {
    pub(super) fn new(program: Option<String>, engine: &'static str, result: &Result<u64, EngineError>) -> Self {
        let (mut refusal, mut error) = (None, None);
        if let Err(failed) = result {
            refusal = Refusal::of(failed);
            error = refusal.is_none().then(|| causes(failed));
        }
        Self { program, engine, r0: result.as_ref().ok().map(|r0| format!("{r0:#x}")), refusal, error }
    }
}

/// Returns an error with all its causes.
fn causes(error: &dyn std::error::Error) -> String {
    std::iter::successors(error.source(), |cause| cause.source())
        .fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

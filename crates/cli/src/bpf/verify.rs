//! `palimpsest bpf verify`.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use palimpsest_bpf::elf::Program;
use palimpsest_bpf::verify::{Contract, Detail, Log, Verified};

use super::Failure;
use super::engine::{self, EngineError};
use super::report::{self, Checked, Verification};
use super::source::{Loaded, Source};
use super::terms::{Promise, Terms};

/// The arguments of `palimpsest bpf verify`.
#[derive(Debug, Args)]
pub(super) struct Verify {
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    promise: Promise,
    #[command(flatten)]
    terms: Terms,
    /// Also tell what verification took, and the way that leads to a refusal: what is known behind each instruction.
    #[arg(long, value_name = "LEVEL", num_args = 0..=1, require_equals = true, default_missing_value = "way")]
    log: Option<Level>,
    /// Tell at most this many of the last instructions on the way.
    #[arg(long, value_name = "COUNT", requires = "log", default_value_t = 200)]
    log_steps: usize,
    /// Print JSON, about all programs, also behind one that is refused.
    #[arg(long)]
    json: bool,
}

/// Which instructions of a way are told.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Level {
    /// Those that matter for the refusal.
    Way,
    /// All.
    All,
}

impl Verify {
    /// Returns a log to be filled, if one is wanted.
    fn log(&self) -> Option<Log> {
        let detail = match self.log? {
            Level::Way => Detail::Way,
            Level::All => Detail::All,
        };
        Some(Log::new(detail).most_steps(self.log_steps))
    }

    /// Verifies one program after the other, and calls `tell` with what became of each, until that returns an error.
    fn each(&self, mut tell: impl FnMut(Outcome<'_>) -> Result<(), Failure>) -> Result<(), Failure> {
        match self.source.load()? {
            Loaded::Code(code) => {
                let contract = self.terms.of(self.promise.contract(engine::contract));
                let mut log = self.log();
                let verified = match &mut log {
                    Some(log) => contract.verify_logged(code, log),
                    None => contract.verify(code),
                };
                tell(Outcome { program: None, verified: verified.map_err(EngineError::from), log })
            }
            Loaded::Object(object) => {
                let host = object.host()?.build();
                let contract = self.promise.contract(|len, access| Contract::new().context(len, access));
                let contract = self.terms.of(contract);
                for program in self.source.chosen(&object)? {
                    let mut log = self.log();
                    let linked = engine::link(&host, program, contract.clone(), log.as_mut());
                    let verified = linked.map(|linked| linked.verified().clone());
                    tell(Outcome { program: Some(program), verified, log })?;
                }
                Ok(())
            }
        }
    }
}

/// What became of a program.
struct Outcome<'a> {
    /// If it is of an object.
    program: Option<&'a Program>,
    verified: Result<Verified, EngineError>,
    log: Option<Log>,
}

impl Outcome<'_> {
    /// Prints it.
    fn print(self, out: &mut impl Write) -> Result<(), Failure> {
        let name = self.program.map(Program::name);
        let before = name.map_or(String::new(), |name| format!("{name}: "));
        if let Ok(verified) = &self.verified {
            writeln!(out, "{before}verified: {}", Shown(verified))?;
        }
        match (&self.log, self.program) {
            (None, _) => {}
            (Some(log), None) => writeln!(out, "{log}")?,
            (Some(log), Some(program)) if self.verified.is_err() => {
                writeln!(out, "{}:\n{}", program.name(), program.explain_log(log))?;
            }
            (Some(log), Some(_)) => writeln!(out, "{before}{log}")?,
        }
        match (self.verified, name) {
            (Ok(_), _) => Ok(()),
            (Err(error), None) => Err(error.into()),
            (Err(error), Some(name)) => Err(Failure::Program { name: name.to_owned(), source: Box::new(error) }),
        }
    }
}

/// A verified program, in a line.
struct Shown<'a>(&'a Verified);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (verified, code) = (self.0, self.0.code());
        let (slots, functions, frames) = (code.len(), code.functions().len(), code.frames());
        write!(f, "{slots} slots, {functions} functions, {frames} of them active at once at most")?;
        if let Some(fuel) = verified.fuel() {
            write!(f, "; it may jump back {fuel} times")?;
        }
        match verified.probes().len() {
            0 => {}
            probes => write!(f, "; {probes} loads may find nothing, and then give 0")?,
        }
        match verified.checked_stores().len() {
            0 => Ok(()),
            stores => write!(f, "; {stores} stores are checked, and may end it"),
        }
    }
}

pub(super) fn verify(arguments: &Verify) -> Result<(), Failure> {
    if !arguments.json {
        return arguments.each(|outcome| outcome.print(&mut io::stdout().lock()));
    }
    let mut programs = Vec::new();
    arguments.each(|Outcome { program, verified, log }| {
        programs.push(Checked::new(program, verified, log.as_ref())?);
        Ok(())
    })?;
    let verified = programs.iter().all(Checked::is_verified);
    report::write(Verification { verified, programs })?;
    if verified { Ok(()) } else { Err(Failure::Told) }
}

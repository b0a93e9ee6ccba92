//! `disasm`, `asm`, `verify` and `run`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use palimpsest_bpf::asm;
use palimpsest_bpf::verify::ContextAccess;
use serde::Serialize;

use super::conformance::aligned;
use super::engine::{self, Engine};
use super::source::{self, Source, SourceError};
use super::{Failure, hex};

/// The arguments of `palimpsest bpf disasm`.
#[derive(Debug, Args)]
pub(super) struct Disasm {
    #[command(flatten)]
    source: Source,
    /// Print JSON: a list of slots and instructions.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    slot: usize,
    text: String,
}

pub(super) fn disasm(arguments: &Disasm) -> Result<(), Failure> {
    let code = arguments.source.code()?;
    let lines = code.instructions().iter().enumerate();
    let lines = lines.map(|(index, instruction)| Line { slot: code.slot(index), text: instruction.to_string() });
    let mut out = io::stdout().lock();
    if arguments.json {
        let lines: Vec<Line> = lines.collect();
        serde_json::to_writer(&mut out, &lines).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        for Line { slot, text } in lines {
            writeln!(out, "{slot:6}: {text}")?;
        }
    }
    Ok(())
}

/// The arguments of `palimpsest bpf asm`.
#[derive(Debug, Args)]
pub(super) struct Asm {
    /// The text; `-` is standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Print hexadecimal digits instead of bytes.
    #[arg(long)]
    hex: bool,
}

pub(super) fn asm(arguments: &Asm) -> Result<(), Failure> {
    let bytes = asm::assemble(&source::read_text(&arguments.file)?).map_err(SourceError::from)?;
    let mut out = io::stdout().lock();
    if arguments.hex {
        writeln!(out, "{}", hex::write(&bytes))?;
    } else {
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// The arguments of `palimpsest bpf verify`.
#[derive(Debug, Args)]
pub(super) struct Verify {
    #[command(flatten)]
    source: Source,
    /// Bytes of context that the program is promised.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    context: u32,
    /// Promise it a context that it must not write.
    #[arg(long)]
    read_only: bool,
}

pub(super) fn verify(arguments: &Verify) -> Result<(), Failure> {
    let access = if arguments.read_only { ContextAccess::Read } else { ContextAccess::Write };
    let verified = engine::contract(arguments.context, access).verify(arguments.source.code()?);
    let verified = verified.map_err(engine::EngineError::from)?;
    let code = verified.code();
    writeln!(
        io::stdout(),
        "verified: {} slots, {} functions, {} of them active at once at most",
        code.len(),
        code.functions().len(),
        code.frames()
    )?;
    Ok(())
}

/// The arguments of `palimpsest bpf run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    source: Source,
    /// The context: r1 is its address, r2 its length.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Who runs the program.
    #[arg(long, value_name = "ENGINE", default_value = "compiler")]
    engine: Engine,
}

pub(super) fn run(arguments: &Run) -> Result<(), Failure> {
    let code = arguments.source.code()?;
    let context = arguments.input.as_deref().map(source::read).transpose()?.unwrap_or_default();
    let result = arguments.engine.run(code, aligned(&mut Vec::new(), &context))?;
    writeln!(io::stdout(), "{result:#x}")?;
    Ok(())
}

//! `disasm`, `asm` and `run`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use palimpsest_bpf::elf::Program;
use palimpsest_bpf::host::Host;
use palimpsest_bpf::map::{Kind, Map, OpError, Update};
use palimpsest_bpf::verify::{Contract, VerifyError};
use palimpsest_bpf::{Code, LoadError, asm};
use serde::Serialize;

use super::conformance::aligned;
use super::engine::{self, Engine, EngineError};
use super::native::{self, Machine, Native};
use super::report::{self, Ran};
use super::source::{self, Loaded, Source, SourceError};
use super::terms::{Promise, Terms};
use super::{Failure, hex};

/// The arguments of `palimpsest bpf disasm`.
#[derive(Debug, Args)]
pub(super) struct Disasm {
    #[command(flatten)]
    source: Source,
    /// Print the machine code, too, that the compiler for this machine makes of each instruction. Only bytes in a
    /// program that was built without the feature `disassemblers`.
    ///
    /// With one of the options that say on which terms a program is verified (`--context`, `--fuel`, `--untrusted` and
    /// so on) it must pass, and the code is what would be loaded, but for the number that blinds constants: here it is
    /// always the same. Without them nothing is verified, and the code does only what the program says.
    #[arg(long, value_name = "MACHINE")]
    native: Option<Machine>,
    #[command(flatten)]
    promise: Promise,
    #[command(flatten)]
    terms: Terms,
    /// Print JSON: a list of slots and instructions.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<String>,
    slot: usize,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    native: Vec<Native>,
}

impl Disasm {
    /// Returns the contract, if code is wanted as it would be loaded.
    fn contract(&self) -> Option<Contract> {
        let is_asked = (&self.promise, &self.terms) != (&Promise::default(), &Terms::default());
        is_asked.then(|| self.terms.of(self.promise.contract(|len, access| Contract::new().context(len, access))))
    }

    /// Verifies raw code as `verify` and `run` do, which know fewer helpers than a host of maps does.
    fn check(&self, code: &Code) -> Result<(), EngineError> {
        if self.contract().is_some() {
            self.terms.of(self.promise.contract(engine::contract)).verify(code.clone())?;
        }
        Ok(())
    }

    fn lines(&self, host: &Arc<Host>, code: &Code, program: Option<&Program>) -> Result<Vec<Line>, EngineError> {
        let mut native = match (self.native, self.contract()) {
            (None, _) => Vec::new().into_iter(),
            (Some(machine), None) => native::compile(host, code, machine).map_err(LoadError::from)?.into_iter(),
            (Some(machine), Some(contract)) => {
                let explained = |error: VerifyError| {
                    program.map_or(EngineError::from(error), |program| program.explain(error).into())
                };
                let linked = host.verify(contract, code.clone()).map_err(explained)?;
                native::compile_verified(&linked, machine).map_err(LoadError::from)?.into_iter()
            }
        };
        let lines = code.instructions().iter().enumerate().map(|(index, instruction)| {
            let slot = code.slot(index);
            let source = program.and_then(|program| program.line(slot)).map(|line| line.to_string());
            let program = program.map(|program| program.name().to_owned());
            Line { program, slot, text: instruction.to_string(), source, native: native.next().unwrap_or_default() }
        });
        Ok(lines.collect())
    }
}

pub(super) fn disasm(arguments: &Disasm) -> Result<(), Failure> {
    if arguments.native.is_none() && arguments.contract().is_some() {
        return Err(Failure::NoMachine);
    }
    let mut all = Vec::new();
    match arguments.source.load()? {
        Loaded::Code(code) => {
            arguments.check(&code)?;
            all.extend(arguments.lines(&engine::host(), &code, None)?);
        }
        Loaded::Object(object) => {
            // Maps take memory, and matter only for machine code.
            let host = if arguments.native.is_some() { object.host()? } else { Host::builder() }.build();
            for program in arguments.source.chosen(&object)? {
                let code = program.code().map_err(SourceError::from)?;
                all.extend(arguments.lines(&host, &code, Some(program))?);
            }
        }
    }
    if let (Some(note), Some(_)) = (native::NOTE, arguments.native) {
        let _ = writeln!(io::stderr(), "palimpsest: {note}");
    }
    let mut out = io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &all).map_err(io::Error::from)?;
        writeln!(out)?;
        return Ok(());
    }
    let (mut program, mut source) = (None, None);
    for line in &all {
        if line.program != program {
            program.clone_from(&line.program);
            writeln!(out, "{}:", program.as_deref().unwrap_or_default())?;
        }
        if line.source != source {
            source.clone_from(&line.source);
            writeln!(out, "; {}", source.as_deref().unwrap_or_default())?;
        }
        writeln!(out, "{:6}: {}", line.slot, line.text)?;
        for Native { offset, bytes, text } in &line.native {
            writeln!(out, "{offset:14x}: {bytes:22} {text}")?;
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

/// The arguments of `palimpsest bpf run`.
#[derive(Debug, Args)]
pub(super) struct Run {
    #[command(flatten)]
    source: Source,
    /// The context: r1 is its address, r2 its length.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Put elements into a map of the object before the program runs: values one behind the other for an array, keys
    /// with their values for others. Repeat for each map.
    #[arg(long, value_name = "NAME=FILE")]
    map: Vec<MapContent>,
    /// Who runs the program.
    #[arg(long, value_name = "ENGINE", default_value = "compiler")]
    engine: Engine,
    #[command(flatten)]
    terms: Terms,
    /// Print JSON, also if there is no result.
    #[arg(long)]
    json: bool,
}

/// What a map is filled with.
#[derive(Clone, Debug)]
pub(super) struct MapContent {
    name: String,
    file: PathBuf,
}

impl FromStr for MapContent {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, file) = text.split_once('=').ok_or("expected NAME=FILE")?;
        Ok(Self { name: name.to_owned(), file: file.into() })
    }
}

/// Why a map cannot be filled.
#[derive(Debug, thiserror::Error)]
pub(super) enum FillError {
    #[error("the file has {len} bytes, and must have elements of {each} bytes each")]
    Length { len: usize, each: usize },
    #[error("element {index}")]
    Element {
        index: u32,
        #[source]
        source: OpError,
    },
}

pub(super) fn run(arguments: &Run) -> Result<(), Failure> {
    let context = arguments.input.as_deref().map(source::read).transpose()?.unwrap_or_default();
    let mut room = Vec::new();
    let context = aligned(&mut room, &context);
    let (name, result) = match arguments.source.load()? {
        Loaded::Code(_) if !arguments.map.is_empty() => return Err(Failure::NoMaps),
        Loaded::Code(code) => (None, arguments.engine.run(code, context, &arguments.terms)),
        Loaded::Object(object) => {
            let program = arguments.source.one(&object)?;
            let host = object.host()?.build();
            fill_all(&host, &arguments.map)?;
            (Some(program.name().to_owned()), arguments.engine.run_hosted(&host, program, context, &arguments.terms))
        }
    };
    if arguments.json {
        report::write(Ran::new(name, arguments.engine.name(), &result))?;
        return result.map(drop).map_err(|_| Failure::Told);
    }
    writeln!(io::stdout(), "{:#x}", result?)?;
    Ok(())
}

/// Puts what the command line says into maps.
pub(super) fn fill_all(host: &Host, contents: &[MapContent]) -> Result<(), Failure> {
    for MapContent { name, file } in contents {
        let map = host.map(name).ok_or_else(|| Failure::NoMap { name: name.clone() })?;
        fill(map, &source::read(file)?).map_err(|source| Failure::Fill { name: name.clone(), source })?;
    }
    Ok(())
}

/// Puts elements into a map: values by number for arrays, keys with their values for others.
fn fill(map: &Map, bytes: &[u8]) -> Result<(), FillError> {
    let definition = map.definition();
    let (key_len, value_len) = (definition.key_len as usize, definition.value_len as usize);
    let is_array = matches!(definition.kind, Kind::Array | Kind::PerCpuArray);
    let each = value_len + if is_array { 0 } else { key_len };
    if each == 0 || !bytes.len().is_multiple_of(each) {
        return Err(FillError::Length { len: bytes.len(), each });
    }
    for (index, element) in (0_u32..).zip(bytes.chunks_exact(each)) {
        let number = index.to_ne_bytes();
        let (key, value) = if is_array { (&number[..], element) } else { element.split_at(key_len) };
        map.update(key, value, Update::Always).map_err(|source| FillError::Element { index, source })?;
    }
    Ok(())
}

//! The protocol of the public conformance suite: its runner starts a plugin for each program.

use std::io::{self, Write};
use std::path::Path;

use clap::Args;

use super::engine::Engine;
use super::source::SourceError;
use super::terms::Terms;
use super::{Failure, hex, source};

/// The arguments of `palimpsest bpf conformance`.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The memory that r1 points at and r2 counts, in hexadecimal digits.
    #[arg(value_name = "MEMORY", default_value = "")]
    memory: String,
    /// Who runs the program.
    #[arg(long, value_name = "ENGINE", default_value = "compiler")]
    engine: Engine,
}

/// Runs the program on standard input.
pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    // Atomic operations need an aligned context: the words are aligned, and the bytes begin where they do.
    let memory = hex::read(&arguments.memory)?;
    let bytes = hex::read(&source::read_text(Path::new("-"))?).map_err(SourceError::from)?;
    let code = palimpsest_bpf::Code::new(&bytes).map_err(SourceError::from)?;
    let result = arguments.engine.run(code, aligned(&mut Vec::new(), &memory), &Terms::default())?;
    writeln!(io::stdout(), "{result:x}")?;
    Ok(())
}

/// Copies `bytes` into `room`, so that they begin at a multiple of 8.
pub(super) fn aligned<'a>(room: &'a mut Vec<u8>, bytes: &[u8]) -> &'a mut [u8] {
    const ALIGN: usize = 8;
    room.clear();
    room.resize(bytes.len() + ALIGN, 0);
    let start = room.as_ptr().addr().wrapping_neg() % ALIGN;
    let place = &mut room[start..start + bytes.len()];
    place.copy_from_slice(bytes);
    place
}

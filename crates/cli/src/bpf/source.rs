//! Where a program comes from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use palimpsest_bpf::asm::AsmError;
use palimpsest_bpf::insn::SLOT;
use palimpsest_bpf::{Code, MOST_SLOTS, StructureError, asm};

use super::hex::{self, HexError};

/// How a program is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Form {
    /// Bytes.
    Raw,
    /// Hexadecimal digits.
    Hex,
    /// Text for the assembler.
    Asm,
}

/// A program.
#[derive(Debug, Args)]
pub(crate) struct Source {
    /// The program; `-` is standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// How it is written.
    #[arg(long, value_name = "FORM", default_value = "raw")]
    from: Form,
}

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SourceError {
    #[error("cannot read {}", Name(path))]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is longer than {most} bytes, which no program is", Name(path))]
    Long { path: PathBuf, most: u64 },
    #[error("{} is not text", Name(path))]
    Text { path: PathBuf },
    #[error("the program is not hexadecimal digits")]
    Hex(#[from] HexError),
    #[error("the program is not assembled")]
    Asm(#[from] AsmError),
    #[error("the structure of the program is wrong")]
    Structure(#[from] StructureError),
}

struct Name<'a>(&'a Path);

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == Path::new("-") { f.write_str("standard input") } else { self.0.display().fmt(f) }
    }
}

/// Most bytes that a file has which is read: a program of the greatest length as digits, with blanks, or as text.
const MOST_BYTES: u64 = (MOST_SLOTS * SLOT * 16) as u64;

/// All bytes of a file, or of standard input for `-`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
    let failed = |source| SourceError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let taken = if path == Path::new("-") {
        io::stdin().lock().take(MOST_BYTES + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).map_err(failed)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)
    };
    taken.map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(SourceError::Long { path: path.to_owned(), most: MOST_BYTES });
    }
    Ok(bytes)
}

/// A file that is text.
pub(super) fn read_text(path: &Path) -> Result<String, SourceError> {
    String::from_utf8(read(path)?).map_err(|_| SourceError::Text { path: path.to_owned() })
}

impl Source {
    /// The program, with its structure checked.
    pub(super) fn code(&self) -> Result<Code, SourceError> {
        let bytes = match self.from {
            Form::Raw => read(&self.file)?,
            Form::Hex => hex::read(&read_text(&self.file)?)?,
            Form::Asm => asm::assemble(&read_text(&self.file)?)?,
        };
        Ok(Code::new(&bytes)?)
    }
}

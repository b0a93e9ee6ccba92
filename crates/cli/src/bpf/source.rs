//! Where a program comes from.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use palimpsest_bpf::asm::AsmError;
use palimpsest_bpf::elf::{Object, ObjectError, Program};
use palimpsest_bpf::insn::SLOT;
use palimpsest_bpf::{Code, MOST_SLOTS, StructureError, asm};

use super::hex::{self, HexError};

/// How a program is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Form {
    /// Bytes, or an object file.
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
    /// Which program of an object file; if none is named, all of them or the only one.
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
}

/// What a file holds.
pub(super) enum Loaded {
    /// A program.
    Code(Code),
    /// An object file with programs.
    Object(Box<Object>),
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
    #[error("{} is longer than {most} bytes, which no {what} is", Name(path))]
    Long { path: PathBuf, what: What, most: u64 },
    #[error("{} is not text", Name(path))]
    Text { path: PathBuf },
    #[error("the program is not hexadecimal digits")]
    Hex(#[from] HexError),
    #[error("the program is not assembled")]
    Asm(#[from] AsmError),
    #[error("the structure of the program is wrong")]
    Structure(#[from] StructureError),
    #[error(
        "{} is text, and no byte code; `--from asm` takes text for the assembler, `--from hex` hexadecimal digits",
        Name(path)
    )]
    IsText { path: PathBuf },
    #[error("the object file is not understood")]
    Object(#[from] ObjectError),
    #[error("the object file has no program `{asked}`; it has {}", List(names))]
    NoProgram { asked: String, names: Vec<String> },
    #[error("the object file has several programs; choose one by --program: {}", List(names))]
    Several { names: Vec<String> },
    #[error("--program chooses among those of an object file, and this is none")]
    NoObject,
}

struct List<'a>(&'a [String]);

impl std::fmt::Display for List<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { f.write_str("none") } else { f.write_str(&self.0.join(", ")) }
    }
}

struct Name<'a>(&'a Path);

impl std::fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == Path::new("-") { f.write_str("standard input") } else { self.0.display().fmt(f) }
    }
}

/// What a file is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Program,
    /// A context, or elements of a map.
    Data,
}

impl What {
    /// Most bytes of a file.
    const fn most(self) -> u64 {
        match self {
            // The longest program takes fewer, as digits with blanks or as text.
            Self::Program => (MOST_SLOTS * SLOT * 16) as u64,
            // A length has 32 bits.
            Self::Data => u32::MAX as u64,
        }
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Program => "program",
            Self::Data => "context and no content of a map",
        })
    }
}

/// Reads all bytes of a file, or of standard input for `-`: a context, or elements of a map.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
    read_as(What::Data, path, What::Data.most())
}

fn read_program(path: &Path) -> Result<Vec<u8>, SourceError> {
    read_as(What::Program, path, What::Program.most())
}

/// Reads all bytes of a file that has `most` at most.
fn read_as(what: What, path: &Path, most: u64) -> Result<Vec<u8>, SourceError> {
    let failed = |source| SourceError::Read { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    let taken = if path == Path::new("-") {
        io::stdin().lock().take(most + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).map_err(failed)?.take(most + 1).read_to_end(&mut bytes)
    };
    taken.map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(SourceError::Long { path: path.to_owned(), what, most });
    }
    Ok(bytes)
}

/// Reads a program that is text.
pub(super) fn read_text(path: &Path) -> Result<String, SourceError> {
    String::from_utf8(read_program(path)?).map_err(|_| SourceError::Text { path: path.to_owned() })
}

/// Whether these bytes were written by somebody who takes them for text.
fn is_text(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n'))
}

impl Source {
    /// Loads what the file holds; checks the structure of code.
    pub(super) fn load(&self) -> Result<Loaded, SourceError> {
        let bytes = match self.from {
            Form::Raw => read_program(&self.file)?,
            Form::Hex => hex::read(&read_text(&self.file)?)?,
            Form::Asm => asm::assemble(&read_text(&self.file)?)?,
        };
        if bytes.starts_with(b"\x7fELF") {
            return Ok(Loaded::Object(Box::new(Object::parse(&bytes)?)));
        }
        if self.program.is_some() {
            return Err(SourceError::NoObject);
        }
        match Code::new(&bytes) {
            Err(_) if self.from == Form::Raw && is_text(&bytes) => Err(SourceError::IsText { path: self.file.clone() }),
            code => Ok(Loaded::Code(code?)),
        }
    }

    /// Returns the chosen programs of an object.
    pub(super) fn chosen<'a>(&self, object: &'a Object) -> Result<Vec<&'a Program>, SourceError> {
        let is_meant = |program: &&Program| self.program.as_ref().is_none_or(|name| program.name() == name);
        let chosen: Vec<&Program> = object.programs().iter().filter(is_meant).collect();
        if chosen.is_empty() {
            // The error about an object without programs says that it lacks the program with the empty name.
            return Err(SourceError::NoProgram {
                asked: self.program.clone().unwrap_or_default(),
                names: names(object),
            });
        }
        Ok(chosen)
    }

    /// Returns the one chosen program.
    pub(super) fn one<'a>(&self, object: &'a Object) -> Result<&'a Program, SourceError> {
        match self.chosen(object)?[..] {
            [one] => Ok(one),
            _ => Err(SourceError::Several { names: names(object) }),
        }
    }
}

fn names(object: &Object) -> Vec<String> {
    object.programs().iter().map(|program| program.name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_may_be_longer_than_programs() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(What::Program.most() + 1).expect("a hole");
        assert_eq!(read(file.path()).expect("a context").len() as u64, What::Program.most() + 1);
        let refused = |what: What, most| read_as(what, file.path(), most).expect_err("it is longer").to_string();
        let program = refused(What::Program, What::Program.most());
        assert!(program.ends_with("is longer than 128000000 bytes, which no program is"), "{program}");
        let data = refused(What::Data, 100);
        assert!(data.ends_with("is longer than 100 bytes, which no context and no content of a map is"), "{data}");
    }
}

//! A program of an object, and the lines of the source that its instructions come from.

use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use super::btf::Btf;
use super::extension::LineRecord;
use crate::code::{Code, StructureError};
use crate::source::Source;
use crate::verify::{Fault, FunctionType, Log, VerifyError};

/// A line of the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceLine {
    file: String,
    line: u32,
    column: u32,
    text: String,
}

impl SourceLine {
    fn new(btf: &Btf, record: &LineRecord) -> Self {
        let text = btf.text(record.text).trim().to_string();
        Self { file: btf.text(record.file).to_string(), line: record.line, column: record.column, text }
    }

    /// Returns the file, as it was given to the compiler.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The line, from 1.
    pub const fn line(&self) -> u32 {
        self.line
    }

    /// The column, from 1; 0 if it is not known.
    pub const fn column(&self) -> u32 {
        self.column
    }

    /// Returns the text of the line.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        if self.column > 0 {
            write!(f, ":{}", self.column)?;
        }
        if self.text.is_empty() { Ok(()) } else { write!(f, ": {}", self.text) }
    }
}

/// A program: its own function and those that it calls, one behind the other.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    section: String,
    bytes: Vec<u8>,
    /// By slot: the line of the instructions from there on.
    lines: Vec<(u32, LineRecord)>,
    /// What functions take, by the slots in which they begin.
    types: Vec<(u32, FunctionType)>,
    /// The texts of lines.
    btf: Option<Arc<Btf>>,
    /// Names of the host's functions that it calls, by index.
    functions: Arc<[String]>,
}

impl Program {
    pub(super) fn new(
        name: &str,
        section: &str,
        bytes: Vec<u8>,
        mut lines: Vec<(u32, LineRecord)>,
        types: Vec<(u32, FunctionType)>,
        btf: Option<Arc<Btf>>,
    ) -> Self {
        lines.sort_by_key(|(slot, _)| *slot);
        Self {
            name: name.to_string(),
            section: section.to_string(),
            bytes,
            lines,
            types,
            btf,
            functions: Arc::default(),
        }
    }

    pub(super) fn set_functions(&mut self, functions: &Arc<[String]>) {
        self.functions = Arc::clone(functions);
    }

    /// Name of its function.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The section that its function is in.
    pub fn section(&self) -> &str {
        &self.section
    }

    /// Returns its byte code, in which maps are indexes into [`Object::maps`](super::Object::maps).
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns its code with its structure checked. It knows its name, its lines, and what its global functions take.
    ///
    /// # Errors
    ///
    /// [`StructureError`].
    pub fn code(&self) -> Result<Code, StructureError> {
        let mut source = Source::new(&self.name);
        if let Some(btf) = &self.btf {
            for (slot, record) in &self.lines {
                source.add(*slot, btf.text(record.file), record.line, record.column);
            }
        }
        let types = self.types.iter().map(|(slot, takes)| (*slot as usize, takes.clone()));
        Ok(Code::new(&self.bytes)?.with_types(types).with_source(Arc::new(source)))
    }

    /// Returns the line of the source that the instruction in `slot` comes from.
    pub fn line(&self, slot: usize) -> Option<SourceLine> {
        let place = self.lines.partition_point(|(start, _)| *start as usize <= slot).checked_sub(1)?;
        Some(SourceLine::new(self.btf.as_deref()?, &self.lines[place].1))
    }

    /// Shows a log about this program, with the lines of the source.
    pub fn explain_log<'a>(&'a self, log: &'a Log) -> impl fmt::Display + 'a {
        log.with_lines(|slot| self.line(slot).map(|line| line.to_string()))
    }

    /// Adds the line of the source to the error.
    pub fn explain(&self, error: VerifyError) -> Explained {
        let name = match error.fault {
            Fault::Function { index, .. } => usize::try_from(index).ok().and_then(|index| self.functions.get(index)),
            _ => None,
        };
        Explained { line: self.line(error.slot).map(Box::new), name: name.cloned(), error }
    }
}

/// Why a program is refused, with the line of the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    error: VerifyError,
    line: Option<Box<SourceLine>>,
    /// The name of what the error knows by index.
    name: Option<String>,
}

impl Explained {
    /// Returns why.
    pub const fn error(&self) -> &VerifyError {
        &self.error
    }

    /// Returns where, if the object tells.
    pub fn line(&self) -> Option<&SourceLine> {
        self.line.as_deref()
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if let Some(name) = &self.name {
            write!(f, " (`{name}`)")?;
        }
        self.line.as_ref().map_or(Ok(()), |line| write!(f, " [{line}]"))
    }
}

impl core::error::Error for Explained {}

//! Readers of `/proc` and `/sys`: the kernel's information on this process and this machine.
//!
//! Each file format has a parser that works only on bytes and never panics, so that it can be fuzzed, and a reader on
//! top of it. A missing `/proc` is an error value: containers and chroots without it are normal.

pub mod node;
pub mod numbers;
pub mod owners;
pub mod stat;
pub mod status;
pub mod sysctl;
pub mod thp;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A line without the documented form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is {text:?}, which has no {expected}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// The offending line, cut after 120 characters.
    pub text: String,
    /// What the parser expected.
    pub expected: &'static str,
}

impl ParseError {
    pub(crate) fn new(line: usize, text: &[u8], expected: &'static str) -> Self {
        let text = String::from_utf8_lossy(text).chars().take(120).collect();
        Self { line, text, expected }
    }
}

/// Why a file below `/proc` or `/sys` could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ProcError {
    /// The file could not be opened or read.
    #[error("cannot read {}; is its file system mounted here?", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The file has an unknown form.
    #[error("cannot understand {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The line at fault.
        #[source]
        source: ParseError,
    },
}

impl ProcError {
    /// Returns whether the file does not exist: this kernel lacks the setting, the file system is not mounted, or the
    /// thread has ended, perhaps after the file was opened (ESRCH).
    pub fn is_absent(&self) -> bool {
        let ended = |source: &io::Error| source.raw_os_error() == Some(libc::ESRCH);
        matches!(self, Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound || ended(source))
    }

    pub(crate) fn read(path: &Path, source: io::Error) -> Self {
        Self::Read { path: path.to_path_buf(), source }
    }

    pub(crate) fn parse(path: &Path, source: ParseError) -> Self {
        Self::Parse { path: path.to_path_buf(), source }
    }
}

/// Reads a whole file and passes it to a parser.
pub(crate) fn read_with<T>(
    path: impl AsRef<Path>,
    parser: impl FnOnce(&[u8]) -> Result<T, ParseError>,
) -> Result<T, ProcError> {
    let path = path.as_ref();
    let text = read_whole(path).map_err(|source| ProcError::read(path, source))?;
    parser(&text).map_err(|source| ProcError::parse(path, source))
}

/// Most of these files are shorter.
const USUAL: usize = 4 << 10;

/// Reads a file of unknown length, in few calls: `std::fs::read` asks for the length and begins with 32 bytes, which
/// makes a dozen calls for `status`, before each program that `palimpsest run` serves.
fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(USUAL);
    // Not `File::read_to_end`, which asks for the length.
    File::open(path)?.take(u64::MAX).read_to_end(&mut text)?;
    Ok(text)
}

/// Parses an unsigned number in base 10 or 16 without sign; `None` also for an overflow.
pub(crate) fn number(text: &[u8], radix: u32) -> Option<u64> {
    // `from_str_radix` takes a leading `+`, which the kernel never writes.
    if !text.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(text).ok()?, radix).ok()
}

/// Does the same as [`number`], for an address or a length of this process.
pub(crate) fn address(text: &[u8], radix: u32) -> Option<usize> {
    usize::try_from(number(text, radix)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_length_are_read_to_their_end() {
        let text = read_whole(Path::new("/proc/self/status")).expect("/proc is mounted");
        assert!(text.starts_with(b"Name:") && text.ends_with(b"\n"));
        // Longer than what is read at once.
        let long = read_whole(Path::new("/proc/self/smaps")).expect("/proc is mounted");
        assert!(long.len() > USUAL && long.ends_with(b"\n"), "{}", long.len());
        assert!(read_whole(Path::new("/proc/self/none")).is_err());
    }
}

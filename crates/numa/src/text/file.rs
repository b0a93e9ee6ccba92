//! The text of a program that is not running yet, and that no object will be loaded into.

use std::io;
use std::path::{Path, PathBuf};

pub use palimpsest_sys::numa::text::Piece;
use palimpsest_sys::numa::text::Shown;
use palimpsest_sys::{OpenRegularError, open_regular};

use super::Pages;

/// How much of a program's text its file has in huge pages.
///
/// A program without a dynamic linker can be served by nothing else: its process has no copies, and no code of ours.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FileText {
    /// Bytes of its text and constants in whole huge pages.
    pub whole: usize,
    /// How many of these the kernel has cached in huge pages, so that every process which executes the file has them
    /// mapped so, if its addresses fit.
    pub huge: usize,
    /// Wishes that were not fulfilled, with reasons.
    pub lacks: Vec<String>,
}

/// Why a file was left alone.
#[derive(Debug, thiserror::Error)]
pub enum FileTextError {
    /// It cannot be opened, or is no regular file.
    #[error(transparent)]
    Open(#[from] OpenRegularError),
    /// It cannot be mapped as when it is executed.
    #[error("cannot map {} as when it is executed", path.display())]
    Map {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Copies were wanted.
    #[error("copies need the object, which this program does not load")]
    Copies,
}

impl FileText {
    /// Has the kernel cache pieces of a program's file in huge pages: those that it maps without the right to write,
    /// and at the same place in a huge page as in the file. Reads nothing of their contents.
    ///
    /// # Errors
    ///
    /// See [`FileTextError`].
    pub fn prepare(path: &Path, pieces: &[Piece], pages: Pages) -> Result<Self, FileTextError> {
        if pages == Pages::Copied {
            return Err(FileTextError::Copies);
        }
        let opened = open_regular(path)?;
        let mut text = Self::default();
        for piece in merged(pieces) {
            let shown = match Shown::of(&opened, path, piece) {
                Ok(Some(shown)) => shown,
                Ok(None) => continue,
                // What the pieces before it have come to counts.
                Err(error) if text.whole > 0 => {
                    text.lacks.push(format!("not all of it can be mapped: {error}"));
                    continue;
                }
                Err(source) => return Err(FileTextError::Map { path: path.to_owned(), source }),
            };
            if pages == Pages::ReadAnew
                && let Err(error) = shown.forget_small()
            {
                text.lacks.push(format!("its file is not read anew: {error}"));
            }
            text.whole += shown.len();
            text.huge += shown.huge_in_place().huge;
        }
        Ok(text)
    }
}

/// Returns the same parts of the file once each, in order: each is mapped and asked for.
fn merged(pieces: &[Piece]) -> Vec<Piece> {
    let mut sorted = pieces.to_vec();
    sorted.sort_unstable_by_key(|piece| piece.offset);
    let mut merged: Vec<Piece> = Vec::new();
    for Piece { offset, len } in sorted {
        let end = offset.saturating_add(len);
        match merged.last_mut() {
            Some(last) if offset <= last.offset + last.len => last.len = last.len.max(end - last.offset),
            _ => merged.push(Piece { offset, len: end - offset }),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a file with thousands of parts that overlap, each of which is mapped.
    #[test]
    fn what_parts_have_in_common_is_asked_for_once() {
        let pieces: Vec<Piece> = (0..1000).rev().map(|offset| Piece { offset, len: 1 << 30 }).collect();
        assert_eq!(merged(&pieces), [Piece { offset: 0, len: (1 << 30) + 999 }]);
        let apart = [Piece { offset: 9, len: 1 }, Piece { offset: 2, len: 3 }, Piece { offset: 11, len: u64::MAX }];
        let in_order = [apart[1], apart[0], Piece { offset: 11, len: u64::MAX - 11 }];
        assert_eq!(merged(&apart), in_order);
    }

    #[test]
    fn what_cannot_be_had_is_told() {
        let all = [Piece { offset: 0, len: 8 << 20 }];
        let prepare = |path: &str, pages| FileText::prepare(Path::new(path), &all, pages);
        for absent in ["/nonexistent", "/dev/null", "/"] {
            assert!(matches!(prepare(absent, Pages::OfTheFile), Err(FileTextError::Open(_))), "{absent}");
        }
        assert!(matches!(prepare("/proc/self/exe", Pages::Copied), Err(FileTextError::Copies)));
        let empty = tempfile::NamedTempFile::new().expect("a file");
        let path = empty.path().to_str().expect("a usual name");
        assert_eq!(prepare(path, Pages::ReadAnew).expect("it can be opened"), FileText::default());
    }
}

//! Text of a program that does not run yet, mapped here so that the kernel caches it in huge pages.

use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags};

use super::{Branches, InPlace, Part, identity};
use crate::memory::area::reserve_aligned;
use crate::memory::calls;
use crate::memory::huge::HUGE_PAGE;
use crate::memory::mapping::{Recovered, recover_from};
use crate::memory::span::Span;
use crate::pages::maps::Permissions;

/// A piece of a program's file that the kernel maps when it executes the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Where it starts in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Whole huge pages of such a piece, mapped in this process at the same place in a huge page as in the file. Nothing
/// here executes or reads them; but they are mapped executable, as the program will have them: some file systems have
/// huge pages only for that.
#[derive(Debug)]
pub struct Shown {
    part: Part,
}

impl Shown {
    /// Maps the whole huge pages of `piece`; `None` if it has none.
    ///
    /// # Errors
    ///
    /// The kernel's: for example, nothing on this file system may be executed.
    pub fn of(file: &File, path: &Path, piece: Piece) -> io::Result<Option<Self>> {
        const HUGE: u64 = HUGE_PAGE as u64;
        let found = rustix::fs::fstat(file)?;
        // What lies behind the end of a file that is too short is not there.
        let end = piece.offset.saturating_add(piece.len).min(u64::try_from(found.st_size).unwrap_or(0));
        let (start, end) = (piece.offset.checked_next_multiple_of(HUGE).unwrap_or(u64::MAX), end & !(HUGE - 1));
        let Some(len) = end.checked_sub(start).and_then(|len| usize::try_from(len).ok()).filter(|len| *len > 0) else {
            return Ok(None);
        };
        let area = reserve_aligned(len, HUGE_PAGE).map_err(io::Error::other)?;
        let span = Span::new(area.address(), area.address() + len);
        let permissions = Permissions::READ.union(Permissions::EXECUTE);
        let (file_id, path) = (identity::as_mapped(file)?, path.to_owned());
        let branches = Branches::Anywhere;
        let part = Part { span, permissions, file: file_id, offset: start, path, branches, held: None };
        // Unmapped from here on whatever happens, unless it may be another's.
        let mut shown = Self { part };
        let at = ptr::with_exposed_provenance_mut(span.start);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: reserved just now, for this value only.
        if let Err(errno) = unsafe { rustix::mm::mmap(at, len, ProtFlags::READ | ProtFlags::EXEC, flags, file, start) }
        {
            if recover_from(errno, span) == Recovered::Unknown {
                shown.part.span = Span::default();
            }
            return Err(errno.into());
        }
        Ok(Some(shown))
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.part.span.len()
    }

    /// Returns false: it has at least one huge page.
    pub fn is_empty(&self) -> bool {
        self.part.span.is_empty()
    }

    /// See [`Part::forget_small`].
    ///
    /// # Errors
    ///
    /// The kernel's errors; or another file has the name by now.
    pub fn forget_small(&self) -> io::Result<()> {
        self.part.forget_small(&[self.part.span])
    }

    /// See [`Part::huge_in_place`].
    pub fn huge_in_place(&self) -> InPlace {
        self.part.huge_in_place(&[self.part.span])
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // SAFETY: 1. reserved for this value only, which nobody uses any more.
        let _ = unsafe { calls::unmap(self.part.span) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_huge_pages_of_a_piece_are_shown_and_no_byte_behind_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a folder for temporary files");
        file.as_file().set_len(5 * HUGE_PAGE as u64 + 7).expect("sparse");
        let huge = HUGE_PAGE as u64;
        for (offset, len, whole) in [
            (0, 5 * huge, 5),
            (0, u64::MAX, 5),
            (4096, 3 * huge, 2),
            (huge, huge - 1, 0),
            (3 * huge + 1, 2 * huge, 1),
            (9 * huge, huge, 0),
            (u64::MAX - 1, 4, 0),
        ] {
            let shown = Shown::of(file.as_file(), file.path(), Piece { offset, len }).expect("it can be mapped");
            assert_eq!(shown.as_ref().map_or(0, Shown::len), whole * HUGE_PAGE, "{offset:#x} {len:#x}");
            let Some(shown) = shown else { continue };
            assert!(shown.part.is_aligned_as_its_file() && !shown.is_empty());
            let span = shown.part.span;
            drop(shown);
            let maps = crate::pages::maps::Maps::read().expect("mounted");
            let is_gone = maps.at(span.start).is_none_or(|map| map.path.as_deref() != Some(file.path()));
            assert!(is_gone, "unmapped");
        }
    }
}

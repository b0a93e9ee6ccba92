//! One mapping per program: `mmap` writable, copy, `mprotect` executable; `munmap` to free. What most small JITs do.

use super::{Loaded, Placer, foreign};
use crate::PlaceError;
use crate::machine::CodeArea;

/// See the module.
pub(super) struct PageEach;

impl Placer for PageEach {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        CodeArea::place(code, code.len()).map(Loaded::Area)
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        match loaded {
            Loaded::Area(area) => {
                drop(area);
                Ok(())
            }
            _ => Err(foreign("page_each")),
        }
    }
}

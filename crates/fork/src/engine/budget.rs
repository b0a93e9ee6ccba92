//! What a round may use up, and why a round ends early.

use palimpsest_sys::memory::extent::ExtentError;
use palimpsest_sys::memory::vec::Full;
use palimpsest_sys::pages::pagemap::PagemapError;
use palimpsest_sys::pages::vmas::VmasError;

/// What a round may use up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Mappings that may be added.
    mappings: usize,
}

impl Budget {
    pub(super) const fn new(mappings: usize) -> Self {
        Self { mappings }
    }

    /// Returns how many mappings may still be added.
    pub(super) const fn mappings(&self) -> usize {
        self.mappings
    }

    /// Takes `count` mappings from the budget.
    pub(super) fn take_mappings(&mut self, count: usize) -> Result<(), Stopped> {
        self.mappings = self.mappings.checked_sub(count).ok_or(Stopped::Mappings)?;
        Ok(())
    }
}

/// Why a round ended early. What is frozen stays frozen; the rest is untouched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    #[error(transparent)]
    Extent(#[from] ExtentError),
    #[error("{0}")]
    Pages(#[from] PagemapError),
    #[error("the process would have too many mappings; raise vm.max_map_count (`sysctl -w vm.max_map_count=…`)")]
    Mappings,
    #[error(
        "frozen memory would be in too many extents, each of one slice: freeze the rest in one go (`Pause::AtOnce`, \
         `--pause none`), or all with a longer pause"
    )]
    Extents,
    #[error("{0}")]
    Tables(#[from] Full),
    #[error("{0}")]
    Mapped(#[from] VmasError),
}

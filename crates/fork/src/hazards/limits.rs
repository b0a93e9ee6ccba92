//! Limits of the process that matter to a freeze.

use palimpsest_sys::HUGE_PAGE;
use palimpsest_sys::memory::extent::LENGTH;
use palimpsest_sys::pages::maps;
use palimpsest_sys::proc::{sysctl, thp};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::FreezeError;

/// Refuses a process whose hard limit forbids memory files.
pub(super) fn file_size_suffices() -> Result<(), FreezeError> {
    match getrlimit(Resource::Fsize).maximum {
        Some(limit) if limit < LENGTH => Err(FreezeError::FileSizeLimit { limit }),
        _ => Ok(()),
    }
}

/// Raises the soft file-size limit to the hard one while it lives.
#[derive(Debug)]
pub(crate) struct FileSize {
    before: Option<Rlimit>,
}

impl FileSize {
    pub(crate) fn raise() -> Self {
        let before = getrlimit(Resource::Fsize);
        if before.current.is_none_or(|limit| limit >= LENGTH) {
            return Self { before: None };
        }
        // If this is refused, so is the first memory file, and the report says so.
        let raised = setrlimit(Resource::Fsize, Rlimit { current: before.maximum, maximum: before.maximum });
        Self { before: raised.is_ok().then_some(before) }
    }
}

impl Drop for FileSize {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            // Lowering a soft limit is always allowed.
            let _ = setrlimit(Resource::Fsize, before);
        }
    }
}

/// What is left of the process's limits, halved: the program needs some too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headroom {
    pub(crate) mappings: usize,
    pub(crate) huge: HugePages,
}

/// Whether anonymous memory may be put into huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HugePages {
    /// Nobody has forbidden it.
    Welcome,
    /// The administrator or the program wants none, their size is not a piece's, or the kernel makes none on request.
    Unwanted,
}

impl HugePages {
    /// Reads what `/sys`, this process and the kernel say. The kernel's `MADV_COLLAPSE` ignores `never`; we do not.
    fn as_told() -> Self {
        let is_known = thp::hpage_pmd_size().is_ok_and(|len| len == HUGE_PAGE);
        let is_allowed = thp::enabled().is_ok_and(|when| when != thp::Anonymous::Never)
            && thp::disabled_here() == thp::ThpDisable::Off;
        if is_known && is_allowed && thp::can_collapse() { Self::Welcome } else { Self::Unwanted }
    }
}

/// Reads what is left. Uses the heap.
pub(crate) fn headroom() -> Headroom {
    let limit = sysctl::max_map_count().unwrap_or(65_530);
    let used = maps::count().unwrap_or(0);
    let mappings = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(used) / 2;
    Headroom { mappings, huge: HugePages::as_told() }
}

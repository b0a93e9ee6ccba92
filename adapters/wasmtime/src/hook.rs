//! What Wasmtime tells of code memory: when it is to run, and when nobody can be inside any more.
//!
//! An image is in its packs before Wasmtime sees it, so that publishing is no work. The end is what the hook is for:
//! Wasmtime calls `unpublish_executable` in the destructor of code memory, which every module, instance and function
//! shares, and reads nothing of the memory afterwards but what the unwinder does when tables are taken back, for which
//! reason such images are refused (`LoadError::UnwindTables`). It does not call it for code that an interpreter runs:
//! such engines are refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palimpsest_text::{Allocated, Part};
use wasmtime::CustomCodeMemory;

/// Alignment of images, in bytes: a chunk's. Functions are aligned to less, and sections by their offsets in the image.
pub(crate) const ALIGN: usize = palimpsest_text::CHUNK;

/// Holds the images that modules run, so that nobody else can release them by their addresses. See the module's
/// documentation.
#[derive(Debug, Default)]
pub(crate) struct Hook {
    /// By their first addresses.
    images: Mutex<BTreeMap<usize, Arc<Allocated>>>,
}

impl Hook {
    /// Holds an image until `unpublish_executable` or [`forget`](Self::forget); where it begins.
    pub(crate) fn hold(&self, image: Arc<Allocated>) -> usize {
        let start = image.range(Part::Code).start;
        self.images().insert(start, image);
        start
    }

    /// Holds an image no longer, if it still does.
    pub(crate) fn forget(&self, start: usize) {
        let image = self.images().remove(&start);
        // Without the lock: it may reclaim.
        drop(image);
    }

    /// Returns where the image begins that contains all of `text`.
    fn start_of(&self, text: *const u8, len: usize) -> Option<usize> {
        let images = self.images();
        let (&start, image) = images.range(..=text.addr()).next_back()?;
        let range = image.range(Part::Code);
        (range.contains(&text.addr()) && len <= range.end - text.addr()).then_some(start)
    }

    fn images(&self) -> MutexGuard<'_, BTreeMap<usize, Arc<Allocated>>> {
        // No change is left half done by a panic.
        self.images.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CustomCodeMemory for Hook {
    fn required_alignment(&self) -> usize {
        ALIGN
    }

    fn publish_executable(&self, text: *const u8, len: usize) -> wasmtime::Result<()> {
        if self.start_of(text, len).is_none() {
            wasmtime::bail!(
                "the code at {text:p} is not in the packs of this engine: make its modules by PackedEngine::compile \
                 or deserialize, not by Module::new or Module::deserialize, and without guest debugging"
            );
        }
        Ok(())
    }

    fn unpublish_executable(&self, text: *const u8, len: usize) -> wasmtime::Result<()> {
        // What was refused above comes here as well.
        if let Some(start) = self.start_of(text, len) {
            self.forget(start);
        }
        Ok(())
    }
}

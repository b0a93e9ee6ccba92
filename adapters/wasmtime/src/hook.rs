//! The hook by which Wasmtime tells that code memory is about to run, and that nobody can be inside any more.
//!
//! An image is in its packs before Wasmtime sees it, so publishing does nothing. The hook is there for the end:
//! Wasmtime calls `unpublish_executable` in the destructor of code memory, which modules, instances and functions
//! share. Afterwards only the process's unwinder would read the memory, when its tables are taken back, so images with
//! such tables are refused (`LoadError::UnwindTables`). Wasmtime does not call the hook for code that an interpreter
//! runs, so such engines are refused, too.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palimpsest_text::{Allocated, Part};
use wasmtime::CustomCodeMemory;

/// The alignment of images, in bytes: that of chunks. Functions need less, and sections are aligned by their offsets.
pub(crate) const ALIGN: usize = palimpsest_text::CHUNK;

/// Holds the images of living modules, so that nobody else can release them by their addresses.
#[derive(Debug, Default)]
pub(crate) struct Hook {
    /// The images, by their first addresses.
    images: Mutex<BTreeMap<usize, Arc<Allocated>>>,
}

impl Hook {
    /// Holds an image until `unpublish_executable` or [`forget`](Self::forget), and returns where it begins.
    pub(crate) fn hold(&self, image: Arc<Allocated>) -> usize {
        let start = image.range(Part::Code).start;
        self.images().insert(start, image);
        start
    }

    /// Stops holding an image, if it is held.
    pub(crate) fn forget(&self, start: usize) {
        let image = self.images().remove(&start);
        // Without the lock: dropping an image may reclaim.
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
        // A panic never leaves a change half done.
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
        // Wasmtime calls this also for code that `publish_executable` has refused.
        if let Some(start) = self.start_of(text, len) {
            self.forget(start);
        }
        Ok(())
    }
}

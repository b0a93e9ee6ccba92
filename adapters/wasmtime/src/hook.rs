//! What Wasmtime tells of code memory: when it is to run, and when nobody can be inside any more.
//!
//! An image is in its packs before Wasmtime sees it, so that publishing is no work. The end is what the hook is for:
//! Wasmtime calls `unpublish_executable` in the destructor of code memory, which every module, instance and function
//! shares, and reads nothing of the memory afterwards but what the unwinder does when tables are taken back, for which
//! reason such images are refused (`LoadError::UnwindTables`).

use palimpsest_text::{Packs, Part};
use wasmtime::CustomCodeMemory;

/// Alignment of images, in bytes: a chunk's. Functions are aligned to less, and sections by their offsets in the image.
pub(crate) const ALIGN: usize = palimpsest_text::CHUNK;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Hook(pub(crate) Packs);

impl CustomCodeMemory for Hook {
    fn required_alignment(&self) -> usize {
        ALIGN
    }

    fn publish_executable(&self, text: *const u8, len: usize) -> wasmtime::Result<()> {
        let is_packed = self.0.lookup(text.addr()).is_some_and(|found| {
            let rest = found.len().saturating_sub(found.offset() as usize);
            found.part() == Part::Code && found.parts().is_some() && len <= rest
        });
        if !is_packed {
            wasmtime::bail!(
                "the code at {text:p} is not in the packs of this engine: make its modules by PackedEngine::compile \
                 or deserialize, not by Module::new or Module::deserialize, and without guest debugging"
            );
        }
        Ok(())
    }

    fn unpublish_executable(&self, text: *const u8, _len: usize) -> wasmtime::Result<()> {
        // An error would end the destructor in a panic. What was refused above comes here as well.
        let start = self.0.lookup(text.addr()).map(|found| found.address().get());
        if let Some(start) = start
            && let Err(error) = self.0.release(start)
        {
            tracing::warn!(%error, "the memory of a module was not given back");
        }
        Ok(())
    }
}

//! An engine with the packs that its modules run in.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use object::{Object, ObjectSection};
use palimpsest_text::{Packs, Part, Parts, Size, Working};
use wasmtime::{Config, Engine, Module};

use crate::error::LoadError;
use crate::hook::{ALIGN, Hook};

/// An engine whose modules run in packs. A handle; clones mean the same engine.
#[derive(Clone)]
pub struct PackedEngine {
    engine: Engine,
    packs: Packs,
}

impl PackedEngine {
    /// Makes an engine of `config`, with its code memory in `packs`, and without tables for the process's unwinder
    /// (`Config::native_unwind_info`; Wasmtime's own backtraces need none).
    ///
    /// # Errors
    ///
    /// Those of `Engine::new`.
    pub fn new(mut config: Config, packs: Packs) -> wasmtime::Result<Self> {
        config.with_custom_code_memory(Some(Arc::new(Hook(packs.clone()))));
        config.native_unwind_info(false);
        // Else it takes it that images begin with a page (`runtime/vm/cow.rs`), which would put the first instructions
        // of all modules into the same sets of the caches.
        config.force_memory_init_memfd(true);
        Ok(Self { engine: Engine::new(&config)?, packs })
    }

    /// The engine: for stores and linkers. Modules that are not made by `self` are refused.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The packs.
    pub fn packs(&self) -> &Packs {
        &self.packs
    }

    /// Compiles WebAssembly, in its binary format (or as text, with Wasmtime's feature `wat`).
    ///
    /// # Errors
    ///
    /// Those of `Engine::precompile_module` and of [`deserialize`](Self::deserialize).
    #[cfg(feature = "compile")]
    pub fn compile(&self, wasm: &[u8]) -> wasmtime::Result<Module> {
        let image = self.engine.precompile_module(wasm)?;
        // SAFETY: 1. just compiled, by this engine.
        unsafe { self.deserialize(&image) }
    }

    /// Loads what was compiled before: a copy of `image` becomes a module.
    ///
    /// # Safety
    ///
    /// 1. `image` is what `Engine::precompile_module` or `Module::serialize` have made, of any version of Wasmtime, and
    ///    unchanged: see `Module::deserialize`.
    ///
    /// # Errors
    ///
    /// [`LoadError`], and those of `Module::deserialize`, such as for an image of another version. Nothing is loaded
    /// then.
    pub unsafe fn deserialize(&self, image: &[u8]) -> wasmtime::Result<Module> {
        // Somebody else's release and reclaim could make the place another's before a failure below is tidied up.
        let participant = self.packs.participant();
        let _pinned = participant.pin();
        let start = self.put(image)?;
        let first: *mut u8 = ptr::with_exposed_provenance_mut(start);
        let memory = NonNull::slice_from_raw_parts(NonNull::new(first).expect("packs are not at 0"), image.len());
        // SAFETY: what is asked of the bytes is contract 1. The memory has them, is not written to, and is there until
        // the hook is told that the module's code is gone: it was kept, and nobody else releases it.
        let loaded = unsafe { Module::deserialize_raw(&self.engine, memory) };
        if loaded.is_err() {
            // If code memory was made of it and dropped again, the hook has released it: then this finds so, since the
            // thread is pinned.
            let _ = self.packs.release(start);
        }
        loaded
    }

    /// Puts an image into the packs; where it is.
    fn put(&self, image: &[u8]) -> Result<usize, LoadError> {
        if let Some(len) = unwind_tables(image) {
            return Err(LoadError::UnwindTables { len });
        }
        let len = image.len();
        // One byte more: a section without bytes may begin where the image ends, and is looked up by its address.
        let sizes = Parts { code: Size { len: len + 1, align: ALIGN }, ..Parts::default() };
        // An image is whole before anything is told of it: a second copy would hide nothing.
        let working = if self.packs.can_write_in_place() { Working::InPlace } else { Working::Private };
        let mut place = self.packs.allocate(sizes, working).map_err(|source| LoadError::Allocate { len, source })?;
        place.working(Part::Code)?[..len].copy_from_slice(image);
        Ok(place.finalize()?.keep().code.start)
    }
}

/// How many bytes of tables for the process's unwinder are in an image, if any. What is no image, Wasmtime refuses.
fn unwind_tables(image: &[u8]) -> Option<u64> {
    let file = object::File::parse(image).ok()?;
    let len = file.section_by_name(".eh_frame").map_or(0, |section| section.size());
    (len > 0).then_some(len)
}

impl std::fmt::Debug for PackedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedEngine").field("packs", &self.packs).finish_non_exhaustive()
    }
}

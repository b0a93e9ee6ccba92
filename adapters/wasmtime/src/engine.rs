//! An engine, with the packs in which its modules run.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use object::{Object, ObjectSection};
use palimpsest_text::{Allocated, Packs, Part, Parts, Size, Working};
use wasmtime::{Config, Engine, Module};

use crate::error::{EngineError, LoadError};
use crate::hook::{ALIGN, Hook};

/// An engine whose modules run in packs. Clones are handles of the same engine.
#[derive(Clone)]
pub struct PackedEngine {
    engine: Engine,
    packs: Packs,
    hook: Arc<Hook>,
}

impl PackedEngine {
    /// Makes an engine of `config`, with its code memory in `packs`, and without tables for the process's unwinder
    /// (`Config::native_unwind_info`; Wasmtime's own backtraces need none).
    ///
    /// # Errors
    ///
    /// The errors of `Engine::new`, and [`EngineError`] for a `config` whose target is Pulley.
    pub fn new(mut config: Config, packs: Packs) -> wasmtime::Result<Self> {
        let hook = Arc::new(Hook::default());
        config.with_custom_code_memory(Some(hook.clone()));
        config.native_unwind_info(false);
        // Without this, Wasmtime expects images to begin at a page boundary (`runtime/vm/cow.rs`). Then the first
        // instructions of all modules would fall into the same sets of the caches.
        config.force_memory_init_memfd(true);
        let engine = Engine::new(&config)?;
        if engine.is_pulley() {
            return Err(EngineError::Interpreted.into());
        }
        Ok(Self { engine, packs, hook })
    }

    /// Returns the engine, for stores and linkers. It refuses modules that `self` has not made.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the packs.
    pub fn packs(&self) -> &Packs {
        &self.packs
    }

    /// Compiles WebAssembly, in its binary format (or as text, with Wasmtime's feature `wat`).
    ///
    /// # Errors
    ///
    /// The errors of `Engine::precompile_module` and of [`deserialize`](Self::deserialize).
    #[cfg(feature = "compile")]
    pub fn compile(&self, wasm: &[u8]) -> wasmtime::Result<Module> {
        let image = self.engine.precompile_module(wasm)?;
        // SAFETY: 1. just compiled, by this engine.
        unsafe { self.deserialize(&image) }
    }

    /// Loads a compiled module, from a copy of `image`.
    ///
    /// # Safety
    ///
    /// 1. `image` was made by `Engine::precompile_module` or `Module::serialize`, of any version of Wasmtime, and is
    ///    unchanged: see `Module::deserialize`.
    ///
    /// # Errors
    ///
    /// [`LoadError`], and the errors of `Module::deserialize`, for example for an image of another version. Nothing is
    /// loaded then.
    pub unsafe fn deserialize(&self, image: &[u8]) -> wasmtime::Result<Module> {
        let place = Arc::new(self.put(image)?);
        // The clone keeps the place from being given to another image before a failure below is tidied up.
        let start = self.hook.hold(place.clone());
        let first: *mut u8 = ptr::with_exposed_provenance_mut(start);
        let memory = NonNull::slice_from_raw_parts(NonNull::new(first).expect("packs are not at 0"), image.len());
        // SAFETY: the bytes are as Wasmtime asks (contract 1). Nobody writes to this memory, and it stays until the
        // hook is told that the module's code is gone: the hook holds the handle, without which nobody can release it.
        let loaded = unsafe { Module::deserialize_raw(&self.engine, memory) };
        if loaded.is_err() {
            // If code memory was made of it and dropped again, the hook has forgotten it already.
            self.hook.forget(start);
        }
        loaded
    }

    /// Puts an image into the packs.
    fn put(&self, image: &[u8]) -> Result<Allocated, LoadError> {
        if let Some(len) = unwind_tables(image)? {
            return Err(LoadError::UnwindTables { len });
        }
        let len = image.len();
        // One byte more: an empty section may begin where the image ends, and is looked up by its address.
        let sizes = Parts { code: Size { len: len + 1, align: ALIGN }, ..Parts::default() };
        // In place if possible: nobody is told of the image before it is whole, so a private copy would hide nothing.
        let working = if self.packs.can_write_in_place() { Working::InPlace } else { Working::Private };
        let mut place = self.packs.allocate(sizes, working).map_err(|source| LoadError::Allocate { len, source })?;
        place.working(Part::Code)?[..len].copy_from_slice(image);
        Ok(place.finalize()?)
    }
}

/// Returns how many bytes of tables for the process's unwinder are in an image, if any.
fn unwind_tables(image: &[u8]) -> Result<Option<u64>, LoadError> {
    let file = object::File::parse(image).map_err(|source| LoadError::Image { len: image.len(), source })?;
    let len = file.section_by_name(".eh_frame").map_or(0, |section| section.size());
    Ok((len > 0).then_some(len))
}

impl std::fmt::Debug for PackedEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedEngine").field("packs", &self.packs).finish_non_exhaustive()
    }
}

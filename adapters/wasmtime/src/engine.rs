//! An engine with the packs that its modules run in.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use object::{Object, ObjectSection};
use palimpsest_text::{Allocated, Packs, Part, Parts, Size, Working};
use wasmtime::{Config, Engine, Module};

use crate::error::{EngineError, LoadError};
use crate::hook::{ALIGN, Hook};

/// An engine whose modules run in packs. A handle; clones mean the same engine.
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
    /// Those of `Engine::new`, and [`EngineError`] for a `config` whose target is Pulley.
    pub fn new(mut config: Config, packs: Packs) -> wasmtime::Result<Self> {
        let hook = Arc::new(Hook::default());
        config.with_custom_code_memory(Some(hook.clone()));
        config.native_unwind_info(false);
        // Else it takes it that images begin with a page (`runtime/vm/cow.rs`), which would put the first instructions
        // of all modules into the same sets of the caches.
        config.force_memory_init_memfd(true);
        let engine = Engine::new(&config)?;
        if engine.is_pulley() {
            return Err(EngineError::Interpreted.into());
        }
        Ok(Self { engine, packs, hook })
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
        let place = Arc::new(self.put(image)?);
        // The clone keeps the place from being another's before a failure below is tidied up.
        let start = self.hook.hold(place.clone());
        let first: *mut u8 = ptr::with_exposed_provenance_mut(start);
        let memory = NonNull::slice_from_raw_parts(NonNull::new(first).expect("packs are not at 0"), image.len());
        // SAFETY: what is asked of the bytes is contract 1. The memory has them, is not written to, and is there until
        // the hook is told that the module's code is gone: the hook has the handle, and nobody can release it without.
        let loaded = unsafe { Module::deserialize_raw(&self.engine, memory) };
        if loaded.is_err() {
            // If code memory was made of it and dropped again, the hook holds it no longer.
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
        // One byte more: a section without bytes may begin where the image ends, and is looked up by its address.
        let sizes = Parts { code: Size { len: len + 1, align: ALIGN }, ..Parts::default() };
        // An image is whole before anything is told of it: a second copy would hide nothing.
        let working = if self.packs.can_write_in_place() { Working::InPlace } else { Working::Private };
        let mut place = self.packs.allocate(sizes, working).map_err(|source| LoadError::Allocate { len, source })?;
        place.working(Part::Code)?[..len].copy_from_slice(image);
        Ok(place.finalize()?)
    }
}

/// How many bytes of tables for the process's unwinder are in an image, if any.
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

//! Why engines are refused, and images before Wasmtime sees them.

use palimpsest_text::{AllocateError, FinalizeError, ForkedError};

/// Why an engine was not made. `downcast_ref` finds it in the call's [`wasmtime::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Its target is Pulley: an interpreter reads the code, so packs would gain nothing, and Wasmtime does not tell
    /// when such code is gone.
    #[error("the engine's target is Pulley, whose code is not run by the CPU; use a plain Engine for it")]
    Interpreted,
}

/// Why an image was not put into the packs. `downcast_ref` finds it in the call's [`wasmtime::Error`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no place for it.
    #[error("no place in the packs for an image of {len} bytes")]
    Allocate {
        /// Its length, in bytes.
        len: usize,
        /// Why not.
        #[source]
        source: AllocateError,
    },
    /// It could not be put in place.
    #[error("the image could not be put into the packs")]
    Finalize(#[from] FinalizeError),
    /// The process was forked meanwhile.
    #[error(transparent)]
    Forked(#[from] ForkedError),
    /// It is not in the format of Wasmtime's images.
    #[error("the {len} bytes are not what Engine::precompile_module or Module::serialize make")]
    Image {
        /// Their number.
        len: usize,
        /// What is wrong with them.
        #[source]
        source: object::Error,
    },
    /// It has tables for the process's unwinder, which would be told of them and read them after they are gone.
    #[error(
        "the image has an .eh_frame of {len} bytes; compile it by PackedEngine::engine, or by an engine with \
         Config::native_unwind_info(false)"
    )]
    UnwindTables {
        /// Their length, in bytes.
        len: u64,
    },
}

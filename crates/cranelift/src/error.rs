//! One error per phase: building a module, defining, linking, freeing.
//!
//! The [`Module`](cranelift_module::Module) trait returns a [`ModuleError`], which contains the values here: get them
//! from `ModuleError::Backend(error)` by `error.downcast_ref::<LinkError>()`. Exhausted code memory is
//! `ModuleError::Allocation`, as in `cranelift_jit`.

use cranelift_codegen::binemit::Reloc;
use cranelift_module::ModuleError;
use palimpsest_text::{FinalizeError, OpenError, StageError};
use thiserror::Error;

/// The instruction set has no encoder in this crate.
#[derive(Debug, Error)]
#[error("no relocation encoder for target {triple}; use an isa for x86_64, aarch64 or riscv64")]
pub struct UnsupportedTarget {
    triple: String,
}

impl UnsupportedTarget {
    pub(crate) fn new(triple: String) -> Self {
        Self { triple }
    }
}

/// A module could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The instruction set has no encoder in this crate.
    #[error(transparent)]
    Target(#[from] UnsupportedTarget),
    /// Cranelift cannot generate code for the present machine.
    #[error("cranelift has no backend for this machine: {reason}; give an isa by PackModuleBuilder::with_isa")]
    Host {
        /// Cranelift's reason.
        reason: &'static str,
    },
    /// No packs could be opened.
    #[error("cannot open packs for the module; give opened ones by PackModuleBuilder::packs")]
    Open(#[from] OpenError),
}

/// A definition was refused.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DefineError {
    /// Thread-local data needs a loader's TLS module, which code outside an object file lacks.
    #[error(
        "data object `{name}` is thread-local, which packs cannot hold; keep per-thread state behind a pointer argument"
    )]
    ThreadLocal {
        /// Name of the data object.
        name: String,
    },
    /// The description has no contents.
    #[error("data object `{name}` has no contents; call DataDescription::define or define_zeroinit first")]
    Uninitialized {
        /// Name of the data object.
        name: String,
    },
    /// The function has no bytes.
    #[error("function `{name}` has no code bytes")]
    Empty {
        /// Name of the function.
        name: String,
    },
    /// No address can have the alignment.
    #[error("alignment {align} of `{name}` is not a power of two that fits the address size")]
    Alignment {
        /// Name of the symbol.
        name: String,
        /// The alignment asked for, in bytes.
        align: u64,
    },
    /// A relocation cannot be applied outside an object file.
    #[error(
        "`{name}` has a relocation {kind:?} at offset {offset}, which code in packs cannot have (thread-local, PE \
         section and foreign kinds)"
    )]
    Relocation {
        /// Name of the symbol that contains the relocation.
        name: String,
        /// Kind of the relocation.
        kind: Reloc,
        /// Its offset in bytes.
        offset: u32,
    },
    /// A relocation refers to a symbol that only a linker of object files knows.
    #[error("`{name}` refers to {target}, which only a linker of object files provides")]
    Target {
        /// Name of the symbol that contains the relocation.
        name: String,
        /// What it refers to.
        target: String,
    },
}

/// Definitions could not be finalized. No pending one was: all stay defined and can be finalized again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A symbol is neither defined in the module nor known to the host.
    #[error(
        "`{referrer}` refers to `{symbol}`, which is not defined; define it in the module or name its address by \
         PackModuleBuilder::symbol"
    )]
    Undefined {
        /// The missing symbol.
        symbol: String,
        /// The definition that needs it.
        referrer: String,
    },
    /// The target is too far for the field that refers to it.
    #[error(
        "`{referrer}` at {from:#x} refers to `{symbol}` at {to:#x}, {distance} bytes away, but {kind:?} reaches \
         {reach}; \
         declare `{symbol}` with Linkage::Import so that its whole address is loaded, or open the packs near it \
         (PacksBuilder::near)"
    )]
    OutOfRange {
        /// The symbol.
        symbol: String,
        /// The definition that refers to it.
        referrer: String,
        /// Kind of the relocation.
        kind: Reloc,
        /// Address of the field.
        from: u64,
        /// Address that the field should refer to.
        to: u64,
        /// Distance from the field to the target, in bytes.
        distance: i64,
        /// Farthest distance that the field expresses, in bytes.
        reach: u64,
    },
    /// A 32-bit field cannot hold a 64-bit address.
    #[error("`{referrer}` wants the address {to:#x} of `{symbol}` in 32 bits; use a field of pointer size")]
    Absolute32 {
        /// The symbol.
        symbol: String,
        /// The definition that refers to it.
        referrer: String,
        /// The address.
        to: u64,
    },
    /// The target is not a multiple of the instruction's unit.
    #[error("`{referrer}` refers to `{symbol}` at {to:#x}, but {kind:?} needs a multiple of {align}; align the symbol")]
    Misaligned {
        /// The symbol.
        symbol: String,
        /// The definition that refers to it.
        referrer: String,
        /// Kind of the relocation.
        kind: Reloc,
        /// The address.
        to: u64,
        /// Multiple that the kind needs, in bytes.
        align: u64,
    },
    /// A relocation lies outside its definition's bytes.
    #[error(
        "`{referrer}` has {len} bytes, but its relocation {kind:?} at offset {offset} needs {needed} there; check the \
         offsets given to define_function_bytes or DataDescription"
    )]
    OutsideDefinition {
        /// The definition with the relocation.
        referrer: String,
        /// Kind of the relocation.
        kind: Reloc,
        /// Offset of the field in bytes.
        offset: u32,
        /// Bytes of the field.
        needed: usize,
        /// Bytes of the definition.
        len: usize,
    },
    /// The kind does not belong to the module's instruction set, or not into data.
    #[error("`{referrer}` has a relocation {kind:?} at offset {offset}, which its instruction set does not have")]
    Unsupported {
        /// The definition with the relocation.
        referrer: String,
        /// Kind of the relocation.
        kind: Reloc,
        /// Offset of the field in bytes.
        offset: u32,
    },
    /// The low half of an address has no high half before it.
    #[error(
        "`{referrer}` has a relocation at offset {offset} for the low half of an address, but none for the high half \
         where it points"
    )]
    Unpaired {
        /// The definition with the relocation.
        referrer: String,
        /// Offset of the field in bytes.
        offset: u32,
    },
    /// The packs have no room.
    #[error(
        "no place for `{name}` of {len} bytes; free functions and reclaim, or open larger packs \
         (PacksBuilder::region_len)"
    )]
    Stage {
        /// Function or data object.
        name: String,
        /// Bytes that it needs.
        len: usize,
        /// The reason.
        #[source]
        source: StageError,
    },
    /// The packs did not accept the code.
    #[error("{functions} functions and {data} data objects could not be put in place")]
    Finalize {
        /// Functions that were pending.
        functions: usize,
        /// Data objects that were pending.
        data: usize,
        /// The reason.
        #[source]
        source: FinalizeError,
    },
}

/// A function or data object could not be freed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FreeError {
    /// There is nothing to free.
    #[error("`{name}` is not defined, so there is nothing to free")]
    NotDefined {
        /// The symbol.
        name: String,
    },
    /// It is not placed yet, so there is no handle to return.
    #[error("`{name}` is defined but not finalized; call finalize_definitions first, or free it")]
    NotFinalized {
        /// The symbol.
        name: String,
    },
    /// Other definitions of the module contain its address.
    #[error(
        "`{name}` is still referred to by `{referrer}` and {others} others; free those with it (free_together), or \
         take it (take_program, take_data)"
    )]
    Referenced {
        /// The symbol.
        name: String,
        /// One definition that refers to it.
        referrer: String,
        /// The number of other such definitions.
        others: usize,
    },
}

impl From<BuildError> for ModuleError {
    fn from(error: BuildError) -> Self {
        Self::Backend(error.into())
    }
}

impl From<DefineError> for ModuleError {
    fn from(error: DefineError) -> Self {
        Self::Backend(error.into())
    }
}

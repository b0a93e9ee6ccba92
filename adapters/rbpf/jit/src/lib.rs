//! The names of `cranelift_jit`, for modules in packs. All modules share the same packs: a program that makes a module
//! for each function would otherwise open packs for each.
#![forbid(unsafe_code)]

use std::sync::LazyLock;

use cranelift_codegen::ir::LibCall;
use cranelift_codegen::isa::OwnedTargetIsa;
use palimpsest_text::Packs;

pub use palimpsest_cranelift::{PackModule as JITModule, PackModuleBuilder};

/// The packs of all modules.
///
/// # Panics
///
/// If packs cannot be opened. `cranelift_jit` panics without memory, too.
pub fn packs() -> &'static Packs {
    static PACKS: LazyLock<Packs> =
        LazyLock::new(|| Packs::new().unwrap_or_else(|error| panic!("no packs for Cranelift's code: {error}")));
    &PACKS
}

/// Makes builders of modules in the [shared packs](packs).
#[derive(Debug)]
pub struct JITBuilder;

impl JITBuilder {
    /// Makes a builder, as `cranelift_jit::JITBuilder::with_isa` does.
    #[must_use]
    pub fn with_isa(
        isa: OwnedTargetIsa,
        libcall_names: Box<dyn Fn(LibCall) -> String + Send + Sync>,
    ) -> PackModuleBuilder {
        let mut builder = PackModuleBuilder::with_isa(isa, libcall_names);
        builder.packs(packs().clone());
        builder
    }
}

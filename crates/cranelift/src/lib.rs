//! A Cranelift [`Module`](cranelift_module::Module) whose functions live in Palimpsest's program packs: many small
//! functions share one executable huge page, and each can be freed individually.
//!
//! # Moving from `cranelift_jit`
//!
//! ```
//! # mod before { #[allow(unused_imports, reason = "shown for comparison")]
//! use cranelift_jit::{JITBuilder, JITModule};
//! # }
//! // becomes
//! # #[allow(unused_imports, reason = "shown for comparison")]
//! use palimpsest_cranelift::{PackModuleBuilder as JITBuilder, PackModule as JITModule};
//! ```
//!
//! and the rest compiles unchanged. Then these things differ:
//!
//! * **Dropping the module frees its code.** A dropped `JITModule` leaves its memory behind, so that old function
//!   pointers still work. [`PackModule::leak`] does that here.
//! * [`PackModule::free_memory`] is safe.
//! * Undefined symbols, far targets and thread-local data are errors ([`LinkError`], [`DefineError`] inside
//!   [`ModuleError::Backend`](cranelift_module::ModuleError::Backend)) instead of panics. After an error nothing is
//!   finalized and nothing is lost.
//! * [`PackModule::finalize_definitions`] places functions, not each definition; addresses are known after it.
//! * Calls that do not reach go through a veneer beside the code, also on x86-64, and position-independent code is
//!   accepted.
//! * Host symbols are read from the files of loaded libraries, not asked of `dlsym`. Symbols that pick an
//!   implementation when they are bound (`STT_GNU_IFUNC`) are known for the common `mem*` and `str*` functions; name
//!   any other by [`PackModuleBuilder::symbol`].
//!
//! # Why this is not a `JITMemoryProvider`
//!
//! `cranelift_jit` lets a `JITMemoryProvider` decide where code goes, but its `allocate` returns one pointer. Bytes are
//! copied there, relocations are written there, distances are computed from it, and the user calls it. In a pack these
//! are different addresses: code is written into a private image, appears in the pack through a second mapping, and
//! runs at an address that is never writable. A provider that returned the executable address would fault on the first
//! copy; with the writable address, calls would be computed for the wrong place. Also, a provider is never told that
//! one function is gone. So this crate implements the trait above it, [`Module`](cranelift_module::Module): it
//! compiles, reserves a place in the packs, computes every relocation for the final address, writes it into the image,
//! and finalizes all new functions at once.
//!
//! # Example
//!
//! ```
//! use cranelift_codegen::ir::{AbiParam, InstBuilder, types::I64};
//! use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
//! use cranelift_module::{Linkage, Module, default_libcall_names};
//! use palimpsest_cranelift::{PackModuleBuilder, PackModule};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut module = PackModule::try_new(PackModuleBuilder::new(default_libcall_names())?)?;
//!
//! let mut context = module.make_context();
//! let i64_ = AbiParam::new(I64);
//! context.func.signature.params.extend([i64_, i64_]);
//! context.func.signature.returns.push(i64_);
//! let add = module.declare_function("add", Linkage::Export, &context.func.signature)?;
//!
//! let mut scratch = FunctionBuilderContext::new();
//! let mut code = FunctionBuilder::new(&mut context.func, &mut scratch);
//! let block = code.create_block();
//! code.append_block_params_for_function_params(block);
//! code.switch_to_block(block);
//! code.seal_all_blocks();
//! let (x, y) = (code.block_params(block)[0], code.block_params(block)[1]);
//! let sum = code.ins().iadd(x, y);
//! code.ins().return_(&[sum]);
//! code.finalize(module.target_config());
//!
//! module.define_function(add, &mut context)?;
//! module.finalize_definitions()?;
//!
//! let entry = module.get_finalized_function(add);
//! // SAFETY: the code at `entry` has this signature, and is not freed before the call returns.
//! let call = unsafe { std::mem::transmute::<*const u8, extern "C" fn(i64, i64) -> i64>(entry) };
//! assert_eq!(call(40, 2), 42);
//!
//! module.free_function(add)?;
//! module.packs().reclaim()?;
//! assert!(module.program(add).is_none());
//! # Ok(())
//! # }
//! ```
//!
//! # Feature
//!
//! `unwind` (default): compiled functions come with an `.eh_frame`, so that debuggers, profilers and unwinders that
//! observe the packs can walk through them.

#![forbid(unsafe_code)]
#![expect(
    clippy::result_large_err,
    reason = "the large error is Cranelift's ModuleError, which its Module trait prescribes"
)]

mod builder;
mod define;
mod definition;
mod error;
mod exhausted;
mod fields;
mod link;
mod module;
mod references;
mod release;
mod scope;
mod symbols;
#[cfg_attr(not(feature = "unwind"), path = "unwind_disabled.rs")]
mod unwind;

pub use crate::builder::PackModuleBuilder;
pub use crate::definition::Trap;
pub use crate::error::{BuildError, DefineError, FreeError, LinkError, UnsupportedTarget};
pub use crate::module::PackModule;

const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<PackModule>();
    is_send::<PackModuleBuilder>();
};

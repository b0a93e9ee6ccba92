//! The sources of `palimpsest-cranelift`, with rbpf's version of Cranelift.
#![forbid(unsafe_code)]
#![allow(clippy::result_large_err, reason = "the large error is Cranelift's, which its Module trait prescribes")]

#[path = "../../../../crates/cranelift/src/builder.rs"]
mod builder;
#[path = "../../../../crates/cranelift/src/define.rs"]
mod define;
#[path = "../../../../crates/cranelift/src/definition.rs"]
mod definition;
#[path = "../../../../crates/cranelift/src/error.rs"]
mod error;
mod exhausted;
#[path = "../../../../crates/cranelift/src/fields.rs"]
mod fields;
#[path = "../../../../crates/cranelift/src/link/mod.rs"]
mod link;
#[path = "../../../../crates/cranelift/src/module.rs"]
mod module;
#[path = "../../../../crates/cranelift/src/references.rs"]
mod references;
#[path = "../../../../crates/cranelift/src/release.rs"]
mod release;
#[path = "../../../../crates/cranelift/src/scope.rs"]
mod scope;
#[path = "../../../../crates/cranelift/src/symbols/mod.rs"]
mod symbols;
#[path = "../../../../crates/cranelift/src/unwind_disabled.rs"]
mod unwind;

pub use crate::builder::PackModuleBuilder;
pub use crate::definition::Trap;
pub use crate::error::{BuildError, DefineError, FreeError, LinkError, UnsupportedTarget};
pub use crate::module::PackModule;

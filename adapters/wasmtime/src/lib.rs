//! Wasmtime modules whose code runs in packs: hundreds of small modules share a few huge pages, and two mappings for
//! each 2 MiB, instead of two to three mappings and at least two pages for each module.
//!
//! ```
//! use palimpsest_text::Packs;
//! use palimpsest_wasmtime::PackedEngine;
//! use wasmtime::{Config, Instance, Store};
//!
//! # fn main() -> wasmtime::Result<()> {
//! let packed = PackedEngine::new(Config::new(), Packs::new()?)?;
//! let text = r#"(module (func (export "add") (param i32 i32) (result i32) local.get 0 local.get 1 i32.add))"#;
//! let module = packed.compile(text.as_bytes())?;
//!
//! // From here on it is a module like any other.
//! let mut store = Store::new(packed.engine(), ());
//! let instance = Instance::new(&mut store, &module, &[])?;
//! let add = instance.get_typed_func::<(i32, i32), i32>(&mut store, "add")?;
//! assert_eq!(add.call(&mut store, (40, 2))?, 42);
//! # Ok(())
//! # }
//! ```
//!
//! A module's memory goes back to the packs when its last owner is dropped: the module, its instances, their functions.
//!
//! The book's chapter says what this crate does not do, and when not to use it.

mod engine;
mod error;
mod hook;

pub use engine::PackedEngine;
pub use error::{EngineError, LoadError};

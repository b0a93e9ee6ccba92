//! Two public programs that use `cranelift-jit`, with what they compile in packs: [rbpf](https://crates.io/crates/rbpf),
//! a virtual machine for eBPF, and [Roto](https://crates.io/crates/roto), NLnet Labs' scripting language for routers.
//!
//! Their published sources are unchanged. One entry of `Cargo.toml` gives them, for `cranelift-jit`, a crate of
//! the same name and version (folder `jit`) whose modules are in packs:
//!
//! ```toml
//! [patch.crates-io]
//! cranelift-jit = { path = "jit" }
//! ```
//!
//! A program whose sources you can change needs no patch: there, `use palimpsest_cranelift::{…} as …` does the same.
#![forbid(unsafe_code)]

pub use cranelift_jit::packs;

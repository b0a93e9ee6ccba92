//! [rbpf](https://crates.io/crates/rbpf), a public virtual machine for eBPF whose compiler uses `cranelift-jit`, with
//! the compiled code in packs.
//!
//! Its published sources are unchanged. One entry of `Cargo.toml` gives them, for `cranelift-jit`, a crate of the same
//! name and version (folder `jit`) whose modules are in packs:
//!
//! ```toml
//! [patch.crates-io]
//! cranelift-jit = { path = "jit" }
//! ```
//!
//! A program whose sources you can change needs no patch: there, `use palimpsest_cranelift::{…} as …` does the same.
#![forbid(unsafe_code)]

pub use cranelift_jit::packs;

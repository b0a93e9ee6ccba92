//! [rbpf](https://crates.io/crates/rbpf), a public virtual machine for eBPF with a compiler on `cranelift-jit`, with
//! that compiler's code in packs.
//!
//! Its sources are as they are published. What is different is one entry of `Cargo.toml`, which answers its wish for
//! `cranelift-jit` with a crate of the same name and version (folder `jit`) that has the modules of packs:
//!
//! ```toml
//! [patch.crates-io]
//! cranelift-jit = { path = "jit" }
//! ```
//!
//! In a program of one's own, `use palimpsest_cranelift::{…} as …` does the same, with no patch.
#![forbid(unsafe_code)]

pub use cranelift_jit::packs;

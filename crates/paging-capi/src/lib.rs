//! Page tables for kernels in C: the functions that `include/palimpsest_paging.h` declares.
//!
//! `cargo build --release -p palimpsest-paging-capi --target x86_64-unknown-none` makes `libpalimpsest_paging_capi.a`,
//! which needs nothing but the machine's callbacks and `palimpsest_paging_panic`. For a target with an operating system
//! the library has Rust's standard library, whose panics abort.
//!
//! C keeps a [`palimpsest_paging_space`](space::palimpsest_paging_space) in memory of its own. The library writes a
//! name into it, which only a live space at this very address has; so a space that was never made, was dropped or was
//! copied is an error. Each function flushes before it returns, by a callback, and gives memory back only after that.
//!
//! | module | contents |
//! |---|---|
//! | [`machine`] | what the kernel provides: callbacks, and memory for tables |
//! | [`space`] | making, forking and dropping spaces |
//! | [`pages`] | mapping, changing and finding pages; faults |
//! | [`visits`] | going through many pages under one lock |
//! | [`marks`], [`places`] | marks of use and of writing; moving, splitting and merging pages |
//! | [`result`] | codes, their texts, the version |
//!
//! A whole program (`examples/fork.c`, which a test compiles and runs):
#![doc = concat!("```c\n", include_str!("../examples/fork.c"), "```")]
#![no_std]

#[cfg(feature = "fuzzing")]
extern crate std;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
pub mod machine;
pub mod marks;
pub mod pages;
#[cfg_attr(target_os = "none", path = "arch/bare.rs")]
#[cfg_attr(not(target_os = "none"), path = "arch/hosted.rs")]
mod panic;
pub mod places;
pub mod result;
pub mod space;
pub mod visits;

//! Page tables for kernels in C: the functions that `include/palimpsest_paging.h` declares.
//!
//! `cargo build --release -p palimpsest-paging-capi --target x86_64-unknown-none` makes `libpalimpsest_paging_capi.a`,
//! which needs nothing but the machine's callbacks and `palimpsest_paging_panic`. For a target with an operating system
//! the library has Rust's standard library, whose panics abort.
//!
//! What C holds is a [`palimpsest_paging_space`](space::palimpsest_paging_space): memory of its own, with a name inside
//! that only a live space at this very address has. An obligation to flush never leaves a function: C gets the flush as
//! a callback, and memory back after it.
//!
//! | module | contents |
//! |---|---|
//! | [`machine`] | what C gives: callbacks, and memory for tables |
//! | [`space`] | making, forking and dropping spaces |
//! | [`pages`] | mapping, changing and finding pages; faults |
//! | [`result`] | codes |

#![no_std]

pub mod machine;
pub mod pages;
#[cfg_attr(target_os = "none", path = "arch/bare.rs")]
#[cfg_attr(not(target_os = "none"), path = "arch/hosted.rs")]
mod panic;
pub mod result;
pub mod space;

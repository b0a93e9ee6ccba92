//! Races of spaces that share tables, in every order of events and with every value that the memory model allows a load
//! to see: `RUSTFLAGS="--cfg loom" cargo test --release --package palimpsest-paging --test loom`.
//!
//! `spaces` runs the crate itself, whose counts and locks are loom's (`src/primitive.rs`), on a machine whose pages are
//! cells: it finds a store to a page that somebody else reads, and a table that is freed while in use. `model` is only
//! the protocol, with entries that are cells too.
#![cfg(loom)]

mod machine;
mod model;
mod spaces;

//! On a machine with several nodes: every page is where it was wanted, or it is told that it is not.
//!
//! `cargo xtask guest numa` has such a machine, and says by [`HOMES`] which nodes are to be found there. On others
//! those tests are skipped that need several.

mod big_text;
mod data;
mod machine;
mod packs;
mod rights;
mod sharing;
mod text;

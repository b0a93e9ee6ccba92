//! On a machine with several nodes: every page is on its preferred node, or is reported elsewhere.
//!
//! `cargo xtask guest numa` has such a machine, and tells by [`HOMES`] which nodes it has. On other machines, tests
//! that need several nodes are skipped.

mod big_text;
mod data;
mod limits;
mod machine;
mod packs;
mod rights;
mod sharing;
mod text;
mod uprobes;

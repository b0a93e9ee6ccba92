//! The freezing of memory in place. From the outside in:
//!
//! | module | holds |
//! |---|---|
//! | `round` | what happens while the process is held still: inventory, plan, repair, freeze |
//! | `plan`, `own` | what is frozen, what is not and why |
//! | `freeze`, `piece`, `traits` | windows, chunks and pieces: copied, sealed, shown with what they had |
//! | `repair`, `runs`, `thawing` | frozen memory that was written to since, and what becomes anonymous again |
//! | `registry`, `frozen_map`, `contents` | tables outside the heap |
//! | `guards`, `span` | what they need |
//!
//! From the inventory on nothing uses the heap: it is the heap that is rewritten, and a call of `malloc` could make or
//! remove a mapping that the inventory speaks of.

mod contents;
mod freeze;
pub(crate) mod frozen_map;
pub(crate) mod guards;
pub(crate) mod own;
pub(crate) mod piece;
mod plan;
pub(crate) mod registry;
pub(crate) mod repair;
pub(crate) mod round;
pub(crate) mod runs;
pub(crate) mod thawing;
pub(crate) use palimpsest_sys::memory::{span, traits};

//! The freezing of memory in place. From the outside in:
//!
//! | module | holds |
//! |---|---|
//! | `round` | what happens while the process is held still: inventory, plan, repair, freeze |
//! | `plan`, `own` | what is frozen, what is not and why |
//! | `freeze`, `piece` | windows, chunks and pieces: copied, sealed, shown |
//! | `repair` | frozen memory that was written to since |
//! | `registry` | tables outside the heap |
//! | `guards`, `signals`, `measure`, `span` | what they need |
//!
//! From the inventory on nothing uses the heap: it is the heap that is rewritten, and a call of `malloc` could make or remove a mapping that the inventory
//! speaks of.

mod freeze;
pub(crate) mod guards;
pub(crate) mod measure;
mod own;
pub(crate) mod piece;
mod plan;
pub(crate) mod registry;
pub(crate) mod repair;
pub(crate) mod round;
pub(crate) mod signals;
pub(crate) mod span;

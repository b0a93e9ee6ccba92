//! Freezes memory in place. From the outside in:
//!
//! | module | holds |
//! |---|---|
//! | `registry`, `statistics`, `trials` | a process's one set of tables, its lock, and figures that anybody may read |
//! | `turns`, `moves`, `waiting` | whose turn it is to give rights to frozen memory, to move it, or to freeze; who moves other memory |
//! | `round`, `settle` | what happens while the process is held still: inventory, plan, repair, freeze; figures |
//! | `own`, `plan` | what is frozen, what is not and why |
//! | `copy`, `fresh` | the freeze: extents that are filled piece by piece |
//! | `slice`, `agenda`, `pace`, `places` | the freeze in slices: what is left to do, how much fits, what is there now |
//! | `gather` | its first step where asked for: pieces become huge pages where they are, which pays sooner |
//! | `progress`, `left_alone` | how far it has come, and what the program has changed meanwhile |
//! | `tending`, `tender` | between forks: what makes the next one long, one slice at a time |
//! | `repair`, `subject`, `thawing` | frozen memory that was written to, and memory that becomes anonymous again |
//! | `mending` | huge pages of ours that were split |
//! | `errands` | who asks for huge pages between forks: the thread, or a deputy |
//! | `piece`, `runs` | one piece: copied, and shown with what it had |
//! | `ledger`, `prices`, `hot`, `huge`, `account` | what pays and what is left alone; they never ask the kernel |
//! | `tables`, `records`, `contents`, `frozen_map`, `origins` | what is known, outside the heap |
//! | `budget`, `span`, `traits` | what they need |
//!
//! Each module uses those below it and its neighbours in a row, in one direction. The phases of a round (`plan`,
//! `repair`, `copy`) are structs over `&mut Tables`.
//!
//! From the inventory on nothing uses the heap: the heap is what is rewritten, and a call of `malloc` could make or
//! remove a mapping that the inventory lists.

mod account;
pub(crate) mod agenda;
pub(crate) mod budget;
mod contents;
mod copy;
pub(crate) mod errands;
mod fresh;
pub(crate) mod frozen_map;
pub(crate) mod gather;
mod hot;
mod huge;
mod ledger;
pub(crate) mod left_alone;
pub(crate) mod mending;
mod moves;
mod origins;
pub(crate) mod own;
mod pace;
pub(crate) mod piece;
pub(crate) mod places;
mod plan;
mod prices;
pub(crate) mod progress;
mod records;
pub(crate) mod registry;
mod repair;
pub(crate) mod round;
mod runs;
mod settle;
pub(crate) mod slice;
mod statistics;
mod subject;
mod tables;
pub(crate) mod tender;
pub(crate) mod tending;
mod thawing;
pub(crate) mod trials;
pub(crate) mod turns;
pub(crate) mod unbooked;
pub(crate) mod waiting;
mod window;

pub(crate) use ledger::Repair;
pub(crate) use palimpsest_sys::memory::{span, traits};
pub(crate) use repair::Repaired;
pub(crate) use tables::Tables;

//! The freezing of memory in place. From the outside in:
//!
//! | module | holds |
//! |---|---|
//! | `registry`, `statistics`, `trials` | the one set of tables of a process, its lock, and figures that anybody may read |
//! | `round`, `settle` | what happens while the process is held still: inventory, plan, repair, freeze; figures |
//! | `own`, `plan` | what is frozen, what is not and why |
//! | `copy`, `fresh` | the freeze: extents that are filled piece by piece |
//! | `slice`, `agenda`, `pace`, `places` | the freeze in slices: what is left to do, how much fits, what is there now |
//! | `gather` | its first step: what pays sooner as a huge page becomes one where it is |
//! | `progress`, `left_alone` | how far it is, and what the program has changed meanwhile |
//! | `tending`, `tender` | between forks: what makes the next one long, a slice at a time |
//! | `repair`, `subject`, `thawing` | frozen memory that was written to since, and what becomes anonymous again |
//! | `mending` | huge pages of ours that were split since |
//! | `piece`, `runs` | one piece: copied, and shown with what it had |
//! | `ledger`, `prices`, `hot`, `huge`, `account` | what pays, what is left alone; they ask the kernel nothing |
//! | `tables`, `records`, `contents`, `frozen_map`, `origins` | what is known, outside the heap |
//! | `budget`, `guards`, `span`, `traits` | what they need |
//!
//! Each uses those below it and its neighbours in a row, in one direction. The phases of a round (`plan`, `repair`,
//! `copy`) are structs over `&mut Tables`.
//!
//! From the inventory on nothing uses the heap: it is the heap that is rewritten, and a call of `malloc` could make or
//! remove a mapping that the inventory speaks of.

mod account;
pub(crate) mod agenda;
pub(crate) mod budget;
mod contents;
mod copy;
mod fresh;
pub(crate) mod frozen_map;
pub(crate) mod gather;
pub(crate) mod guards;
mod hot;
mod huge;
mod ledger;
pub(crate) mod left_alone;
pub(crate) mod mending;
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

pub(crate) use ledger::Repair;
pub(crate) use palimpsest_sys::memory::{span, traits};
pub(crate) use repair::Repaired;
pub(crate) use tables::Tables;

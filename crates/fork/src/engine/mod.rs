//! Freezes memory in place. From the outside in:
//!
//! | module | holds |
//! |---|---|
//! | `round` | what happens while the process is held still: inventory, plan, repair, freeze |
//! | `glance` | a look at samples of large memory, for a plan |
//! | `slice`, `gather` | the freeze in slices; its first step where asked for: pieces become huge pages where they are, which pays sooner |
//! | `tender`, `refreeze` | between forks: what makes the next one long, one slice at a time |
//! | `mending`, `errands` | huge pages of ours that were split; who asks for new ones: the thread, or a deputy |
//! | `settle`, `own` | figures and the published map; memory of ours that stays as it is |
//! | `registry`, `statistics`, `trials` | a process's one set of tables, its lock, and figures that anybody may read |
//! | `turns`, `moves`, `waiting` | whose turn it is to give rights to frozen memory, to move it, or to freeze; who moves other memory |
//! | `progress`, `tending`, `left_alone`, `unbooked` | how far slices have come; what the program has changed meanwhile; forks that the ledger does not know |
//! | `plan` | what is frozen, what is not and why |
//! | `copy` | the freeze: extents that are filled piece by piece |
//! | `repair`, `subject`, `thawing` | frozen memory that was written to, and memory that becomes anonymous again |
//! | `fresh` | the extent that is being filled |
//! | `tables`, `contents`, `frozen_map`, `origins`, `near` | what is known, outside the heap, and where it lies |
//! | `ledger`, `hot`, `huge`, `account` | what pays and what is left alone; they never ask the kernel |
//! | `agenda`, `pace`, `places`, `window` | the freeze in slices: what is left to do, how much fits, what is there now |
//! | `entry`, `slots`, `records`, `prices`, `runs`, `piece`, `budget`, `sight` | what they need; a piece is copied, and shown with what it had; who tells which pieces are huge |
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
pub(crate) mod entry;
pub(crate) mod errands;
mod fresh;
pub(crate) mod frozen_map;
pub(crate) mod gather;
pub(crate) mod glance;
mod hot;
mod huge;
mod ledger;
pub(crate) mod left_alone;
pub(crate) mod mending;
mod moves;
mod near;
mod origins;
pub(crate) mod own;
mod pace;
pub(crate) mod piece;
pub(crate) mod places;
mod plan;
mod prices;
pub(crate) mod progress;
mod records;
mod refreeze;
pub(crate) mod registry;
mod repair;
pub(crate) mod round;
mod runs;
mod settle;
mod sight;
pub(crate) mod slice;
mod slots;
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

pub(crate) use ledger::{Ledger, Repair};
pub(crate) use repair::Repaired;
pub(crate) use tables::Tables;

//! Changing code that other threads may be running.
//!
//! A [`Batch`] collects sites, in programs and in the text of the process itself, and changes all of them in at most three core
//! synchronisations, however many there are.
//!
//! # Parts
//!
//! | module | what it holds | `no_std` |
//! |---|---|---|
//! | `site`, `table`, `protocol` | sites, what handlers know of them, and the order of things; argued there | yes |
//! | `arch` | what can be poked, and what it does | yes |
//! | `domain` | what a process has one of: tables, the lock, the writer | |
//! | `handler` | what SIGTRAP asks | |
//! | `machine` | the protocol's user-space machine | |
//! | `batch`, `place` | [`Batch`], and [`copy`] and [`fill`] for code that nobody runs | |
//! | `threads` | who blocks SIGTRAP | |
//! | `log` | who is told | |
//!
//! # What is changed by what
//!
//! | ISA | way | condition |
//! |---|---|---|
//! | x86-64 | [`Mode::Trap`] | the new instruction is a NOP, JMP or Jcc, and no thread blocks SIGTRAP |
//! | x86-64 | [`Mode::SingleStore`] | in a program, and inside one naturally aligned word of 8 bytes |
//! | AArch64 | [`Mode::SingleStore`] | one of the instructions that the architecture names |
//!
//! Programs are written through their pack's other view; text through `/proc/self/mem`, which needs no change of rights and gives the process
//! private copies of the pages; where that is refused, changed copies are put in the place of the pages.
//!
//! # SIGTRAP
//!
//! The first batch that needs traps installs a handler for SIGTRAP in front of whatever is there, and it stays. It claims the traps of
//! sites and nothing else. Each batch looks whether the handler is still in place, and puts it in front again if not. Whoever replaces the action
//! *during* a batch, and does not call the previous one, gets that batch's traps.
//!
//! A thread that runs into a trap with SIGTRAP blocked would end the process (the kernel delivers it by force). So a batch reads every
//! thread's mask first. A thread that blocks SIGTRAP after that and runs through a site within the some ten
//! microseconds of the batch is beyond help; code that does such things should make its sites fit single stores.
//!
//! # fork
//!
//! Text is private memory. A child that is forked in the middle of a batch inherits the traps, and with them the table (both
//! are memory, and a write through `/proc/self/mem` excludes a fork): it goes on to behave as the new code says, at the price of a signal for
//! each pass, until its own first batch finishes the inherited one.
//!
//! Programs are shared with the children that inherit them. Their table is shared memory too, so that a child that runs into a trap of its
//! parent's does the right thing. But a core synchronisation reaches the calling process only: children that go on *running* inherited programs, instead of
//! calling `exec`, should not run sites that their parent pokes. A child cannot poke what it has inherited.
//!
//! A `vfork` child is a part of the process as far as all of this goes.

pub mod arch;
#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod model_tests;
mod protocol;
mod site;
mod table;

#[cfg(feature = "std")]
mod batch;
#[cfg(feature = "std")]
mod domain;
#[cfg(feature = "std")]
mod error;
#[cfg(feature = "std")]
mod handler;
#[cfg(feature = "std")]
mod log;
#[cfg(feature = "std")]
mod machine;
#[cfg(feature = "std")]
mod place;
#[cfg(feature = "std")]
mod threads;

pub use arch::Refusal;
pub use protocol::{Failed, Machine, apply_by_single_stores, apply_by_traps};
pub use site::{Action, Code, MAX_SITE, Part, Site};
pub use table::{Table, Verdict, judge};

#[cfg(feature = "std")]
pub use batch::{Applied, Batch, Mode, ModeChoice};
#[cfg(feature = "std")]
pub use error::{AddError, PlaceError, PokeError};
#[cfg(feature = "std")]
pub use handler::traps_hit;
#[cfg(feature = "std")]
pub use log::{PatchRecord, set_log};
#[cfg(feature = "std")]
pub use place::{copy, fill};

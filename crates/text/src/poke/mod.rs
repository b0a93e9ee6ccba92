//! Changes code that other threads may be running.
//!
//! A [`Batch`] collects sites, in programs and in the text of the process itself, and changes all of them at once, with
//! as many core synchronisations for ten thousand as for one.
//!
//! # Parts
//!
//! | module | what it holds | `no_std` |
//! |---|---|---|
//! | `site`, `table`, `protocol` | sites, what handlers know of them, and the order of steps, with its proof | yes |
//! | `arch` | what can be poked, and what it does | yes |
//! | `domain` | one per process: tables, the lock, the writer | |
//! | `handler` | answers SIGTRAP | |
//! | `machine` | the protocol's user-space machine | |
//! | `held` | sites of any bytes, while other threads are held | |
//! | `batch`, `place` | [`Batch`], and [`copy`] and [`fill`] for code that nobody runs | |
//! | `threads` | finds threads that block SIGTRAP | |
//! | `log` | a function that is told of changes | |
//!
//! # Ways to change sites
//!
//! | way | sites | syncs | other threads |
//! |---|---|---|---|
//! | [`Mode::SingleStore`] | one byte changes; or, in a program, bytes of one aligned word of 8; on AArch64, an instruction that the architecture names | 1 | run on |
//! | [`Mode::Held`] | of any bytes (x86-64) | 1 | are held for a moment |
//! | [`Mode::Trap`] | the new instruction is a NOP, JMP or Jcc (x86-64) | 3 | run on, and must never block SIGTRAP |
//! | [`Mode::Detour`] | static calls (x86-64) | 2 | run on |
//!
//! The first way that fits is taken. Traps are only used if they are asked for.
//!
//! Programs are written through their pack's other view. Text is written through `/proc/self/mem`, which needs no
//! change of rights and gives the process private copies of the pages; if that is refused, changed copies replace the
//! pages.
//!
//! # Sites of any bytes
//!
//! What no single store can change is changed while every other thread is held still. `held` says why not by traps: a
//! trap in a thread that blocks SIGTRAP ends the process, and any thread may block it at any moment. System calls of
//! the other threads are interrupted, as by a signal with a handler. A thread that cannot be held (it blocks signals
//! and may not be traced, or it waits for a child of `vfork`) is an error, and nothing has changed.
//!
//! Code that is poked often should have sites in which one byte changes, as keys have: `jmp rel32` (`E9`) and `test
//! eax, imm32` (`A9`) with the same four bytes behind them.
//!
//! # SIGTRAP
//!
//! The first batch that goes by traps installs a handler for SIGTRAP in front of the present one, and leaves it there.
//! It claims only the traps of sites. Each such batch checks whether the handler is still in place, and puts it in
//! front again if not. Code that replaces the action *during* a batch, and does not call the previous one, gets that
//! batch's traps.
//!
//! Such a batch reads every thread's mask first, and refuses to store traps if one blocks SIGTRAP. A thread that blocks
//! it after that, and runs through a site within the ten or so microseconds of the batch, ends the process: a caller
//! who asks for traps promises that there is none.
//!
//! # fork
//!
//! Text is private memory. A child that is forked in the middle of a batch inherits each site as it is at that moment:
//! old, new, a detour, or a trap, and with traps their table (both are memory, and a write through `/proc/self/mem`
//! excludes a fork). A trap behaves as the new code says, at the price of a signal for each pass, until the child's own
//! first batch finishes the inherited one.
//!
//! Programs are shared with the children that inherit them. Their table is shared memory too, which a child can read
//! but not write, so that a child that runs into a trap of its parent's does the right thing. But core synchronisation
//! and holding reach only the calling process: children that keep *running* inherited programs, instead of calling
//! `exec`, should not run sites that their parent pokes. A child cannot poke what it has inherited.
//!
//! In all of this, a `vfork` child counts as a part of the process.

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
mod held;
#[cfg(feature = "std")]
mod log;
#[cfg(feature = "std")]
mod machine;
#[cfg(feature = "std")]
mod place;
#[cfg(feature = "std")]
mod threads;
#[cfg(feature = "std")]
mod trapped;

pub use arch::Refusal;
pub use protocol::{Failed, Machine, apply_by_detours, apply_by_single_stores, apply_by_traps};
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

//! Changing any code at all, while every other thread is held still.
//!
//! # Why
//!
//! A trap in a thread that blocks SIGTRAP ends the process (`force_sig_info_to_task` in `kernel/signal.c`), and a
//! thread may block it at any moment: between a look at its mask and the trap, or in a handler with a full `sa_mask`.
//! So traps are for those who know their threads ([`Mode::Trap`](super::Mode::Trap)), and what single stores cannot do
//! is done like this by default.
//!
//! What else was considered for sites of any bytes, beside threads of any mask:
//!
//! * *A jump to itself* over the first two bytes, where threads spin until the site is complete. They spin for ever
//!   where the one who changes the site never goes on: a thread of a higher real-time priority on its CPU, a child that
//!   was forked meanwhile, and that one itself, if its own way leads through the site. And two bytes are not one store
//!   through `/proc/self/mem`.
//! * *Another page in the place of the page.* The kernel does that behind every thread's back, but not for packs, whose
//!   page is huge; and profilers lose the names of what is no longer the file.
//! * *Watching masks.* A raw system call sets one unseen.
//!
//! # How
//!
//! Others are held by `palimpsest_sys::threads::hold`: by a signal, or by a tracer where they block that. Then each
//! site is written as a whole. A held thread runs nothing between the last instruction before and the first after,
//! which it fetches when it has come back from the kernel; it stands in front of a site or behind it, since a site is
//! one instruction.
//!
//! Nothing here uses the heap while threads are held, which may be inside it.
//!
//! # What others notice
//!
//! System calls that they sleep in are interrupted, as by a signal that has a handler; some then answer `EINTR`
//! (`signal(7)`).

use palimpsest_sys::threads::hold::World;

use super::error::PokeError;
use super::machine::UserMachine;
use super::protocol::{Failed, Machine as _};
use super::site::Site;

/// Changes `sites`, sorted by address, while other threads are held.
///
/// # Errors
///
/// [`Failed::Undone`], and [`Failed::Unsynced`] if some sites may be new.
pub(super) fn apply_while_held(machine: &UserMachine<'_>, sites: &[Site]) -> Result<(), Failed<PokeError>> {
    let world = World::prepare().map_err(|error| Failed::Undone(PokeError::Hold(error)))?;
    let mut text = machine.plan(sites).map_err(Failed::Undone)?;
    let others = world.stop_others().map_err(|error| Failed::Undone(PokeError::Hold(error)))?;
    let written = machine.write_plan(sites, &mut text);
    drop(others);
    written.map_err(|unstored| Failed::Unsynced(PokeError::Write(Box::new(unstored.into()))))?;
    machine.sync_cores().map_err(Failed::Unsynced)
}

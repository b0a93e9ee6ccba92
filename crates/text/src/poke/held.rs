//! Changes any code, while every other thread is held still.
//!
//! # Why
//!
//! A trap in a thread that blocks SIGTRAP ends the process (`force_sig_info_to_task` in `kernel/signal.c`), and a
//! thread may block it at any moment: between a look at its mask and the trap, or in a handler with a full `sa_mask`.
//! So traps are for programs that know their threads ([`Mode::Trap`](super::Mode::Trap)); by default, changes that
//! single stores cannot make are made in this way.
//!
//! Rejected alternatives for sites of any bytes and threads of any mask:
//!
//! * *A jump to itself* over the first two bytes, where threads spin until the site is complete. They spin for ever
//!   where the thread that changes the site never continues: on its CPU under a higher real-time priority, in a child
//!   forked meanwhile, and in that thread itself, if its own path leads through the site. And two bytes are not one
//!   store through `/proc/self/mem`.
//! * *Replacing the page by another.* The kernel does that without any thread noticing, but not for packs, whose page
//!   is huge; and profilers lose the names of pages that are no longer the file's.
//! * *Watching masks.* A raw system call changes a mask unnoticed.
//!
//! # How
//!
//! `palimpsest_sys::threads::hold` holds the others: by a signal, or by a tracer if they block that. Then each site is
//! written as a whole. A held thread runs no instruction meanwhile, and fetches its next one after it has returned from
//! the kernel; it stands in front of a site or behind it, since a site is one instruction.
//!
//! Nothing here uses the heap while threads are held, since one of them may hold its lock.
//!
//! # What others notice
//!
//! Their blocking system calls are interrupted, as by a signal with a handler; some then return `EINTR` (`signal(7)`).

use palimpsest_sys::threads::hold::World;

use super::error::PokeError;
use super::machine::UserMachine;
use super::protocol::{Failed, Machine as _};
use super::site::Site;

/// Changes `sites`, sorted by address, while other threads are held.
///
/// # Errors
///
/// [`Failed::Undone`], [`Failed::Partial`] if some sites may be new, and [`Failed::Unsynced`] if all are.
pub(super) fn apply_while_held(machine: &UserMachine<'_>, sites: &[Site]) -> Result<(), Failed<PokeError>> {
    let world = World::prepare().map_err(|error| Failed::Undone(PokeError::Hold(error)))?;
    let mut text = machine.plan(sites).map_err(Failed::Undone)?;
    let others = world.stop_others().map_err(|error| Failed::Undone(PokeError::Hold(error)))?;
    let written = machine.write_plan(sites, &mut text);
    drop(others);
    written.map_err(|unstored| Failed::Partial(PokeError::Write(Box::new(unstored.into()))))?;
    machine.sync_cores().map_err(Failed::Unsynced)
}

//! What SIGTRAP asks: whether a trap is of a batch, and what to do.
//!
//! Async-signal-safe: lock-free atomics and plain loads.

use std::sync::atomic::{AtomicU64, Ordering};

use palimpsest_sys::trap::{Claimed, Origin, TrapFrame, is_traced};

use super::arch;
use super::domain::Domain;
use super::table::{Verdict, judge};

/// Traps that were claimed.
static HIT: AtomicU64 = AtomicU64::new(0);

/// How many traps of batches the threads of this process have run into; its parent's, before the fork, are included.
pub fn traps_hit() -> u64 {
    // Relaxed: a statistic.
    HIT.load(Ordering::Relaxed)
}

/// See [`Claim`](palimpsest_sys::trap::Claim).
///
/// A signal that was sent may be a site's trap that a debugger passes on; it counts as one if the thread stands behind
/// a site. The code is not looked at: the thread may stand anywhere.
pub(super) fn claim(frame: &mut TrapFrame, origin: Origin) -> Claimed {
    let address = frame.trap_address();
    let verdict = judge(address, Domain::all_tables(), |address| origin == Origin::Sent || is_trap(address));
    match verdict {
        Verdict::Act(action) => {
            let next = match arch::holds(action.condition, frame.flags()) {
                true => action.target,
                false => action.otherwise,
            };
            frame.resume_at(next);
        }
        // A debugger delivers its own breakpoints' signals too, and has set the program counter back by itself.
        Verdict::Retry if !Domain::all_tables().any(|table| table.knew(address)) && is_traced() => {
            return Claimed::Ours;
        }
        Verdict::Retry => frame.resume_at(address),
        Verdict::Foreign => return Claimed::Foreign,
    }
    // Relaxed: a statistic.
    HIT.fetch_add(1, Ordering::Relaxed);
    Claimed::Ours
}

/// Whether the code at `address`, which has just been run or is a site, is the trap now.
pub(super) fn is_trap(address: usize) -> bool {
    let code = std::ptr::with_exposed_provenance::<u8>(address);
    (0..arch::TRAP.len()).all(|offset| {
        // SAFETY: within the instruction.
        let byte = unsafe { code.add(offset) };
        // Volatile: another core may be changing it.
        // SAFETY: the thread has just executed the instruction there, so that it is mapped, and readable if it is a
        // site: its old bytes have been read. Code that may be executed and not read can hold foreign traps only, and
        // nobody makes such code on x86-64.
        let byte = unsafe { byte.read_volatile() };
        byte == arch::TRAP[offset]
    })
}

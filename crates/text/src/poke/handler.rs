//! Answers SIGTRAP: whether a trap belongs to a batch, and what to do.
//!
//! Async-signal-safe: lock-free atomics and plain loads.

use std::sync::atomic::{AtomicU64, Ordering};

use palimpsest_sys::trap::{Claimed, Origin, TrapFrame, is_debugged};

use super::arch;
use super::domain::Domain;
use super::table::{Verdict, judge};
use super::trapped::TRAPPED;

/// Traps that were claimed.
static HIT: AtomicU64 = AtomicU64::new(0);

/// Returns how many traps of batches the threads of this process have run into, including those of its parent before
/// the fork.
pub fn traps_hit() -> u64 {
    // Relaxed: a statistic.
    HIT.load(Ordering::Relaxed)
}

/// See [`Claim`](palimpsest_sys::trap::Claim).
///
/// A signal that was sent may be a site's trap that a debugger passes on; it counts as one if the thread stands behind
/// a site. Does not look at the code: the thread may stand anywhere.
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
        // A debugger also delivers the signals of its own breakpoints, and has set back the program counter by itself.
        // One that only passes signals on, as strace does, makes threads come here late.
        Verdict::Retry if !may_be_known(address) && is_debugged() => return Claimed::Ours,
        Verdict::Retry => frame.resume_at(address),
        Verdict::Foreign => return Claimed::Foreign,
    }
    // Relaxed: a statistic.
    HIT.fetch_add(1, Ordering::Relaxed);
    Claimed::Ours
}

/// Whether a batch may have trapped at `address`: one of this process, or the last one of its parent.
fn may_be_known(address: usize) -> bool {
    TRAPPED.may_hold(address) || Domain::all_tables().any(|table| table.knew(address))
}

/// Returns whether the code at `address`, which has just run or is a site, is the trap now.
pub(super) fn is_trap(address: usize) -> bool {
    let code = std::ptr::with_exposed_provenance::<u8>(address);
    (0..arch::TRAP.len()).all(|offset| {
        // SAFETY: within the instruction.
        let byte = unsafe { code.add(offset) };
        // Volatile: another core may be changing it. SAFETY: the thread has just executed the instruction there, so
        // that it is mapped, and readable if it is a site: its old bytes have been read. Code that can be executed but
        // not read contains only foreign traps, and nobody makes such code on x86-64.
        let byte = unsafe { byte.read_volatile() };
        byte == arch::TRAP[offset]
    })
}

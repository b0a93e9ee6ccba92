//! Processes: an address space, threads on several CPUs, and system calls.

mod memory;
mod schedule;
mod syscall;
pub(crate) mod user;

pub(crate) use crate::arch::mmu::UserSpace;
pub(crate) use memory::Area;
pub(crate) use schedule::{Exit, run_all, run_ready, spawn, take_exits};

use core::sync::atomic::{AtomicU64, Ordering};

use palimpsest_paging::{Access, SpaceId, VirtAddr};

use crate::arch::user::Context;
use crate::call::Call;

/// Why a thread has left user mode.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trap {
    /// A system call.
    Call {
        /// Its number.
        number: u64,
        /// Its arguments.
        arguments: [u64; 3],
    },
    /// A page fault.
    Fault {
        /// The address of the access.
        address: VirtAddr,
        /// The access.
        access: Access,
    },
    /// Another CPU has called.
    Interrupt(Call),
    /// Something that user programs do not do.
    Other {
        /// The architecture's number for it.
        code: u64,
        /// The instruction's address.
        instruction: VirtAddr,
    },
}

/// A process.
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) space: UserSpace,
}

/// A thread that does not run at the moment.
pub(crate) struct Thread {
    pub(crate) process: alloc::sync::Arc<Process>,
    pub(crate) context: Context,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Returns an ID that no other space has or had.
pub(crate) fn next_id() -> SpaceId {
    // Relaxed: only uniqueness matters.
    SpaceId(NEXT.fetch_add(1, Ordering::Relaxed))
}

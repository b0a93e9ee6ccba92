//! Processes: an address space, threads on several CPUs, and system calls.

mod handles;
mod memory;
mod schedule;
mod syscall;
pub(crate) mod user;

pub(crate) use crate::arch::mmu::UserSpace;
pub(crate) use handles::Handles;
pub(crate) use memory::Area;
pub(crate) use schedule::{Exit, run_all, run_ready, spawn, take_exits};

use core::sync::atomic::{AtomicU64, Ordering};

use palimpsest_paging::{Access, ChildReplicas, ForkOptions, SpaceId, VirtAddr};

use crate::arch::user::Context;
use crate::call::Call;
use crate::sync::SpinLock;

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
        /// What the CPU found there.
        found: Found,
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

/// How a process's space differs from its parent's: not at all. On x86-64 the kernel is in it, and each of its nodes
/// has the same replicas.
pub(crate) const CHILD: ForkOptions<'static> = ForkOptions::new().replicas(ChildReplicas::Inherited);

/// What tables say about the address of an access that faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Nothing is mapped there.
    Nothing,
    /// A page is mapped, which does not allow it.
    Page,
}

/// A process.
pub(crate) struct Process {
    pub(crate) id: u64,
    pub(crate) space: UserSpace,
    /// The devices that it has opened.
    pub(crate) handles: SpinLock<Handles>,
}

impl Process {
    fn new(space: UserSpace, handles: Handles) -> Self {
        Self { id: space.id().0, space, handles: SpinLock::new(handles) }
    }
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

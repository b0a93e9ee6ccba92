//! Programs that run in user mode. They lie in a section of their own, which is copied into each process, and use only
//! registers, stacks, and memory at the fixed addresses below, by the loads and stores of `arch::user`.

mod calls;
mod flushes;
mod forks;
mod hidden;
mod operations;
mod races;
pub(crate) mod wanderer;

pub(crate) use calls::{ENOUGH, NOBODY, REFUSED, asker};
pub(crate) use flushes::{stale_reader, stale_writer, unmapped_reader, unmapper, withdrawer, writer};
pub(crate) use forks::{breaker, counter, family, protector, snapshots};
pub(crate) use hidden::{FAR, far_mapper, far_reader, peeker};
pub(crate) use operations::{operations, signalled};
pub(crate) use races::{RACE_PAGES, RACE_ROUNDS, racer, racers};

use palimpsest_paging::{PAGE, VirtAddr};

use crate::arch::user::{call, load};
use crate::cpu::CPUS;
use crate::kernel_space;

/// A user program, which takes an argument.
pub(crate) type Program = extern "C" fn(u64) -> !;

/// Where the programs' code is mapped.
pub(crate) const TEXT: VirtAddr = VirtAddr(0x40_0000);
/// Private memory.
pub(crate) const DATA: u64 = 0x1000_0000;
/// Private memory in which [`wanderer`](wanderer::wanderer) records the expected contents of [`DATA`].
pub(crate) const MODEL: u64 = 0x1800_0000;
/// Memory that parent and child share.
pub(crate) const SHARED: u64 = 0x2000_0000;
/// Pages of a stack.
pub(crate) const STACK_PAGES: u64 = 4;
/// The first stack, and the distance to the next.
pub(crate) const STACK: u64 = 0x3000_0000;
const STACK_STEP: u64 = 0x20_0000;

/// Ends of stacks, one for each CPU.
pub(crate) const STACKS: [VirtAddr; CPUS] = {
    let mut ends = [VirtAddr(0); CPUS];
    let mut index = 0;
    while index < CPUS {
        ends[index] = VirtAddr(STACK + index as u64 * STACK_STEP + STACK_PAGES * PAGE);
        index += 1;
    }
    ends
};

/// System calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Number {
    /// Ends the thread with a code.
    Exit,
    /// Lets other threads run. Returns how many threads have failed since the check began.
    Yield,
    /// Forks; the child starts on the given CPU. Returns 0 in the child, the child's number in the parent.
    Fork,
    /// Returns the code that a process has ended with, or [`RUNNING`].
    Wait,
    /// Changes rights: address, pages, rights.
    Protect,
    /// Unmaps: address, pages.
    Unmap,
    /// Starts a thread: entry, argument, CPU.
    Thread,
    /// Maps new pages, all zero, with the right to write: address, pages.
    Map,
    /// Pins the page at an address.
    Lock,
    /// Unpins it.
    Unlock,
    /// Opens a device by its name. Returns its handle.
    Open,
    /// Closes a handle.
    Close,
    /// Makes a process that is ready on this CPU continue at an address: process, address. Returns 1, or 0 if there is
    /// none.
    Signal,
    /// Begins to watch what this CPU fetches: round.
    Watch,
    /// Ends the watching: operation, round.
    Unwatch,
    /// No such call.
    Unknown,
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        let all = [
            Self::Exit,
            Self::Yield,
            Self::Fork,
            Self::Wait,
            Self::Protect,
            Self::Unmap,
            Self::Thread,
            Self::Map,
            Self::Lock,
            Self::Unlock,
            Self::Open,
            Self::Close,
            Self::Signal,
            Self::Watch,
            Self::Unwatch,
        ];
        all.get(number as usize).copied().unwrap_or(Self::Unknown)
    }
}

/// The name of the device that yields nothing, for [`Number::Open`].
pub(crate) const NULL: u64 = 0x6c6c_756e;

/// The answer of [`Number::Wait`] for a process that has not ended.
pub(crate) const RUNNING: u64 = u64::MAX;
/// The code of a thread that has accessed an address where nothing is mapped.
pub(crate) const FAULTED_NOT_MAPPED: u64 = 0x1000;
/// The code of a thread that has made an access without the right to it.
pub(crate) const FAULTED_DENIED: u64 = 0x1001;

/// How a thread ends when it accesses an address of the kernel's half that its tables do not map.
pub(crate) const FAULTED_HIDDEN: u64 = 0x1003;

/// The code of a thread that faults at the same place for ever, though each fault counts as resolved.
pub(crate) const FAULTED_FOREVER: u64 = 0x1002;
/// The code of a thread that would wait in vain.
pub(crate) const GAVE_UP: u64 = 0x2000;
/// Turns of a loop without system calls after which a thread gives up; normally a fraction of them is needed.
const PATIENCE: u64 = 1 << 31;

/// Returns the address of `program` in a process.
pub(crate) fn entry(program: Program) -> VirtAddr {
    VirtAddr(program as usize as u64 - kernel_space::user_image().start.0 + TEXT.0)
}

#[inline(always)]
fn exit(code: u64) -> ! {
    loop {
        call(Number::Exit as u64, [code, 0, 0]);
    }
}

/// Lets others run. Returns how many threads have failed, so that a caller that waits for one of them can stop waiting.
#[inline(always)]
fn give_way() -> u64 {
    call(Number::Yield as u64, [0; 3])
}

#[inline(always)]
fn fork(cpu: u64) -> u64 {
    call(Number::Fork as u64, [cpu, 0, 0])
}

#[inline(always)]
fn wait(process: u64) -> u64 {
    loop {
        let code = call(Number::Wait as u64, [process, 0, 0]);
        if code != RUNNING {
            return code;
        }
        give_way();
    }
}

/// Waits for a child, if there is one, and fails if it did, with its code.
#[inline(always)]
fn await_exit(child: u64) {
    if child != 0 {
        let code = wait(child);
        if code != 0 {
            exit(code);
        }
    }
}

/// Lets others run until the word at `address` is `value`; gives up when some thread has failed.
#[inline(always)]
fn await_value(address: u64, value: u64) {
    while load(address) != value {
        if give_way() > 0 {
            exit(GAVE_UP);
        }
    }
}

/// Waits while the word at `address` is `value`, without leaving user mode, and loads from `also` in each turn.
#[inline(always)]
fn spin_while(address: u64, value: u64, also: u64) {
    let mut turns = 0;
    while load(address) == value {
        load(also);
        turns += 1;
        if turns == PATIENCE {
            exit(GAVE_UP);
        }
    }
}

/// Fails with `code` unless the word at `address` is `value`.
#[inline(always)]
fn expect(address: u64, value: u64, code: u64) {
    if load(address) != value {
        exit(code);
    }
}

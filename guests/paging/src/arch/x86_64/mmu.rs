//! Which tables this CPU walks, and what its TLB keeps.

use core::arch::asm;

use palimpsest_paging::{AddressSpace, ForkError, Frame, MemoryType, NoTables, SpaceId, VirtAddr, format};

use crate::memory::Memory;
use crate::process::CHILD;

/// The format of the kernel's tables.
pub(crate) type KernelFormat = format::X86_64;
/// The format of a process's tables, which hold the kernel as well.
pub(crate) type UserFormat = format::X86_64;
/// The kernel's address space.
pub(crate) type KernelSpace = AddressSpace<KernelFormat, Memory>;
/// A process's address space.
pub(crate) type UserSpace = AddressSpace<UserFormat, Memory>;

/// PAT entry 3 after reset: uncached.
pub(crate) const DEVICE: MemoryType = MemoryType(3);
/// PAT entry 0 after reset: write-back.
pub(crate) const ORDINARY: MemoryType = MemoryType(0);

/// A space for a process, with nothing of its own yet: the kernel's, once more, with its replicas.
pub(crate) fn new_user_space(kernel: &KernelSpace, id: SpaceId) -> Result<UserSpace, NoTables> {
    match kernel.fork_with(id, CHILD) {
        Ok((space, flush)) => {
            flush.finish();
            Ok(space)
        }
        Err(ForkError::NoMemory(error)) => Err(error),
        Err(error @ ForkError::NoPage { .. }) => panic!("no page of the kernel is pinned: {error}"),
    }
}

fn load(root: Frame) {
    // SAFETY: the tables map the kernel as it is linked, and stay until another root is loaded.
    unsafe { asm!("mov cr3, {}", in(reg) root.address(), options(nostack, preserves_flags)) };
}

/// Walks the kernel's own tables from now on.
pub(crate) fn load_kernel(root: Frame) {
    load(root);
}

/// Walks a process's tables too.
pub(crate) fn load_user(root: Frame) {
    load(root);
}

/// Leaves the process's tables.
pub(crate) fn leave_user(kernel_root: Frame) {
    load(kernel_root);
}

/// The root that this CPU walks for the kernel's addresses.
pub(crate) fn loaded_kernel_root() -> Frame {
    let root: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nostack, nomem, preserves_flags)) };
    Frame::containing(root)
}

/// Forgets the page at `address`, global or not, and all partial translations: SDM volume 3, 5.10.4.1.
pub(crate) fn flush_page(address: VirtAddr) {
    // SAFETY: only forgets.
    unsafe { asm!("invlpg [{}]", in(reg) address.0, options(nostack, preserves_flags)) };
}

/// Forgets everything: a change of CR4.PGE does.
pub(crate) fn flush_all() {
    // SAFETY: only forgets; the register is as before.
    unsafe {
        asm!(
            "mov {0}, cr4",
            "xor {0}, 0x80",
            "mov cr4, {0}",
            "xor {0}, 0x80",
            "mov cr4, {0}",
            out(reg) _,
            options(nostack),
        );
    }
}

/// Entries became valid: walks find them without further ado (SDM volume 3, 5.10.4.3).
pub(crate) fn entries_made() {}

/// The first physical address that this CPU does not have.
pub(crate) fn physical_end() -> u64 {
    /// Bits of physical addresses, and the leaf that has them: SDM volume 2, CPUID.
    const ADDRESS_SIZES: u32 = 0x8000_0008;
    1 << (core::arch::x86_64::__cpuid(ADDRESS_SIZES).eax & 0xff)
}

/// Waits until flushes of this CPU are done: they are when the instruction is.
pub(crate) fn flush_done() {}

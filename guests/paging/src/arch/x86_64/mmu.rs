//! Which tables this CPU walks, and what its TLB keeps.

use core::arch::asm;

use palimpsest_paging::{AddressSpace, Frame, MemoryType, NoTables, SpaceId, VirtAddr, format};

use crate::kernel_space::{self, ImageRights};
use crate::memory::Memory;
use crate::packs;

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

/// Creates a space for a process, with nothing of its own yet: a fork of the kernel's, with the kernel's replicas.
pub(crate) fn new_user_space(kernel: &KernelSpace, id: SpaceId) -> Result<UserSpace, NoTables> {
    let forked = kernel.fork(id);
    let (space, flush) = match forked {
        Ok(forked) => forked,
        Err(palimpsest_paging::ForkError::NoMemory(error)) => return Err(error),
        Err(error @ palimpsest_paging::ForkError::NoPage { .. }) => panic!("no page of the kernel is pinned: {error}"),
    };
    flush.finish();
    after_fork(&space)?;
    Ok(space)
}

/// Prepares a process's space after a fork, which has no replicas yet; those of the kernel are the same for all.
pub(crate) fn after_fork(space: &UserSpace) -> Result<(), NoTables> {
    for range in [kernel_space::image_range(ImageRights::Constant), packs::range()] {
        match space.replicate(range) {
            Ok((_, flush)) => flush.finish(),
            Err(palimpsest_paging::ChangeError::NoMemory(error)) => return Err(error),
            Err(error) => panic!("the image and packs are mapped in whole pages: {error}"),
        }
    }
    Ok(())
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

/// Returns the root that this CPU walks for the kernel's addresses.
pub(crate) fn loaded_kernel_root() -> Frame {
    let root: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nostack, nomem, preserves_flags)) };
    Frame::containing(root)
}

/// Flushes the page at `address`, global or not, and all partial translations: SDM volume 3, 5.10.4.1.
pub(crate) fn flush_page(address: VirtAddr) {
    // SAFETY: a flush only forgets.
    unsafe { asm!("invlpg [{}]", in(reg) address.0, options(nostack, preserves_flags)) };
}

/// Flushes everything, by changing CR4.PGE.
pub(crate) fn flush_all() {
    // SAFETY: only forgets; the register ends as it began.
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

/// Makes entries that have become valid visible: nothing to do, walks find them (SDM volume 3, 5.10.4.3).
pub(crate) fn entries_made() {}

/// Returns the first physical address beyond those that this CPU has.
pub(crate) fn physical_end() -> u64 {
    /// The CPUID leaf that tells the number of physical address bits: SDM volume 2, CPUID.
    const ADDRESS_SIZES: u32 = 0x8000_0008;
    1 << (core::arch::x86_64::__cpuid(ADDRESS_SIZES).eax & 0xff)
}

/// Waits until this CPU's flushes are done: nothing to do, each is done when its instruction is.
pub(crate) fn flush_done() {}

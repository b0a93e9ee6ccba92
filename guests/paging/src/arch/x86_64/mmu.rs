//! Which tables this CPU walks, and what its TLB keeps.

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use palimpsest_paging::{
    AddressSpace, ENTRIES, ForkError, Frame, Machine, MemoryType, NoTables, PageSize, SpaceId, VirtAddr, format,
};

use super::descriptors;
use crate::cpu::{self, CPUS};
use crate::entry;
use crate::memory::{Memory, Records};
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

/// How the kernel's root maps the entry's data, which user mode's maps by small pages: loading another root forgets all
/// translations (SDM volume 3, 5.10.4.1), so that those of two sizes never meet.
pub(crate) const ENTRY_DATA: PageSize = PageSize::Large;

/// Whether both roots must map the entry by the same entries.
pub(crate) const ENTRY_IS_SAME: bool = false;

/// Creates a space for a process, with nothing of its own yet: a fork of the kernel's, with the kernel's replicas.
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
    tables_changed();
}

/// The root that each CPU walks in user mode, on the CPU's node: the lower half is the process's, the upper half the
/// entry's. Its own CPU alone writes it, in the kernel, where it does not walk it. So nothing can go wrong between
/// CPUs: what one takes from a process is still in the root of another until that is called for the flush, and user
/// mode is entered with what the tables are then; what one adds is found by a fault.
static USER_ROOTS: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
/// Whether a CPU's root may differ from its process's.
static STALE: [AtomicBool; CPUS] = [const { AtomicBool::new(true) }; CPUS];

/// Makes this CPU's root for user mode.
pub(crate) fn make_user_root(cpu: usize) {
    let root = Records::allocate(cpu::node_of(cpu), 1).unwrap_or_else(|| panic!("no memory for a root"));
    // Relaxed: this CPU alone uses it, and checks do when it stands still.
    USER_ROOTS[cpu].store(root.address(), Ordering::Relaxed);
}

/// The root that `cpu` walks in user mode.
pub(crate) fn user_root(cpu: usize) -> Frame {
    Frame::containing(USER_ROOTS[cpu].load(Ordering::Relaxed))
}

/// Something in the tables that this CPU walks may have changed.
pub(crate) fn tables_changed() {
    // Relaxed, here and in `follow`: read by this CPU alone.
    STALE[super::cpu::number()].store(true, Ordering::Relaxed);
}

/// Makes user mode's root say what the process's says. To be called before user mode is entered.
pub(crate) fn follow() {
    let here = super::cpu::number();
    if !STALE[here].swap(false, Ordering::Relaxed) {
        return;
    }
    let (root, own) = (loaded_kernel_root(), user_root(here));
    descriptors::set_roots(here, root.address(), own.address());
    let (lower, upper) = (entries(root), entries(entry::root(cpu::node_of(here))));
    let halves = lower[..ENTRIES / 2].iter().chain(&upper[ENTRIES / 2..]);
    for (own, from) in entries(own).iter().zip(halves) {
        // Acquire, partner: the Release with which the entry was published. Relaxed: this CPU walks it, behind the
        // change of roots, which serializes.
        own.store(from.load(Ordering::Acquire), Ordering::Relaxed);
    }
}

/// Whether `cpu`, which is this one, finds the same by the lower halves of the roots that it has loaded and that it
/// walks in user mode.
pub(crate) fn user_half_is_same(cpu: usize) -> bool {
    /// The mark that walks leave in an entry (SDM volume 3, table 5-15).
    const ACCESSED: u64 = 1 << 5;
    let (kernel, user) = (entries(loaded_kernel_root()), entries(user_root(cpu)));
    let value = |entry: &AtomicU64| entry.load(Ordering::Relaxed) & !ACCESSED;
    kernel[..ENTRIES / 2].iter().map(value).eq(user[..ENTRIES / 2].iter().map(value))
}

/// The entries of a root that this CPU has loaded, or of one that stays.
fn entries(root: Frame) -> &'static [AtomicU64; ENTRIES] {
    // SAFETY: the space that this CPU runs keeps its roots meanwhile; the entry's and the CPUs' own stay for ever.
    let table = unsafe { Memory.table(root) };
    &table.0
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

/// Called when entries have become valid, or when a fault has found them so. Walks see them at once (SDM volume 3,
/// 5.10.4.3), except in user mode's root.
pub(crate) fn entries_made() {
    tables_changed();
}

/// Returns the first physical address beyond those that this CPU has.
pub(crate) fn physical_end() -> u64 {
    /// The CPUID leaf that tells the number of physical address bits: SDM volume 2, CPUID.
    const ADDRESS_SIZES: u32 = 0x8000_0008;
    1 << (core::arch::x86_64::__cpuid(ADDRESS_SIZES).eax & 0xff)
}

/// Waits until this CPU's flushes are done: nothing to do, each is done when its instruction is.
pub(crate) fn flush_done() {}

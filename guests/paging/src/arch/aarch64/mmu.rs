//! Which tables this CPU walks, and what its TLB keeps.

use core::arch::asm;
use core::cell::UnsafeCell;

use palimpsest_paging::{AddressSpace, Frame, MemoryType, NoTables, PageSize, SpaceId, SpaceOptions, VirtAddr, format};

use crate::memory::{Memory, nodes};
use crate::{cpu, entry, image};

/// The format of the kernel's tables, which TTBR1 leads to.
pub(crate) type KernelFormat = format::AArch64Upper;
/// The format of a process's tables, which TTBR0 leads to.
pub(crate) type UserFormat = format::AArch64;
/// The kernel's address space.
pub(crate) type KernelSpace = AddressSpace<KernelFormat, Memory>;
/// A process's address space.
pub(crate) type UserSpace = AddressSpace<UserFormat, Memory>;

/// MAIR entry 1, as `boot.s` sets it.
pub(crate) const DEVICE: MemoryType = MemoryType(1);
/// MAIR entry 0.
pub(crate) const ORDINARY: MemoryType = MemoryType(0);

/// How the kernel's root maps the entry's data: as user mode's does. Between the change of roots and the flush behind
/// it, a TLB may have translations by both, and must not find two of different sizes for one address (Arm ARM D8.16.1,
/// "Using break-before-make": a change of the size of a block or page).
pub(crate) const ENTRY_DATA: PageSize = PageSize::Small;

/// Whether both roots must map the entry by the same entries.
pub(crate) const ENTRY_IS_SAME: bool = true;

#[repr(C, align(4096))]
struct Empty(UnsafeCell<[u64; 512]>);

// SAFETY: nobody writes it.
unsafe impl Sync for Empty {}

/// The tables of no process.
static EMPTY: Empty = Empty(UnsafeCell::new([0; 512]));

/// Creates a space for a process, with nothing of its own yet.
pub(crate) fn new_user_space(_kernel: &KernelSpace, id: SpaceId) -> Result<UserSpace, NoTables> {
    UserSpace::new(Memory, id, &nodes(), SpaceOptions::default())
}

/// Loads the kernel's own tables, and those of no process.
pub(crate) fn load_kernel(root: Frame) {
    let [.., replace] = super::cpu::boot_places();
    // SAFETY: the tables map the kernel as it is linked, and stay. `boot.s` keeps to these registers.
    unsafe {
        asm!(
            "blr {replace}",
            replace = in(reg) replace,
            inlateout("x0") root.address() => _,
            inlateout("x1") empty().address() => _,
            out("x30") _,
            options(nostack, preserves_flags),
        );
    }
    leave_user(root);
}

/// Loads a process's tables as well. All have ASID 0: a TLB must not find pages of two processes for one address, so
/// the old tables are left and their translations flushed before the new ones can be walked.
pub(crate) fn load_user(root: Frame) {
    // SAFETY: the kernel does not run through these tables; barriers and a flush.
    unsafe {
        asm!(
            "dsb ish",
            "msr ttbr0_el1, {empty}",
            "isb",
            "tlbi aside1, xzr",
            "dsb nsh",
            "isb",
            "msr ttbr0_el1, {root}",
            "isb",
            empty = in(reg) empty().address(),
            root = in(reg) root.address(),
            options(nostack, preserves_flags),
        );
    }
}

/// Returns the tables of no process.
fn empty() -> Frame {
    Frame::containing(EMPTY.0.get() as u64 - image::offset())
}

/// Makes this CPU's root for user mode: nothing to do, since a node's CPUs share the entry's, and TTBR0 is the
/// process's in both.
pub(crate) fn make_user_root(_cpu: usize) {}

/// The root of the upper half that `cpu` walks in user mode.
pub(crate) fn user_root(cpu: usize) -> Frame {
    entry::root(cpu::node_of(cpu))
}

/// Something in the tables that this CPU walks may have changed: user mode walks the same.
pub(crate) fn tables_changed() {}

/// Tells the way to user mode and back which roots to load. To be called before user mode is entered.
pub(crate) fn follow() {
    let here = super::cpu::number();
    super::entry::set_roots(here, loaded_kernel_root().address(), user_root(here).address());
}

/// Returns whether `cpu`, which is this one, finds the same by the lower half of addresses in the kernel and in user
/// mode: always, since there is one root for it.
pub(crate) fn user_half_is_same(_cpu: usize) -> bool {
    true
}

/// Leaves the process's tables.
pub(crate) fn leave_user(_kernel_root: Frame) {
    load_user(empty());
}

/// Returns the root that this CPU walks for the kernel's addresses.
pub(crate) fn loaded_kernel_root() -> Frame {
    let root: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, ttbr1_el1", out(reg) root, options(nostack, nomem, preserves_flags)) };
    Frame::containing(root)
}

/// Flushes the page at `address`, global or not, and all partial translations of it, on this CPU: Arm ARM D8.14.5.
pub(crate) fn flush_page(address: VirtAddr) {
    // Bits 43:0 of the operand are bits 55:12 of the address.
    let operand = address.0 >> 12 & ((1 << 44) - 1);
    // SAFETY: a flush only forgets. The barrier makes later walks see the entries written before.
    unsafe { asm!("dsb ish", "tlbi vaae1, {}", in(reg) operand, options(nostack, preserves_flags)) };
}

/// Flushes everything, on this CPU.
pub(crate) fn flush_all() {
    // SAFETY: a flush only forgets.
    unsafe { asm!("dsb ish", "tlbi vmalle1", options(nostack, preserves_flags)) };
}

/// Makes entries that have become valid visible: waits for the stores, then fetches and translates what follows anew
/// (Arm ARM D8.16).
pub(crate) fn entries_made() {
    // SAFETY: barriers.
    unsafe { asm!("dsb ishst", "isb", options(nostack, preserves_flags)) };
}

/// Returns the first physical address beyond those that this CPU has.
pub(crate) fn physical_end() -> u64 {
    let features: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, id_aa64mmfr0_el1", out(reg) features, options(nostack, nomem, preserves_flags)) };
    // PARange: Arm ARM, ID_AA64MMFR0_EL1.
    1 << [32, 36, 40, 42, 44, 48, 52][(features as usize & 0xf).min(6)]
}

/// Waits until flushes of this CPU are done.
pub(crate) fn flush_done() {
    // SAFETY: barriers.
    unsafe { asm!("dsb nsh", "isb", options(nostack, preserves_flags)) };
}

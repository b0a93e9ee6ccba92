//! The area of each CPU that the way from user mode finds by its stack.

use core::cell::UnsafeCell;

use crate::cpu::CPUS;

/// `trap.s` knows what is from `kernel_root` on.
#[repr(C, align(16))]
pub(super) struct Area {
    /// The stack while user mode runs, which ends where the fields begin.
    stack: [u64; 8],
    /// The root of the upper half to be loaded when user mode is left.
    kernel_root: u64,
    /// That to be loaded when it is entered.
    user_root: u64,
    /// Where the registers of the thread that runs in user mode go.
    context: u64,
    /// The kernel's stack meanwhile.
    kernel_stack: u64,
}

#[repr(transparent)]
struct Slot(UnsafeCell<Area>);

// SAFETY: each CPU touches its own alone.
unsafe impl Sync for Slot {}

#[expect(clippy::declare_interior_mutable_const, reason = "copied into each slot of the array below")]
const EMPTY: Slot =
    Slot(UnsafeCell::new(Area { stack: [0; 8], kernel_root: 0, user_root: 0, context: 0, kernel_stack: 0 }));

#[unsafe(link_section = ".entry_data")]
static AREAS: [Slot; CPUS] = [EMPTY; CPUS];

/// The fields of a CPU's area, as `run_user` takes them.
pub(super) fn fields(cpu: usize) -> *mut u64 {
    AREAS[cpu].0.get().wrapping_byte_add(core::mem::offset_of!(Area, kernel_root)).cast()
}

/// The roots between which this CPU goes to and fro.
pub(super) fn set_roots(cpu: usize, kernel_root: u64, user_root: u64) {
    let kernel = fields(cpu);
    let user = kernel.wrapping_add(1);
    // SAFETY: this CPU's own, which `trap.s` alone reads, on the way to user mode and back.
    unsafe { kernel.write(kernel_root) };
    // SAFETY: as above.
    unsafe { user.write(user_root) };
}

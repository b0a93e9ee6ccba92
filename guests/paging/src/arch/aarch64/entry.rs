//! The area of each CPU, which the code that leaves user mode finds by its stack.

use core::cell::UnsafeCell;

use crate::cpu::CPUS;

/// `trap.s` knows the fields from `kernel_root` on.
#[repr(C, align(16))]
pub(super) struct Area {
    /// The stack while user mode runs. It ends where the fields begin.
    stack: [u64; 8],
    /// The upper half's root that is loaded when user mode is left.
    kernel_root: u64,
    /// The upper half's root that is loaded when user mode is entered.
    user_root: u64,
    /// Where the registers of the thread that runs in user mode are saved.
    context: u64,
    /// The kernel's stack pointer while user mode runs.
    kernel_stack: u64,
}

#[repr(transparent)]
struct Slot(UnsafeCell<Area>);

// SAFETY: each CPU touches only its own area.
unsafe impl Sync for Slot {}

#[expect(clippy::declare_interior_mutable_const, reason = "copied into each slot of the array below")]
const EMPTY: Slot =
    Slot(UnsafeCell::new(Area { stack: [0; 8], kernel_root: 0, user_root: 0, context: 0, kernel_stack: 0 }));

#[unsafe(link_section = ".entry_data")]
static AREAS: [Slot; CPUS] = [EMPTY; CPUS];

/// Returns the fields of a CPU's area, as `run_user` takes them.
pub(super) fn fields(cpu: usize) -> *mut u64 {
    AREAS[cpu].0.get().wrapping_byte_add(core::mem::offset_of!(Area, kernel_root)).cast()
}

/// Sets the roots between which this CPU switches.
pub(super) fn set_roots(cpu: usize, kernel_root: u64, user_root: u64) {
    let kernel = fields(cpu);
    let user = kernel.wrapping_add(1);
    // SAFETY: this CPU's own, which `trap.s` alone reads, on the way to user mode and back.
    unsafe { kernel.write(kernel_root) };
    // SAFETY: as above.
    unsafe { user.write(user_root) };
}

//! One CPU: its number, waiting, and starting others.

use core::arch::asm;

use super::{interrupts, layout, trap};

/// PSCI (Arm DEN 0022), 5.1.4: CPU_ON for 64-bit callers.
const CPU_ON: u64 = 0xc400_0003;

unsafe extern "C" {
    #[link_name = "boot_places"]
    static BOOT_PLACES: [u64; 4];
}

/// Returns where other CPUs start, the variables that tell them their number and stack, and what replaces the upper
/// half's root, in `boot.s`. The code of this image moves, what these lead to does not: so their addresses cannot be
/// told by their distances.
pub(super) fn boot_places() -> [u64; 4] {
    // SAFETY: nobody writes it any more.
    unsafe { BOOT_PLACES }
}

/// Makes this CPU number `number`.
pub(crate) fn init(number: usize) {
    // SAFETY: the register is for software, and `number` alone reads it.
    unsafe { asm!("msr tpidr_el1, {}", in(reg) number, options(nostack, preserves_flags)) };
    trap::init();
    interrupts::init(number);
    refuse_user_memory();
}

/// Makes loads and stores of the kernel to what user mode can reach fault (PAN, Armv8.1: Arm ARM D8.4.2), also behind
/// each exception (SCTLR_EL1.SPAN).
fn refuse_user_memory() {
    // SAFETY: no user page is used by address in the kernel, except in `with_user_memory`.
    unsafe {
        asm!(
            "mrs {0}, sctlr_el1",
            "bic {0}, {0}, #(1 << 23)",
            "msr sctlr_el1, {0}",
            "isb",
            ".inst 0xd500419f", // msr pan, #1
            out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Runs `body`, in which the kernel may load and store what user mode can.
pub(crate) fn with_user_memory<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: only allows more. `msr pan, #0`.
    unsafe { asm!(".inst 0xd500409f", options(nostack, preserves_flags)) };
    let result = body();
    // SAFETY: as it was. `msr pan, #1`.
    unsafe { asm!(".inst 0xd500419f", options(nostack, preserves_flags)) };
    result
}

/// Returns the number of this CPU.
pub(crate) fn number() -> usize {
    let number;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) number, options(nostack, nomem, preserves_flags)) };
    number
}

/// Starts CPU `number` at `cpu_main`, on a stack that ends at `stack_end`.
pub(crate) fn start(number: usize, stack_end: u64) {
    let [boot_start, boot_cpu, boot_stack, _] = boot_places();
    let place = |address: u64| (layout::PHYSICAL_MAP + address) as *mut u64;
    // SAFETY: the boot code's variable; CPUs are started one after the other.
    unsafe { place(boot_cpu).write_volatile(number as u64) };
    // SAFETY: as above.
    unsafe { place(boot_stack).write_volatile(stack_end) };
    let result: i64;
    // SAFETY: starts a CPU that is off, at the boot code.
    unsafe {
        asm!(
            "dsb sy",
            "hvc #0",
            inlateout("x0") CPU_ON => result,
            in("x1") number as u64,
            in("x2") boot_start,
            in("x3") 0_u64,
            clobber_abi("C"),
        );
    }
    assert_eq!(result, 0, "CPU {number} does not start");
}

/// Waits for an interrupt, with interrupts off before and after. WFI also returns for an interrupt that is masked.
pub(crate) fn halt() {
    // SAFETY: the handlers keep to their own data.
    unsafe { asm!("dsb sy", "wfi", "msr daifclr, #2", "isb", "msr daifset, #2", options(nostack)) };
}

/// Runs `body` with interrupts on.
pub(crate) fn with_interrupts<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the handlers keep to their own data.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
    let result = body();
    // SAFETY: only delays interrupts.
    unsafe { asm!("msr daifset, #2", options(nostack)) };
    result
}

/// Drops what this CPU has fetched.
pub(crate) fn serialize() {
    // SAFETY: a barrier.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

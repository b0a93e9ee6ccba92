//! One CPU: its number, waiting, and starting others.

use core::arch::asm;

use super::{interrupts, layout, trap};

/// PSCI (Arm DEN 0022), 5.1.4: CPU_ON for 64-bit callers.
const CPU_ON: u64 = 0xc400_0003;

unsafe extern "C" {
    /// Where other CPUs start, and the variables that tell them their number and stack, in `boot.s`. The code of this
    /// image moves, but what these lead to does not: so their addresses cannot be relative to this code.
    static boot_places: [u64; 3];
}

/// Makes this CPU number `number`.
pub(crate) fn init(number: usize) {
    // SAFETY: the register is for software, and `number` alone reads it.
    unsafe { asm!("msr tpidr_el1, {}", in(reg) number, options(nostack, preserves_flags)) };
    trap::init();
    interrupts::init(number);
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
    // SAFETY: nobody writes to it any more.
    let [boot_start, boot_cpu, boot_stack] = unsafe { boot_places };
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

//! One CPU: its number, waiting, and starting others.

use core::arch::asm;

use super::{descriptors, interrupts, layout};

/// The model-specific register with the base of GS: SDM volume 4, table 2-2.
const GS_BASE: u32 = 0xc000_0101;

/// Where the start-up interrupt begins: page 8. `boot.s` knows it too.
const AP_CODE: u64 = 0x8000;

unsafe extern "C" {
    /// The code that other CPUs start at, its end, and the variables that tell them their number and stack. The code of
    /// this image moves, but what these lead to does not: so their addresses cannot be relative to this code.
    static boot_places: [u64; 4];
}

/// Makes this CPU number `number`.
pub(crate) fn init(number: usize) {
    descriptors::init(number);
    interrupts::init();
    // SMEP and SMAP (SDM volume 3, 2.5): the kernel neither runs nor touches what user mode can.
    // SAFETY: no user page is used by address in the kernel.
    unsafe { asm!("mov {0}, cr4", "or {0}, 0x300000", "mov cr4, {0}", out(reg) _, options(nostack)) };
}

/// Runs `body`, in which the kernel may load and store what user mode can.
pub(crate) fn with_user_memory<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: only allows more.
    unsafe { asm!("stac", options(nostack)) };
    let result = body();
    // SAFETY: as it was.
    unsafe { asm!("clac", options(nostack)) };
    result
}

/// Returns the number of this CPU.
pub(crate) fn number() -> usize {
    let number: u64;
    // SAFETY: GS leads to this CPU's data, whose first field is constant.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, readonly, preserves_flags)) };
    number as usize
}

/// Starts CPU `number` at `cpu_main`, on a stack that ends at `stack_end`.
pub(crate) fn start(number: usize, stack_end: u64) {
    // SAFETY: nobody writes to it any more.
    let [code, code_end, boot_cpu, boot_stack] = unsafe { boot_places };
    let place = |address: u64| (layout::PHYSICAL_MAP + address) as *mut u64;
    // SAFETY: the boot code's variable; CPUs are started one after the other.
    unsafe { place(boot_cpu).write_volatile(number as u64) };
    // SAFETY: as above.
    unsafe { place(boot_stack).write_volatile(stack_end) };
    let to = (layout::PHYSICAL_MAP + AP_CODE) as *mut u8;
    // SAFETY: the page is memory that nothing else uses, and the code lies elsewhere.
    unsafe { core::ptr::copy_nonoverlapping(place(code).cast_const().cast(), to, (code_end - code) as usize) };
    interrupts::start(number, AP_CODE);
}

/// Waits for an interrupt, with interrupts off before and after.
pub(crate) fn halt() {
    // SAFETY: the handlers keep to their own data. STI lets nothing in before HLT.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// Runs `body` with interrupts on.
pub(crate) fn with_interrupts<T>(body: impl FnOnce() -> T) -> T {
    // SAFETY: the handlers keep to their own data.
    unsafe { asm!("sti", options(nostack)) };
    let result = body();
    // SAFETY: only delays interrupts.
    unsafe { asm!("cli", options(nostack)) };
    result
}

/// Drops what this CPU has fetched.
pub(crate) fn serialize() {
    core::arch::x86_64::__cpuid(0);
}

/// Sets where this CPU's data begins, which `number` reads through GS.
pub(super) fn set_per_cpu(address: u64) {
    let (low, high) = (address as u32, (address >> 32) as u32);
    // SAFETY: nothing but `number` uses GS.
    unsafe { asm!("wrmsr", in("ecx") GS_BASE, in("eax") low, in("edx") high, options(nostack)) };
}

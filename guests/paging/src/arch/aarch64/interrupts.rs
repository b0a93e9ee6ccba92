//! The interrupt controller, a GICv2 (Arm IHI 0048B); only its software-generated interrupts are used.

use core::arch::asm;

use super::layout;
use crate::call::Call;

// Its place on QEMU's `virt` (hw/arm/virt.c). Registers of the distributor: 4.1.2, of a CPU's interface: 4.1.3.
const DISTRIBUTOR: u64 = layout::PHYSICAL_MAP + 0x0800_0000;
const DISTRIBUTOR_CONTROL: u64 = DISTRIBUTOR;
const SET_ENABLE: u64 = DISTRIBUTOR + 0x100;
const GENERATE: u64 = DISTRIBUTOR + 0xf00;
const INTERFACE: u64 = layout::PHYSICAL_MAP + 0x0801_0000;
const INTERFACE_CONTROL: u64 = INTERFACE;
const PRIORITY_MASK: u64 = INTERFACE + 4;
const ACKNOWLEDGE: u64 = INTERFACE + 0xc;
const END: u64 = INTERFACE + 0x10;

fn write(register: u64, value: u32) {
    // SAFETY: a register of the controller, mapped as a device.
    unsafe { (register as *mut u32).write_volatile(value) };
}

/// Switches the controller on for this CPU.
pub(super) fn init(cpu: usize) {
    if cpu == 0 {
        write(DISTRIBUTOR_CONTROL, 1);
    }
    // The first 16 interrupts, of which each CPU has its own.
    write(SET_ENABLE, 0xffff);
    write(PRIORITY_MASK, 0xff);
    write(INTERFACE_CONTROL, 1);
}

/// Interrupts `cpu`.
pub(crate) fn send(cpu: usize, call: Call) {
    // The call's data, table entries included, is in memory before the call arrives. SAFETY: a barrier.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
    write(GENERATE, 1 << (16 + cpu) | call.number());
}

/// Acknowledges the pending call and returns it.
pub(super) fn take() -> Option<Call> {
    // SAFETY: reading the register takes the interrupt, as intended.
    let acknowledged = unsafe { (ACKNOWLEDGE as *const u32).read_volatile() };
    // Interrupt numbers from 0 on are those of calls.
    let call = Call::of(acknowledged & 0x3ff)?;
    write(END, acknowledged);
    Some(call)
}

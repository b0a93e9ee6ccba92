//! The serial line, and the way out.

use core::arch::asm;

use super::layout;
use crate::check::Status;

/// PL011 (Arm DDI 0183, 3.3.1 and 3.3.3), at its place on QEMU's `virt` (hw/arm/virt.c): the data register, and the bit
/// of the flag register that is set while the device accepts no byte.
const DATA: u64 = layout::PHYSICAL_MAP + 0x0900_0000;
const FLAGS: u64 = DATA + 0x18;
const TRANSMIT_FULL: u32 = 1 << 5;

/// Semihosting (Arm's document of that name): ends the program.
const SYS_EXIT: u64 = 0x18;
const APPLICATION_EXIT: u64 = 0x2_0026;

/// Sends one byte.
pub(crate) fn write_byte(byte: u8) {
    loop {
        // SAFETY: a device register that a read does not change.
        let flags = unsafe { (FLAGS as *const u32).read_volatile() };
        if flags & TRANSMIT_FULL == 0 {
            break;
        }
    }
    // SAFETY: the device sends the byte and does nothing else.
    unsafe { (DATA as *mut u32).write_volatile(byte.into()) };
}

/// Ends the machine with a status of QEMU.
pub(crate) fn exit(status: Status) -> ! {
    let block = [APPLICATION_EXIT, status as u64];
    // SAFETY: QEMU runs with `-semihosting` and ends.
    unsafe { asm!("hlt #0xf000", in("x0") SYS_EXIT, in("x1") &raw const block, options(nostack)) };
    loop {
        super::cpu::halt();
    }
}

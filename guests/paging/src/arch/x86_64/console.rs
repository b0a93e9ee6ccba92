//! The serial line, and the way out.

use core::arch::asm;

use crate::check::Status;

/// The first serial port, a 16550 (National Semiconductor PC16550D, 8.0).
const COM1: u16 = 0x3f8;
/// Its line status, and the bit that is set when it accepts a byte.
const LINE_STATUS: u16 = COM1 + 5;
const TRANSMIT_EMPTY: u8 = 1 << 5;
/// `-device isa-debug-exit,iobase=0xf4,iosize=4`: QEMU ends with the value written, times two plus one.
const DEBUG_EXIT: u16 = 0xf4;

/// Sends one byte.
pub(crate) fn write_byte(byte: u8) {
    loop {
        let status: u8;
        // SAFETY: reading the status has no effect.
        unsafe { asm!("in al, dx", out("al") status, in("dx") LINE_STATUS, options(nomem, nostack)) };
        if status & TRANSMIT_EMPTY != 0 {
            break;
        }
    }
    // SAFETY: the port sends the byte and does nothing else.
    unsafe { asm!("out dx, al", in("al") byte, in("dx") COM1, options(nomem, nostack)) };
}

/// Ends the machine with a status of QEMU, which must be odd.
pub(crate) fn exit(status: Status) -> ! {
    let value = status as u32 / 2;
    // SAFETY: the device ends the machine.
    unsafe { asm!("out dx, eax", in("eax") value, in("dx") DEBUG_EXIT, options(nomem, nostack)) };
    loop {
        super::cpu::halt();
    }
}

//! The local APIC: SDM volume 3, chapter 11; registers: table 11-1, commands: 11.6.1.

use super::layout;
use crate::call::Call;

/// The vector of the first call.
const CALLS: u64 = 0xf0;

const APIC: u64 = layout::PHYSICAL_MAP + 0xfee0_0000;
const END_OF_INTERRUPT: u64 = 0xb0;
/// The spurious-interrupt vector, and the bit of the same register that switches the APIC on.
const SPURIOUS: u64 = 0xf0;
const ENABLE: u32 = 1 << 8;
const COMMAND_LOW: u64 = 0x300;
const COMMAND_HIGH: u64 = 0x310;
/// Delivery modes and level of a command.
const INIT: u32 = 5 << 8;
const START_UP: u32 = 6 << 8;
const ASSERT: u32 = 1 << 14;

fn write(register: u64, value: u32) {
    // SAFETY: a register of this CPU's APIC, mapped uncached.
    unsafe { ((APIC + register) as *mut u32).write_volatile(value) };
}

/// Masks of the two old interrupt controllers, for which the firmware leaves a timer running.
const PIC_MASKS: [u16; 2] = [0x21, 0xa1];

/// Switches this CPU's APIC on, and everything else off.
pub(super) fn init() {
    for port in PIC_MASKS {
        // SAFETY: masks interrupts that nothing here waits for.
        unsafe { core::arch::asm!("out dx, al", in("al") 0xff_u8, in("dx") port, options(nomem, nostack)) };
    }
    write(SPURIOUS, ENABLE | 0xff);
}

fn command(cpu: usize, command: u32) {
    // QEMU numbers APICs as CPUs.
    write(COMMAND_HIGH, (cpu as u32) << 24);
    write(COMMAND_LOW, command | ASSERT);
}

/// Interrupts `cpu`.
pub(crate) fn send(cpu: usize, call: Call) {
    command(cpu, CALLS as u32 + call.number());
}

/// Makes `cpu` begin at the page `address`: SDM volume 3, 9.4.4.1.
pub(super) fn start(cpu: usize, address: u64) {
    command(cpu, INIT);
    for _ in 0..100_000 {
        core::hint::spin_loop();
    }
    command(cpu, START_UP | (address >> 12) as u32);
}

/// Acknowledges the call with vector `vector` and returns it.
pub(super) fn take(vector: u64) -> Option<Call> {
    let call = Call::of(u32::try_from(vector.checked_sub(CALLS)?).ok()?)?;
    write(END_OF_INTERRUPT, 0);
    Some(call)
}

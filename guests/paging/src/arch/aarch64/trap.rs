//! Exceptions in the kernel itself: calls of other CPUs, single steps, probes, and programs.

use core::arch::asm;

use super::{interrupts, user};
use crate::{fetches, packs, probe};

/// What `trap.s` saves.
#[derive(Debug)]
#[repr(C)]
struct Frame {
    registers: [u64; 31],
    instruction: u64,
    state: u64,
    unused: u64,
}

/// Kinds of exceptions that `trap.s` distinguishes and the kernel expects.
pub(super) const SYNCHRONOUS: u64 = 0;
pub(super) const INTERRUPT: u64 = 1;

/// Classes of synchronous exceptions: Arm ARM D19.2.37.
pub(super) const CALL: u64 = 0x15;
pub(super) const FETCH_FROM_USER: u64 = 0x20;
const FETCH_FROM_KERNEL: u64 = 0x21;
pub(super) const ACCESS_FROM_USER: u64 = 0x24;
const ACCESS_FROM_KERNEL: u64 = 0x25;
const STEP: u64 = 0x33;
const BREAKPOINT: u64 = 0x3c;

/// In the saved state: one instruction runs before the next exception of a step.
const STEP_OVER: u64 = 1 << 21;

/// The register with the address to return to.
const LINK: usize = 30;

unsafe extern "C" {
    static trap_vectors: [u8; 0];
}

/// Lets exceptions go to `trap.s`.
pub(super) fn init() {
    // SAFETY: the vectors handle every exception.
    unsafe { asm!("msr vbar_el1, {}", "isb", in(reg) &raw const trap_vectors, options(nostack, preserves_flags)) };
}

/// Returns the cause of the last synchronous exception: its class, and the rest of the syndrome.
pub(super) fn syndrome() -> (u64, u64) {
    let syndrome: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, esr_el1", out(reg) syndrome, options(nostack, nomem, preserves_flags)) };
    (syndrome >> 26, syndrome & 0x1ff_ffff)
}

#[unsafe(no_mangle)]
extern "C" fn kernel_trap(frame: &mut Frame, kind: u64) {
    let (class, rest) = syndrome();
    match (kind, class) {
        (INTERRUPT, _) => {
            if let Some(call) = interrupts::take() {
                crate::cpu::take_call(call);
                return;
            }
        }
        (SYNCHRONOUS, FETCH_FROM_KERNEL | ACCESS_FROM_KERNEL) => {
            let probe = || probe::recover(frame.instruction, user::fault_address());
            if let Some(next) = packs::resume(frame.instruction).or_else(probe) {
                frame.instruction = next;
                return;
            }
        }
        (SYNCHRONOUS, STEP) => {
            fetches::step(frame.instruction);
            frame.state |= STEP_OVER;
            return;
        }
        (SYNCHRONOUS, BREAKPOINT) => {
            let at = frame.instruction;
            let freed = || packs::contains(at).then(|| probe::recover_call(frame.registers[LINK])).flatten();
            if let Some(next) = crate::breakpoints::hit(at).or_else(freed) {
                frame.instruction = next;
                return;
            }
        }
        _ => {}
    }
    let address = user::fault_address();
    panic!(
        "an exception of kind {kind}, class {class:#x} ({rest:#x}), in the kernel, at address {address:#x}: {frame:#x?}"
    );
}

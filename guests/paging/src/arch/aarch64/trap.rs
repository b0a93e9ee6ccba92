//! Exceptions in the kernel itself: calls of other CPUs, single steps, probes, and programs.

use core::arch::asm;

use super::{interrupts, step, user};
use crate::breakpoints::{self, Next};
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

/// In the saved state: interrupts are masked, and debug exceptions are (Arm ARM C5.2.19).
const MASKED: u64 = 1 << 7 | 1 << 9;
const INTERRUPTS_MASKED: u64 = 1 << 7;

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
            match breakpoints::stepped(frame.instruction) {
                None => {
                    fetches::step(frame.instruction);
                    frame.state |= STEP_OVER;
                }
                Some((next, state)) => {
                    step::end();
                    frame.instruction = next;
                    frame.state = frame.state & !(MASKED | STEP_OVER) | state & MASKED;
                }
            }
            return;
        }
        (SYNCHRONOUS, BREAKPOINT) => {
            let at = frame.instruction;
            let freed = || packs::contains(at).then(|| probe::recover_call(frame.registers[LINK])).flatten();
            match breakpoints::hit(at, frame.state).or_else(|| freed().map(Next::At)) {
                Some(Next::At(next)) => {
                    frame.instruction = next;
                    return;
                }
                Some(Next::Step(aside)) => {
                    step::begin();
                    frame.instruction = aside;
                    frame.state = frame.state & !MASKED | INTERRUPTS_MASKED | STEP_OVER;
                    return;
                }
                None => {}
            }
        }
        _ => {}
    }
    let address = user::fault_address();
    panic!(
        "an exception of kind {kind}, class {class:#x} ({rest:#x}), in the kernel, at address {address:#x}: {frame:#x?}"
    );
}

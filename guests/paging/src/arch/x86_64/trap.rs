//! Traps out of the kernel itself: calls of other CPUs, traps of sites that are being patched, and probes.

use super::{interrupts, patch, probe};

/// What `trap.s` saves.
#[derive(Debug)]
#[repr(C)]
struct Frame {
    registers: [u64; 15],
    vector: u64,
    error: u64,
    instruction: u64,
    code: u64,
    flags: u64,
    stack: u64,
    stack_segment: u64,
}

const BREAKPOINT: u64 = 3;
pub(super) const PAGE_FAULT: u64 = 14;

#[unsafe(no_mangle)]
extern "C" fn kernel_trap(frame: &mut Frame) {
    match frame.vector {
        BREAKPOINT => {
            // The CPU has gone past the trap.
            if let Some(next) = patch::resume(frame.instruction - 1, frame.flags) {
                frame.instruction = next;
                return;
            }
        }
        PAGE_FAULT => {
            if let Some(next) = probe::recover(frame.instruction, super::user::fault_address()) {
                frame.instruction = next;
                return;
            }
        }
        vector => {
            if let Some(call) = interrupts::take(vector) {
                crate::cpu::take_call(call);
                return;
            }
        }
    }
    panic!("a trap in the kernel, at address {:#x}: {frame:#x?}", super::user::fault_address());
}

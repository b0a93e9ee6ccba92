//! Traps in the kernel itself: calls of other CPUs, single steps, sites that are being patched, probes, and programs.

use super::{interrupts, patch};
use crate::breakpoints::{self, Next};
use crate::{fetches, packs, probe};

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

const DEBUG: u64 = 1;
const BREAKPOINT: u64 = 3;
const GENERAL_PROTECTION: u64 = 13;
pub(super) const PAGE_FAULT: u64 = 14;

/// RFLAGS: each instruction raises [`DEBUG`] behind it; interrupts are on (SDM volume 3, 2.3).
const TRAP: u64 = 1 << 8;
const INTERRUPTS: u64 = 1 << 9;

/// Returns the return address of the function whose first instruction has trapped.
fn return_address(frame: &Frame) -> u64 {
    // SAFETY: the trapped kernel's stack: this CPU's, and mapped.
    unsafe { (frame.stack as *const u64).read() }
}

#[unsafe(no_mangle)]
extern "C" fn kernel_trap(frame: &mut Frame) {
    match frame.vector {
        // Only single steps use it; the return sets the flag again.
        DEBUG => match breakpoints::stepped(frame.instruction) {
            None => return fetches::step(frame.instruction),
            Some((next, flags)) => {
                frame.instruction = next;
                frame.flags = frame.flags & !(TRAP | INTERRUPTS) | flags & (TRAP | INTERRUPTS);
                return;
            }
        },
        BREAKPOINT => {
            // The saved address is the one behind the trap.
            let at = frame.instruction - 1;
            let freed = || packs::contains(at).then(|| probe::recover_call(return_address(frame))).flatten();
            let probed = || breakpoints::hit(at, frame.flags);
            match patch::resume(at, frame.flags).map(Next::At).or_else(probed).or_else(|| freed().map(Next::At)) {
                Some(Next::At(next)) => {
                    frame.instruction = next;
                    return;
                }
                Some(Next::Step(aside)) => {
                    frame.instruction = aside;
                    frame.flags = frame.flags & !INTERRUPTS | TRAP;
                    return;
                }
                None => {}
            }
        }
        // An address that is not canonical is no page fault: SDM volume 1, 3.3.7.1.
        PAGE_FAULT | GENERAL_PROTECTION => {
            let probe = || probe::recover(frame.instruction, super::user::fault_address());
            if let Some(next) = packs::resume(frame.instruction).or_else(probe) {
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

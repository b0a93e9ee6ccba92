//! User mode.

use core::arch::asm;

use palimpsest_paging::{Access, VirtAddr};

use super::{entry, interrupts, trap};
use crate::process::{Found, Trap};

/// A thread's registers while it is not running. `trap.s` knows the offsets.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub(crate) struct Context {
    registers: [u64; 31],
    stack: u64,
    instruction: u64,
    state: u64,
    kind: u64,
    unused: u64,
}

/// In the syndrome of a data abort: a store (WnR).
const STORE: u64 = 1 << 6;

/// In the syndrome of an abort: the kind of fault, without the level; and its value for a walk that finds nothing.
const KIND: u64 = 0b11_1100;
const TRANSLATION: u64 = 0b1 << 2;

unsafe extern "C" {
    fn run_user(context: *mut Context, area: *mut u64);
}

impl Context {
    /// Creates a thread that begins at `entry`, as if that were called as a function with `argument`.
    pub(crate) fn new(entry: VirtAddr, argument: u64, stack_end: VirtAddr) -> Self {
        let mut registers = [0; 31];
        registers[0] = argument;
        // State 0: EL0, interrupts on.
        Self { registers, stack: stack_end.0, instruction: entry.0, state: 0, kind: 0, unused: 0 }
    }

    /// Sets the result of the system call that the thread has made.
    pub(crate) fn set_result(&mut self, result: u64) {
        self.registers[0] = result;
    }

    /// Makes the thread continue at `instruction`.
    pub(crate) fn divert(&mut self, instruction: VirtAddr) {
        self.instruction = instruction.0;
    }

    /// Runs the thread in user mode until the next trap. The process's tables are loaded.
    pub(crate) fn run(&mut self) -> Trap {
        // SAFETY: the context is of user mode; traps write to it alone, and return here.
        unsafe { run_user(self, entry::fields(super::cpu::number())) };
        self.trap()
    }

    fn trap(&self) -> Trap {
        let (class, rest) = trap::syndrome();
        let found = if rest & KIND == TRANSLATION { Found::Nothing } else { Found::Page };
        let fault = |access| Trap::Fault { address: VirtAddr(fault_address()), access, found };
        match (self.kind, class) {
            (trap::INTERRUPT, _) => match interrupts::take() {
                Some(call) => Trap::Interrupt(call),
                None => Trap::Other { code: u64::MAX, instruction: VirtAddr(self.instruction) },
            },
            (trap::SYNCHRONOUS, trap::CALL) => {
                let [a, b, c] = [0, 1, 2].map(|register| self.registers[register]);
                Trap::Call { number: self.registers[8], arguments: [a, b, c] }
            }
            (trap::SYNCHRONOUS, trap::FETCH_FROM_USER) => fault(Access::USER_EXECUTE),
            (trap::SYNCHRONOUS, trap::ACCESS_FROM_USER) if rest & STORE != 0 => fault(Access::USER_WRITE),
            (trap::SYNCHRONOUS, trap::ACCESS_FROM_USER) => fault(Access::USER_READ),
            _ => Trap::Other { code: class, instruction: VirtAddr(self.instruction) },
        }
    }
}

pub(super) fn fault_address() -> u64 {
    let address;
    // SAFETY: reads a register.
    unsafe { asm!("mrs {}, far_el1", out(reg) address, options(nostack, nomem, preserves_flags)) };
    address
}

/// Makes a system call; for user programs.
#[inline(always)]
pub(crate) fn call(number: u64, [a, b, c]: [u64; 3]) -> u64 {
    let result;
    // SAFETY: runs in user mode, where it can harm nothing of the kernel.
    unsafe { asm!("svc #0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, options(nostack)) };
    result
}

/// Loads a value; the compiler neither moves the load nor leaves it out.
#[inline(always)]
pub(crate) fn load(address: u64) -> u64 {
    let value;
    // SAFETY: in user mode.
    unsafe { asm!("ldr {}, [{}]", "dmb ishld", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// Stores a value, after all earlier accesses; the compiler neither moves the store nor leaves it out.
#[inline(always)]
pub(crate) fn store(address: u64, value: u64) {
    // SAFETY: in user mode.
    unsafe { asm!("dmb ish", "str {}, [{}]", in(reg) value, in(reg) address, options(nostack, preserves_flags)) };
}

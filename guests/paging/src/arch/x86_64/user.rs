//! User mode.

use core::arch::asm;

use palimpsest_paging::{Access, VirtAddr};

use super::{descriptors, interrupts, trap};
use crate::process::{Found, Trap};

/// A thread's registers while it is not running. `trap.s` knows the offsets.
#[derive(Clone, Debug)]
#[repr(C, align(16))]
pub(crate) struct Context {
    unused: u64,
    kernel_stack: u64,
    /// r15, r14, r13, r12, r11, r10, r9, r8, rbp, rdi, rsi, rdx, rcx, rbx, rax.
    registers: [u64; 15],
    vector: u64,
    error: u64,
    instruction: u64,
    code: u64,
    flags: u64,
    stack: u64,
    stack_segment: u64,
}

const RDI: usize = 9;
const RSI: usize = 10;
const RDX: usize = 11;
const RAX: usize = 14;

/// Interrupts are on; bit 1 is always set.
const FLAGS: u64 = 0x202;

unsafe extern "C" {
    fn run_user(context: *mut Context);
}

impl Context {
    /// Creates a thread that begins at `entry`, as if that were called as a function with `argument`.
    pub(crate) fn new(entry: VirtAddr, argument: u64, stack_end: VirtAddr) -> Self {
        let mut registers = [0; 15];
        registers[RDI] = argument;
        Self {
            unused: 0,
            kernel_stack: 0,
            registers,
            vector: 0,
            error: 0,
            instruction: entry.0,
            code: u64::from(descriptors::USER_CODE),
            flags: FLAGS,
            stack: stack_end.0 - 8,
            stack_segment: u64::from(descriptors::USER_DATA),
        }
    }

    /// Sets the result of the system call that the thread has made.
    pub(crate) fn set_result(&mut self, result: u64) {
        self.registers[RAX] = result;
    }

    /// Makes the thread continue at `instruction`.
    pub(crate) fn divert(&mut self, instruction: VirtAddr) {
        self.instruction = instruction.0;
    }

    /// Runs the thread in user mode until the next trap. The process's tables are loaded.
    pub(crate) fn run(&mut self) -> Trap {
        // SAFETY: the context is of user mode; traps write to it alone, and return here.
        unsafe { run_user(self) };
        self.trap()
    }

    fn trap(&self) -> Trap {
        match self.vector {
            trap::PAGE_FAULT => {
                // SDM volume 3, 5.7: bit 1 a store, bit 4 an instruction fetch.
                let access = match self.error & 0b1_0010 {
                    0 => Access::USER_READ,
                    2 => Access::USER_WRITE,
                    _ => Access::USER_EXECUTE,
                };
                // Bit 0: the walk ended at a page.
                let found = if self.error & 1 == 0 { Found::Nothing } else { Found::Page };
                Trap::Fault { address: VirtAddr(fault_address()), access, found }
            }
            vector if vector == descriptors::SYSTEM_CALL as u64 => {
                let [number, a, b, c] = [RAX, RDI, RSI, RDX].map(|register| self.registers[register]);
                Trap::Call { number, arguments: [a, b, c] }
            }
            vector => match interrupts::take(vector) {
                Some(call) => Trap::Interrupt(call),
                None => Trap::Other { code: vector, instruction: VirtAddr(self.instruction) },
            },
        }
    }
}

pub(super) fn fault_address() -> u64 {
    let address: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, cr2", out(reg) address, options(nostack, nomem, preserves_flags)) };
    address
}

/// Makes a system call; for user programs.
#[inline(always)]
pub(crate) fn call(number: u64, [a, b, c]: [u64; 3]) -> u64 {
    let result;
    // SAFETY: runs in user mode, where it can harm nothing of the kernel.
    unsafe {
        asm!("int 0x80", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, options(nostack))
    };
    result
}

/// Loads a value; the compiler neither moves the load nor leaves it out.
#[inline(always)]
pub(crate) fn load(address: u64) -> u64 {
    let value;
    // SAFETY: in user mode.
    unsafe { asm!("mov {}, [{}]", out(reg) value, in(reg) address, options(nostack, preserves_flags)) };
    value
}

/// Stores a value; the compiler neither moves the store nor leaves it out.
#[inline(always)]
pub(crate) fn store(address: u64, value: u64) {
    // SAFETY: in user mode.
    unsafe { asm!("mov [{}], {}", in(reg) address, in(reg) value, options(nostack, preserves_flags)) };
}

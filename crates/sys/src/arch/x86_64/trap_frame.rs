//! A trapped thread's registers, as its signal handler sees them.

use std::ptr;

use super::instructions::TRAP;

/// `si_code` of the SIGTRAP that the kernel sends for [`TRAP`](super::instructions::TRAP): `exc_int3` in
/// `arch/x86/kernel/traps.c` passes none, so that `force_sig` sets `SI_KERNEL`.
pub const TRAP_CODE: i32 = 0x80;

/// The saved registers of an interrupted thread.
#[derive(Debug)]
#[repr(transparent)]
pub struct TrapFrame(libc::ucontext_t);

impl TrapFrame {
    /// Returns the address of the executed trap: `int3` leaves the program counter behind itself.
    pub fn trap_address(&self) -> usize {
        (self.0.uc_mcontext.gregs[libc::REG_RIP as usize] as usize).wrapping_sub(1)
    }

    /// Lets the thread execute the trap at [`trap_address`](Self::trap_address) once more when the handler returns.
    /// Returns false if there is none of one byte: `int 3` of two (`CD 03`) traps in the same way.
    pub(crate) fn trap_again(&mut self) -> bool {
        let trap = ptr::with_exposed_provenance::<u8>(self.trap_address());
        // Volatile: code is changed behind the compiler's back. SAFETY: the CPU has executed it; memory that can only
        // be executed ends the process here, which the caller is about.
        let byte = unsafe { trap.read_volatile() };
        let is_trap = TRAP == [byte];
        if is_trap {
            self.resume_at(trap.addr());
        }
        is_trap
    }

    /// Returns the address of the instruction that has faulted.
    pub fn program_counter(&self) -> usize {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    }

    /// Sets where the thread continues when the handler returns.
    pub fn resume_at(&mut self, address: usize) {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64;
    }

    /// Returns the flags register.
    pub fn flags(&self) -> u64 {
        self.0.uc_mcontext.gregs[libc::REG_EFL as usize] as u64
    }
}

//! A trapped thread's registers, as its signal handler sees them.

/// `si_code` of the SIGTRAP that the kernel sends for [`TRAP`](super::instructions::TRAP): `TRAP_BRKPT`, by
/// `brk_handler` in `arch/arm64/kernel/debug-monitors.c`.
pub const TRAP_CODE: i32 = 1;

/// The saved registers of an interrupted thread.
#[derive(Debug)]
#[repr(transparent)]
pub struct TrapFrame(libc::ucontext_t);

impl TrapFrame {
    /// Returns the address of the executed trap: `brk` leaves the program counter at itself.
    pub fn trap_address(&self) -> usize {
        self.0.uc_mcontext.pc as usize
    }

    /// Lets the thread execute the trap at [`trap_address`](Self::trap_address) once more when the handler returns.
    /// Returns whether it will.
    pub(crate) fn trap_again(&mut self) -> bool {
        self.resume_at(self.trap_address());
        true
    }

    /// Returns the address of the instruction that has faulted.
    pub fn program_counter(&self) -> usize {
        self.0.uc_mcontext.pc as usize
    }

    /// Sets where the thread continues when the handler returns.
    pub fn resume_at(&mut self, address: usize) {
        self.0.uc_mcontext.pc = address as u64;
    }

    /// Returns the condition flags (`PSTATE`).
    pub fn flags(&self) -> u64 {
        self.0.uc_mcontext.pstate
    }
}

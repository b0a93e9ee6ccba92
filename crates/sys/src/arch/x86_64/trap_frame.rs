//! A trapped thread's registers, as its signal handler sees them.

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

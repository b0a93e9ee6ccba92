//! What a signal handler sees of the thread that ran into a trap.

/// `si_code` of the SIGTRAP that the kernel sends for [`TRAP`](super::instructions::TRAP): `exc_int3` in
/// `arch/x86/kernel/traps.c` gives it none of its own, so that `force_sig` says `SI_KERNEL`.
pub const TRAP_CODE: i32 = 0x80;

/// The saved registers of an interrupted thread.
#[derive(Debug)]
#[repr(transparent)]
pub struct TrapFrame(libc::ucontext_t);

impl TrapFrame {
    /// The address of the trap that was executed: `int3` leaves the program counter behind itself.
    pub fn trap_address(&self) -> usize {
        (self.0.uc_mcontext.gregs[libc::REG_RIP as usize] as usize).wrapping_sub(1)
    }

    /// The instruction that the thread was at, and that has faulted.
    pub fn program_counter(&self) -> usize {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
    }

    /// Where the thread goes on when the handler returns.
    pub fn resume_at(&mut self, address: usize) {
        self.0.uc_mcontext.gregs[libc::REG_RIP as usize] = address as i64;
    }

    /// The flags register.
    pub fn flags(&self) -> u64 {
        self.0.uc_mcontext.gregs[libc::REG_EFL as usize] as u64
    }
}

//! What helpers ask of whoever runs the program that calls them.
#![expect(unsafe_code, reason = "compiled code goes on with the answers that a runner passes on")]

use crate::insn::Callee;
use crate::interp::{Answer, HelperError};
use crate::map::Programs;

/// Whoever runs compiled programs: the threads of a process, or the CPUs of a kernel. With the feature `std`, threads
/// run [`HostedProgram`](super::HostedProgram)s; callers with packs of their own implement this, and compile programs
/// with [`Linked::compile`](super::Linked::compile).
///
/// What is noted here belongs to the run in progress on the calling thread or CPU.
///
/// # Safety
///
/// Where a helper's signature says so, compiled code takes its answer for an address, or for a function that it may
/// call. Therefore:
///
/// 1. [`guard`](Self::guard) calls `call` at most once, and returns what that very call returned, or an error: never an
///    answer of its own making, or one kept from another call.
pub unsafe trait Runner: 'static {
    /// Makes `call`. A panic must not unwind through compiled code, which no unwinder knows: where panics unwind,
    /// catches it and returns [`HelperError::Panicked`].
    ///
    /// # Errors
    ///
    /// Those of `call`.
    fn guard(call: impl FnOnce() -> Result<Answer, HelperError>) -> Result<Answer, HelperError>;

    /// Copies what lies at an unproven address, as far as there is something readable. Returns how many bytes.
    fn peek(address: u64, bytes: &mut [u8]) -> usize;

    /// Notes that a helper failed, which ends the run: its gauge is negative. The first failure of a run counts.
    fn failed(callee: Callee, error: HelperError);

    /// Notes that the run has reserved a record of a ring buffer, or taken a lock. If the run is ended,
    /// [`Host::discard`](super::Host::discard) gets those that it has not given back, on the same thread or CPU.
    ///
    /// Helpers of ring buffers call this, and [`let_go`](Self::let_go), outside of [`guard`](Self::guard), and helpers
    /// of maps [`cpu`](Self::cpu): a panic in one of them ends the process.
    ///
    /// # Errors
    ///
    /// [`HelperError::Held`] if there is no room for one more: a record is then not reserved, as if its ring were full,
    /// and for a lock or an object the program is ended.
    fn hold(record: u64) -> Result<(), HelperError>;

    /// Notes that the run has given a record or a lock back.
    fn let_go(record: u64);

    /// Returns whose values of per-CPU maps the run works on.
    fn cpu() -> u32;

    /// Notes that the program in `index` of `programs` is to run next. Returns whether it will: the program that makes
    /// the call then returns at once, and whoever has entered it enters the next one with the same context and what is
    /// left of the fuel. What is called must accept this context ([`Verified`](crate::verify::Verified)), and somebody
    /// must count: Linux takes 33 such calls in a run. Runners that know no tail calls let the program go on.
    ///
    /// Without `std`, [`Programs::foreign`] spins while the place is looked up or changed elsewhere: a CPU that looks
    /// it up must not be interrupted by something that looks up the same place on that CPU.
    fn tail_call(programs: &Programs, index: u32) -> bool {
        let _ = (programs, index);
        false
    }
}

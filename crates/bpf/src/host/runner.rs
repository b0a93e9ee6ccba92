//! What helpers ask about whoever runs the program that calls them.
#![expect(unsafe_code, reason = "compiled code goes on with the answers that a runner passes on")]

use crate::insn::Callee;
use crate::interp::{Answer, HelperError};

/// Whoever runs compiled programs: the threads of a process, or the CPUs of a kernel. With the feature `std`
/// [`HostedProgram`](super::HostedProgram)s are run by threads; who has packs of his own implements this, and has
/// programs compiled by [`Linked::compile`](super::Linked::compile).
///
/// What is noted here belongs to the run in progress on the thread, or CPU, that calls.
///
/// # Safety
///
/// Compiled code takes the answer of a helper for an address where its signature says so, and for a function that it
/// may call. Therefore:
///
/// 1. [`guard`](Self::guard) calls `call` at most once, and returns what that very call has returned, or an error:
///    never an answer that it has made, or kept from another call.
pub unsafe trait Runner: 'static {
    /// Makes `call`. A panic must not unwind through compiled code, which no unwinder knows: where panics unwind it is
    /// caught, and [`HelperError::Panicked`] is the answer.
    ///
    /// # Errors
    ///
    /// Those of `call`.
    fn guard(call: impl FnOnce() -> Result<Answer, HelperError>) -> Result<Answer, HelperError>;

    /// Copies what lies at an address that nobody has proven, as far as there is something that may be read; how many
    /// bytes.
    fn peek(address: u64, bytes: &mut [u8]) -> usize;

    /// Notes that a helper has failed, which ends the run: its gauge is negative. The first failure of a run counts.
    fn failed(callee: Callee, error: HelperError);

    /// Notes that the run has reserved a record of a ring buffer. If it is ended,
    /// [`Host::discard`](super::Host::discard) gets those that it has not given back.
    fn hold(record: u64);

    /// Notes that the run has given a record back.
    fn let_go(record: u64);

    /// Whose values of per-CPU maps the run works on.
    fn cpu() -> u32;
}

//! What helpers ask about the CPU that runs a program.

use alloc::sync::Arc;
use alloc::vec::Vec;

use palimpsest_bpf::host::Runner;
use palimpsest_bpf::insn::Callee;
use palimpsest_bpf::interp::{Answer, HelperError};
use palimpsest_bpf::map::Programs;
use palimpsest_paging::{AccessKind, VirtAddr};

use super::Program;
use crate::cpu::CPUS;
use crate::sync::SpinLock;
use crate::{arch, probe};

/// This kernel's CPUs. Notes are per CPU: a program runs to its end before another begins there.
pub(super) struct Cpus;

/// What tail calls of the run know.
struct Tail {
    /// Words of the context.
    words: usize,
    calls: u32,
    next: Option<Arc<Program>>,
}

/// Tail calls of one run at most, as in Linux (`MAX_TAIL_CALL_CNT`, `include/linux/bpf.h`).
const MOST_TAIL_CALLS: u32 = 33;

static TAIL: [SpinLock<Tail>; CPUS] = [const { SpinLock::new(Tail { words: 0, calls: 0, next: None }) }; CPUS];

/// Begins a run with a context of so many words.
pub(super) fn begin(words: usize) {
    *TAIL[arch::cpu::number()].lock() = Tail { words, calls: 0, next: None };
}

/// Takes the program that the one which has just returned has called.
pub(super) fn take_next() -> Option<Arc<Program>> {
    TAIL[arch::cpu::number()].lock().next.take()
}

static FAILED: [SpinLock<Option<HelperError>>; CPUS] = [const { SpinLock::new(None) }; CPUS];
static HELD: [SpinLock<Vec<u64>>; CPUS] = [const { SpinLock::new(Vec::new()) }; CPUS];

/// Takes the first failure of the run that has just ended on this CPU.
pub(super) fn take_failure() -> Option<HelperError> {
    FAILED[arch::cpu::number()].lock().take()
}

/// Takes the records that the run has not given back.
pub(super) fn take_held() -> Vec<u64> {
    core::mem::take(&mut *HELD[arch::cpu::number()].lock())
}

// SAFETY: 1. `guard` is the call.
unsafe impl Runner for Cpus {
    /// Runs `call` without a guard: a panic ends this kernel.
    fn guard(call: impl FnOnce() -> Result<Answer, HelperError>) -> Result<Answer, HelperError> {
        call()
    }

    fn peek(address: u64, bytes: &mut [u8]) -> usize {
        let mut count = 0;
        for byte in bytes {
            let at = address.wrapping_add(count as u64);
            // SAFETY: 1. only a load. It is of a whole word, which lies in one page.
            if !unsafe { probe::passes(VirtAddr(at & !7), AccessKind::Read) } {
                break;
            }
            // SAFETY: just seen to be mapped, and nothing is unmapped meanwhile. Volatile: its owner may write it.
            *byte = unsafe { (at as *const u8).read_volatile() };
            count += 1;
        }
        count
    }

    fn failed(_callee: Callee, error: HelperError) {
        FAILED[arch::cpu::number()].lock().get_or_insert(error);
    }

    fn hold(record: u64) -> Result<(), HelperError> {
        HELD[arch::cpu::number()].lock().push(record);
        Ok(())
    }

    fn let_go(record: u64) {
        let mut held = HELD[arch::cpu::number()].lock();
        if let Some(place) = held.iter().rposition(|known| *known == record) {
            held.remove(place);
        }
    }

    fn tail_call(programs: &Programs, index: u32) -> bool {
        let next = programs.foreign(index).and_then(|program| program.downcast::<Program>().ok());
        let mut tail = TAIL[arch::cpu::number()].lock();
        let Some(next) = next.filter(|next| next.words() <= tail.words && tail.calls < MOST_TAIL_CALLS) else {
            return false;
        };
        tail.calls += 1;
        tail.next = Some(next);
        true
    }

    fn cpu() -> u32 {
        arch::cpu::number() as u32
    }
}

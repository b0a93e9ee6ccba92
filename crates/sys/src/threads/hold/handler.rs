//! The handler that holds a thread.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::Table;
use crate::threads::futex::sleep;
use crate::threads::own::control_block;
use crate::threads::signal::{Call, Hook, Waiting};

/// The table, null before the first use.
pub(super) static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());

/// The handler and its signal. It stays installed: a call may come late.
pub(super) static HOOK: Hook = Hook::new(on_signal, Waiting::All);

/// Answers, and waits until the generation is over. Async-signal-safe: atomics and a bare system call; `errno` stays.
extern "C" fn on_signal(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // Acquire, partner: the Release store in `prepare`.
    let table = TABLE.load(Ordering::Acquire);
    // SAFETY: null, or a table that is never freed.
    let Some(table) = (unsafe { table.as_ref() }) else { return };
    // SAFETY: 1. the kernel passes a valid `siginfo_t` to an SA_SIGINFO handler.
    let Some(Call { generation, seat }) = (unsafe { Call::received(info) }) else { return };
    let Some(seat) = table.seats.get(seat as usize) else { return };
    // Acquire, partner: the Release stores in `stop_others` and `Stopped::drop`.
    if generation == 0 || table.holding.load(Ordering::Acquire) != generation {
        return;
    }
    let here = MaybeUninit::<u8>::uninit();
    seat.stack.store(here.as_ptr().addr(), Ordering::Relaxed);
    seat.control_block.store(control_block(), Ordering::Relaxed);
    // Release, partner: the Acquire load in `await_rest`.
    seat.answer.store(generation, Ordering::Release);
    #[cfg(test)]
    super::tests::linger();
    // Acquire, partner: the Release store in `Stopped::drop`.
    while table.holding.load(Ordering::Acquire) == generation {
        sleep(&table.holding, generation, ptr::null());
    }
}

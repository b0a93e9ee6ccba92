//! Only one thread at a time holds the others: two would hold each other, and the second would release those of the
//! first.
//!
//! The word is zero, or names the thread whose turn it is. The name includes the process, so that a forked child
//! recognises that it is none of its own threads.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{StopError, nap};
use crate::caller::Caller;

/// Changed by threads that take a turn or end theirs.
static TURN: AtomicU64 = AtomicU64::new(0);

/// The calling thread's turn; ends when dropped.
#[derive(Debug)]
pub(super) struct Turn;

impl Turn {
    /// Waits for a turn. Does not use the heap. Another thread may hold this one while it waits.
    pub(super) fn take() -> Result<Self, StopError> {
        let caller = Caller::current();
        loop {
            // Relaxed: only compared; the exchange orders.
            let present = TURN.load(Ordering::Relaxed);
            match NonZeroU64::new(present).map(Caller::from_word) {
                Some(holder) if holder == caller => return Err(StopError::Busy),
                Some(holder) if holder.is_same_process(caller) => {
                    nap();
                    continue;
                }
                _ => {}
            }
            // Acquire, partner: the Release in `drop`. Forbids reading the seats as they were before the last turn
            // ended.
            let taken = TURN.compare_exchange(present, caller.to_word().get(), Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                return Ok(Self);
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Release, partner: the Acquire in `take`.
        TURN.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_cannot_wait_for_itself() {
        let turn = Turn::take().expect("nobody else's for ever");
        assert!(matches!(Turn::take(), Err(StopError::Busy)));
        drop(turn);
        drop(Turn::take().expect("it is over"));
    }
}

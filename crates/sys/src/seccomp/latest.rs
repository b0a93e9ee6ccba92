//! The latest answers about filters: few, and seldom needed. Bounded, for programs that start threads without end.

use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::threads::task::{TaskStat, own_stat};

/// What an answer depends on: filters can only be added, so their number names the set that a thread has. A thread's
/// number may later belong to another thread, which has another start time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key<Q> {
    /// Read with the start time, since a filter may end whoever asks for it by `gettid`.
    pub(super) thread: i32,
    pub(super) started: u64,
    pub(super) filters: u64,
    pub(super) question: Q,
}

impl<Q> Key<Q> {
    pub(super) fn of_this_thread(filters: u64, question: Q) -> Option<Self> {
        let TaskStat { number: thread, started, .. } = own_stat()?;
        Some(Self { thread, started, filters, question })
    }
}

const MOST: usize = 64;

struct Ring<Q, A> {
    latest: [Option<(Key<Q>, A)>; MOST],
    /// The index of the next one.
    next: usize,
}

/// The lock is only ever tried: in a forked child, a thread that was not forked may hold it for ever.
pub(super) struct Latest<Q, A>(Mutex<Ring<Q, A>>);

impl<Q: Copy + PartialEq, A: Copy> Latest<Q, A> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(Ring { latest: [const { None }; MOST], next: 0 }))
    }

    fn locked(&self) -> Option<MutexGuard<'_, Ring<Q, A>>> {
        match self.0.try_lock() {
            Ok(ring) => Some(ring),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn of(&self, key: Key<Q>) -> Option<A> {
        self.locked()?.latest.iter().flatten().find(|(known, _)| *known == key).map(|(_, answer)| *answer)
    }

    pub(super) fn remember(&self, key: Key<Q>, answer: A) {
        let Some(mut ring) = self.locked() else { return };
        let place = ring.next % MOST;
        ring.latest[place] = Some((key, answer));
        ring.next = place + 1;
    }
}

//! Queues and stacks.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::cells::Cells;
use super::pause::pause;
use super::{Definition, MapError, OpError, WhenFull};

/// Which value leaves first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Order {
    OldestFirst,
    LatestFirst,
}

/// A queue or a stack: a ring of values under a lock.
#[derive(Debug)]
pub(super) struct Queue {
    values: Cells,
    order: Order,
    /// Set by whoever may use the values and the following fields, so that relaxed is enough for these.
    locked: AtomicBool,
    /// Where the oldest value is.
    oldest: AtomicUsize,
    /// How many there are.
    len: AtomicUsize,
}

struct Held<'a>(&'a AtomicBool);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Release: with the acquire of `lock`, which then sees all that was done.
        self.0.store(false, Ordering::Release);
    }
}

impl Queue {
    /// Bytes that it takes.
    pub(super) fn bytes(definition: &Definition) -> u64 {
        Cells::bytes(definition.max_entries.into(), definition.value_len)
    }

    pub(super) fn new(definition: &Definition, order: Order) -> Result<Self, MapError> {
        Ok(Self {
            values: Cells::new(definition, definition.max_entries.into(), definition.value_len)?,
            order,
            locked: AtomicBool::new(false),
            oldest: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        })
    }

    fn lock(&self) -> Held<'_> {
        let mut round = 0;
        // Acquire: with the release of `Held::drop`.
        while self.locked.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            pause(round);
            round += 1;
        }
        Held(&self.locked)
    }

    pub(super) fn push(&self, value: &[u8], when_full: WhenFull) -> Result<(), OpError> {
        let _held = self.lock();
        let capacity = self.values.count();
        let (mut oldest, mut len) = (self.oldest.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        if len == capacity {
            if when_full == WhenFull::Refuse {
                return Err(OpError::Full);
            }
            (oldest, len) = ((oldest + 1) % capacity, len - 1);
            self.oldest.store(oldest, Ordering::Relaxed);
        }
        self.values.write((oldest + len) % capacity, value);
        self.len.store(len + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Copies the next value. Returns the place of the oldest one, and how many are left without it.
    fn next(&self, value: &mut [u8]) -> Result<(usize, usize), OpError> {
        let capacity = self.values.count();
        let (oldest, len) = (self.oldest.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        let left = len.checked_sub(1).ok_or(OpError::NotFound)?;
        let (at, oldest) = match self.order {
            Order::OldestFirst => (oldest, (oldest + 1) % capacity),
            Order::LatestFirst => ((oldest + left) % capacity, oldest),
        };
        self.values.read(at, value);
        Ok((oldest, left))
    }

    pub(super) fn pop(&self, value: &mut [u8]) -> Result<(), OpError> {
        let _held = self.lock();
        let (oldest, left) = self.next(value)?;
        self.oldest.store(oldest, Ordering::Relaxed);
        self.len.store(left, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn peek(&self, value: &mut [u8]) -> Result<(), OpError> {
        let _held = self.lock();
        self.next(value).map(|_| ())
    }
}

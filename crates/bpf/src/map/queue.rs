//! Queues and stacks.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::cells::Cells;
use super::lock::{Holder, Owner};
use super::pause::Wait;
use super::value::{Out, Value};
use super::{Definition, MapError, OpError, WhenFull, this_cpu};
use crate::holding::{Holding, Level};

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
    /// The number of whoever may use the values and the following fields, so that relaxed is enough for these; or 0.
    owner: AtomicU32,
    /// Where the oldest value is.
    oldest: AtomicUsize,
    /// How many there are.
    len: AtomicUsize,
}

struct Held<'a> {
    owner: &'a AtomicU32,
    /// Dropped behind the lock.
    _holding: Holding,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Release: with the acquire of `lock`, which then sees all that was done.
        self.owner.store(0, Ordering::Release);
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
            owner: AtomicU32::new(0),
            oldest: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        })
    }

    /// Locks the queue; waits while another has it, as far as `holding` allows. If that is a thread that a child of
    /// `fork` does not have, a value may be lost or be there twice.
    fn lock(&self) -> Result<Held<'_>, OpError> {
        let (mine, holding) = (Owner::here(this_cpu).number(), Holding::begin(Level::Part));
        let mut wait = Wait::begin();
        loop {
            let owner = self.owner.load(Ordering::Relaxed);
            match (owner != 0).then(|| Holder::of(owner)) {
                Some(Holder::Interrupted) => return Err(OpError::Deadlock),
                Some(Holder::Runs) if wait.again(holding.may_wait()) => continue,
                Some(Holder::Runs) => return Err(OpError::Deadlock),
                None | Some(Holder::Gone) => {}
            }
            // Acquire: with the release of `Held::drop`.
            if self.owner.compare_exchange_weak(owner, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Ok(Held { owner: &self.owner, _holding: holding });
            }
        }
    }

    pub(super) fn push(&self, value: Value<'_>, when_full: WhenFull) -> Result<(), OpError> {
        let _held = self.lock()?;
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

    /// Copies the next value to `out`. Returns the place of the oldest one, and how many are left without it.
    fn next(&self, out: &mut Out<'_>) -> Result<(usize, usize), OpError> {
        let capacity = self.values.count();
        let (oldest, len) = (self.oldest.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        let left = len.checked_sub(1).ok_or(OpError::NotFound)?;
        let (at, oldest) = match self.order {
            Order::OldestFirst => (oldest, (oldest + 1) % capacity),
            Order::LatestFirst => ((oldest + left) % capacity, oldest),
        };
        self.values.read_to(at, out);
        Ok((oldest, left))
    }

    pub(super) fn pop(&self, out: &mut Out<'_>) -> Result<(), OpError> {
        let _held = self.lock()?;
        let (oldest, left) = self.next(out)?;
        self.oldest.store(oldest, Ordering::Relaxed);
        self.len.store(left, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn peek(&self, out: &mut Out<'_>) -> Result<(), OpError> {
        let _held = self.lock()?;
        self.next(out).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Kind;
    use crate::map::tests::{beside, in_the_middle};

    #[test]
    fn nobody_waits_for_who_does_not_go_on() {
        let definition = Definition::new("queue", Kind::Queue, 0, 8, 2);
        let queue = Queue::new(&definition, Order::OldestFirst).expect("room");
        let held = queue.lock().expect("it is free");
        // As a signal handler that has interrupted its thread.
        let push = |byte| queue.push(Value::Near(&[byte; 8]), WhenFull::Refuse);
        assert_eq!(push(1), Err(OpError::Deadlock));
        let nothing = &mut |_: usize, _: &[u8]| ();
        assert_eq!((queue.pop(nothing), queue.peek(nothing)), (Err(OpError::Deadlock), Err(OpError::Deadlock)));
        drop(held);
        assert_eq!(push(1), Ok(()));
        beside(|| queue.lock(), || push(2).is_ok() && queue.pop(&mut |_, _| ()).is_ok());
        let hold = |is_held: &dyn Fn()| {
            let _held = queue.lock().expect("it is free");
            is_held();
        };
        // As a signal handler that has interrupted a change of another queue.
        in_the_middle(hold, || {
            let _holding = Holding::begin(Level::Part);
            assert_eq!(push(2), Err(OpError::Deadlock));
        });
        assert_eq!(push(2), Ok(()));
    }
}

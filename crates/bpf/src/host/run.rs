//! What helpers tell the run in progress on their thread.
//!
//! A signal handler may run programs, whatever it has interrupted: also the functions here. So nothing is borrowed:
//! what is here is taken out, changed and put back. A run in a handler takes what is there when it begins, even if that
//! is half of a change, and puts the very same back when it ends. What lies below its own records it leaves alone.

use core::cell::Cell;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, compiler_fence};
use std::sync::Arc;

use super::HostedProgram;
use super::kept::Kept;
use crate::insn::Callee;
use crate::interp::{HelperError, MOST_HELD};

/// The context of a run: what decides whether another program may have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) address: usize,
    pub(super) len: usize,
    pub(super) access: Access,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    Write,
}

/// A run.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) context: Option<Context>,
    /// That of the program that runs now; a tail call changes it.
    pub(super) kept: Option<Arc<Kept>>,
    pub(super) tail_calls: u32,
    pub(super) next: Option<Arc<HostedProgram>>,
    pub(super) failure: Option<(Callee, HelperError)>,
}

/// The run in progress; the default on a thread that runs nothing. Not dropped, since it is the default when the thread
/// ends: so that a handler that is the first to use it need not register what drops it.
struct Present {
    context: Cell<Option<Context>>,
    kept: ManuallyDrop<Cell<Option<Arc<Kept>>>>,
    tail_calls: Cell<u32>,
    next: ManuallyDrop<Cell<Option<Arc<HostedProgram>>>>,
    failure: Cell<Option<(Callee, HelperError)>>,
}

std::thread_local! {
    static PRESENT: Present = const {
        Present {
            context: Cell::new(None),
            kept: ManuallyDrop::new(Cell::new(None)),
            tail_calls: Cell::new(0),
            next: ManuallyDrop::new(Cell::new(None)),
            failure: Cell::new(None),
        }
    };
    static RECORDS: Records = const {
        Records { held: [const { AtomicU64::new(0) }; MOST_HELD], len: AtomicUsize::new(0) }
    };
}

/// Puts `run` in the present one's place, and returns that.
pub(super) fn replace(run: Run) -> Run {
    PRESENT.with(|present| Run {
        context: present.context.replace(run.context),
        kept: present.kept.replace(run.kept),
        tail_calls: present.tail_calls.replace(run.tail_calls),
        next: present.next.replace(run.next),
        failure: present.failure.replace(run.failure),
    })
}

/// Notes why the run was ended. The first reason counts.
pub(super) fn failed(callee: Callee, error: HelperError) {
    PRESENT.with(|present| present.failure.set(present.failure.get().or(Some((callee, error)))));
}

/// Returns what timers keep of the program that this thread runs.
pub(super) fn kept() -> Option<Arc<Kept>> {
    PRESENT.with(|present| {
        let kept = present.kept.take();
        present.kept.set(kept.clone());
        kept
    })
}

/// Sets what timers keep of the program that this thread runs.
pub(super) fn set_kept(kept: Option<Arc<Kept>>) {
    PRESENT.with(|present| drop(present.kept.replace(kept)));
}

/// Returns the context of the run, and how many tail calls it has made.
pub(super) fn calls() -> (Option<Context>, u32) {
    PRESENT.with(|present| (present.context.get(), present.tail_calls.get()))
}

/// Notes a tail call.
pub(super) fn call_next(next: Arc<HostedProgram>) {
    PRESENT.with(|present| {
        present.tail_calls.set(present.tail_calls.get() + 1);
        drop(present.next.replace(Some(next)));
    });
}

/// Takes the program that is to run next.
pub(super) fn take_next() -> Option<Arc<HostedProgram>> {
    PRESENT.with(|present| present.next.take())
}

/// Records, locks and objects that programs of a thread hold, those of outer runs first.
struct Records {
    held: [AtomicU64; MOST_HELD],
    /// How many of them there are.
    len: AtomicUsize,
}

/// Records that were taken out.
#[derive(Debug)]
pub(super) struct Taken {
    records: [u64; MOST_HELD],
    len: usize,
}

impl Deref for Taken {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.records[..self.len]
    }
}

/// How many records there were when a run began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark(usize);

impl Records {
    // Relaxed, here and below: other threads do not see it. A handler sees what was stored before the fence.
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn set_len(&self, len: usize) {
        self.len.store(len, Ordering::Relaxed);
    }

    fn hold(&self, record: u64) -> Result<(), HelperError> {
        let place = self.len();
        let free = self.held.get(place).ok_or(HelperError::Held { most: MOST_HELD })?;
        // First the length, so that a handler uses the places behind this one.
        self.set_len(place + 1);
        compiler_fence(Ordering::SeqCst);
        free.store(record, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a record, usually the latest.
    fn let_go(&self, record: u64) {
        let held = &self.held[..self.len()];
        let Some(place) = held.iter().rposition(|held| held.load(Ordering::Relaxed) == record) else { return };
        for pair in held[place..].windows(2) {
            pair[0].store(pair[1].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        self.set_len(held.len() - 1);
    }

    fn split_off(&self, Mark(begun): Mark) -> Taken {
        let mut records = [0; MOST_HELD];
        let held = &self.held[begun..self.len()];
        for (to, held) in records.iter_mut().zip(held) {
            *to = held.load(Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        self.set_len(begun);
        Taken { records, len: held.len() }
    }
}

/// Notes that the run holds a record.
pub(super) fn hold(record: u64) -> Result<(), HelperError> {
    RECORDS.with(|records| records.hold(record))
}

/// Notes that the run has given a record back.
pub(super) fn let_go(record: u64) {
    RECORDS.with(|records| records.let_go(record));
}

/// Returns how many records outer runs hold.
pub(super) fn mark() -> Mark {
    Mark(RECORDS.with(Records::len))
}

/// Takes all records that were noted since.
pub(super) fn held_since(mark: Mark) -> Taken {
    RECORDS.with(|records| records.split_off(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_in_order() {
        for outer in [0, 1, MOST_HELD - 54] {
            (0..outer as u64).for_each(|record| hold(record).expect("room"));
            let begun = mark();
            (100..150).for_each(|record| hold(record).expect("room"));
            for gone in [149, 100, 120, 131] {
                let_go(gone);
                let_go(gone);
            }
            let inner = mark();
            (200..203).for_each(|record| hold(record).expect("room"));
            let_go(201);
            assert_eq!(*held_since(inner), [200, 202], "{outer}");
            let left = held_since(begun);
            let expected: std::vec::Vec<u64> =
                (100..150).filter(|number| ![149, 100, 120, 131].contains(number)).collect();
            assert_eq!(*left, expected, "{outer}");
            assert_eq!(*held_since(mark()), [0; 0]);
            (0..outer as u64).rev().for_each(let_go);
            assert_eq!(mark().0, 0, "{outer}");
        }
    }

    #[test]
    fn there_is_room_for_so_many_and_no_more() {
        let begun = mark();
        (0..MOST_HELD as u64).for_each(|record| hold(record).expect("room"));
        assert_eq!(hold(7), Err(HelperError::Held { most: MOST_HELD }));
        let_go(3);
        assert_eq!((hold(7), hold(8).is_err()), (Ok(()), true));
        let held = held_since(begun);
        assert_eq!((held.len(), held[MOST_HELD - 1]), (MOST_HELD, 7));
    }
}

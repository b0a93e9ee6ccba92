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
use std::vec::Vec;

use super::HostedProgram;
use super::kept::Kept;
use crate::insn::Callee;
use crate::interp::HelperError;

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
        Records {
            few: [const { AtomicU64::new(0) }; FEW],
            len: AtomicUsize::new(0),
            more: ManuallyDrop::new(Cell::new(Vec::new())),
        }
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

/// Records that are kept without allocating memory.
const FEW: usize = 32;

/// Records, locks and objects that programs of a thread hold, those of outer runs first.
struct Records {
    few: [AtomicU64; FEW],
    /// How many of `few` there are; all of them if there are more.
    len: AtomicUsize,
    /// Empty while somebody changes it. Not dropped: without records it has no memory.
    more: ManuallyDrop<Cell<Vec<u64>>>,
}

/// Records that were taken out: without allocating memory if they are few, since a signal handler may have interrupted
/// the allocator.
#[expect(clippy::large_enum_variant, reason = "a box would need the allocator")]
#[derive(Debug)]
pub(super) enum Taken {
    /// So many, at the beginning.
    Few([u64; FEW], usize),
    Many(Vec<u64>),
}

impl Deref for Taken {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        match self {
            Self::Few(records, len) => &records[..*len],
            Self::Many(records) => records,
        }
    }
}

/// How many records there were when a run began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    few: usize,
    more: usize,
}

impl Records {
    /// Does something with what does not fit.
    fn with_more<T>(&self, change: impl FnOnce(&mut Vec<u64>) -> T) -> T {
        let mut more = self.more.take();
        let done = change(&mut more);
        if more.is_empty() {
            more = Vec::new();
        }
        self.more.set(more);
        done
    }

    // Relaxed, here and below: other threads do not see it. A handler sees what was stored before the fence.
    fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    fn set_len(&self, len: usize) {
        self.len.store(len, Ordering::Relaxed);
    }

    fn hold(&self, record: u64) {
        let place = self.len();
        let Some(free) = self.few.get(place) else { return self.with_more(|more| more.push(record)) };
        // First the length, so that a handler uses the places behind this one.
        self.set_len(place + 1);
        compiler_fence(Ordering::SeqCst);
        free.store(record, Ordering::Relaxed);
    }

    /// Removes a record, usually the latest.
    fn let_go(&self, record: u64) {
        let len = self.len();
        let is_full = len == FEW;
        let found = |more: &mut Vec<u64>| {
            let place = more.iter().rposition(|held| *held == record);
            place.map(|place| more.remove(place)).is_some()
        };
        if is_full && self.with_more(found) {
            return;
        }
        let few = &self.few[..len];
        let Some(place) = few.iter().rposition(|held| held.load(Ordering::Relaxed) == record) else { return };
        for pair in few[place..].windows(2) {
            pair[0].store(pair[1].load(Ordering::Relaxed), Ordering::Relaxed);
        }
        match is_full.then(|| self.with_more(Vec::pop)).flatten() {
            // All of `few` stay in use while there are more.
            Some(last) => few[len - 1].store(last, Ordering::Relaxed),
            None => {
                compiler_fence(Ordering::SeqCst);
                self.set_len(len - 1);
            }
        }
    }

    fn mark(&self) -> Mark {
        let few = self.len();
        Mark { few, more: if few == FEW { self.with_more(|more| more.len()) } else { 0 } }
    }

    fn split_off(&self, mark: Mark) -> Taken {
        let len = self.len();
        let mut few = [0; FEW];
        for (to, held) in few.iter_mut().zip(&self.few[mark.few..len]) {
            *to = held.load(Ordering::Relaxed);
        }
        let few_len = len - mark.few;
        let take = |more: &mut Vec<u64>| more.split_off(mark.more.min(more.len()));
        let more = if len == FEW { self.with_more(take) } else { Vec::new() };
        compiler_fence(Ordering::SeqCst);
        self.set_len(mark.few);
        if more.is_empty() { Taken::Few(few, few_len) } else { Taken::Many([&few[..few_len], &more].concat()) }
    }
}

/// Notes that the run holds a record.
pub(super) fn hold(record: u64) {
    RECORDS.with(|records| records.hold(record));
}

/// Notes that the run has given a record back.
pub(super) fn let_go(record: u64) {
    RECORDS.with(|records| records.let_go(record));
}

/// Returns how many records outer runs hold.
pub(super) fn mark() -> Mark {
    RECORDS.with(Records::mark)
}

/// Takes all records that were noted since.
pub(super) fn held_since(mark: Mark) -> Taken {
    RECORDS.with(|records| records.split_off(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_in_order_however_many() {
        for outer in [0, 1, FEW - 1, FEW, FEW + 3] {
            (0..outer as u64).for_each(hold);
            let begun = mark();
            (100..150).for_each(hold);
            for gone in [149, 100, 120, 131] {
                let_go(gone);
                let_go(gone);
            }
            let inner = mark();
            (200..203).for_each(hold);
            let_go(201);
            assert_eq!(*held_since(inner), [200, 202], "{outer}");
            let mut left = held_since(begun).to_vec();
            left.sort_unstable();
            let expected: Vec<u64> = (100..150).filter(|number| ![149, 100, 120, 131].contains(number)).collect();
            assert_eq!(left, expected, "{outer}");
            assert_eq!(*held_since(mark()), [0; 0]);
            (0..outer as u64).rev().for_each(let_go);
            assert_eq!(RECORDS.with(Records::len), 0, "{outer}");
        }
    }

    #[test]
    fn few_records_are_given_back_without_an_allocator() {
        for (outer, inner) in [(0, 0), (0, FEW), (FEW, 0), (FEW - 2, 2), (FEW + 3, 0)] {
            (0..outer as u64).for_each(hold);
            let begun = mark();
            (0..inner as u64).for_each(hold);
            let taken = held_since(begun);
            assert!(matches!(taken, Taken::Few(_, len) if len == inner), "{outer}: {taken:?}");
            assert_eq!(held_since(Mark { few: 0, more: 0 }).len(), outer);
        }
    }

    #[test]
    fn a_run_in_the_middle_of_a_change_leaves_it_as_it_was() {
        // What a handler finds that has interrupted `with_more`.
        (0..FEW as u64 + 5).for_each(hold);
        RECORDS.with(|records| {
            records.with_more(|more| {
                let begun = mark();
                hold(7);
                hold(8);
                let_go(8);
                assert_eq!(*held_since(begun), [7]);
                more.pop();
            });
        });
        assert_eq!(mark().more, 4);
        assert_eq!(held_since(Mark { few: 0, more: 0 }).len(), FEW + 4);
    }
}

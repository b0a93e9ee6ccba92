//! Every interleaving of lookup, retire and reclaim in small models. Mutants beside each show that the model can fail.
//!
//! A program's bytes are a loom cell: running the program reads the cell, reclaiming it writes the cell. loom fails a
//! model in which the two are not ordered.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::directory::{Directory, FreeEntries, Readers};
use super::epoch::Epochs;
use super::retired::{Linked, RetiredStack};
use crate::primitive::{AtomicPtr, heavy_barrier};

/// The real model, or one that lacks a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    Real,
    WithoutBarrier,
    WithoutQuiet,
    OneCounter,
    UnpublishedLate,
    Relaxed,
}

impl Model {
    /// Returns the ordering used for `Release`.
    fn release(self) -> Ordering {
        if self == Self::Relaxed { Ordering::Relaxed } else { Ordering::Release }
    }
}

struct Code {
    link: AtomicPtr<Code>,
    bytes: UnsafeCell<u32>,
}

// SAFETY: the models examine who may access the bytes, and when.
unsafe impl Sync for Code {}
// SAFETY: as above.
unsafe impl Send for Code {}

// SAFETY: 1. a field of its own.
unsafe impl Linked for Code {
    fn link(&self) -> &AtomicPtr<Self> {
        &self.link
    }
}

impl Code {
    fn new() -> Self {
        Self { link: AtomicPtr::new(std::ptr::null_mut()), bytes: UnsafeCell::new(1) }
    }

    /// Creates a program whose bytes were written by the calling thread: loom treats a new cell as seen by every
    /// thread.
    fn written() -> Self {
        let code = Self::new();
        // SAFETY: nobody else has the cell.
        code.bytes.with_mut(|bytes| unsafe { *bytes = 1 });
        code
    }

    fn run(&self) {
        // SAFETY: loom checks that nobody writes meanwhile.
        self.bytes.with(|bytes| assert_eq!(unsafe { *bytes }, 1, "ran code that was overwritten"));
    }

    fn overwrite(&self) {
        // SAFETY: loom checks that nobody else is there.
        self.bytes.with_mut(|bytes| unsafe { *bytes = 0xCC });
    }
}

/// One thread runs code by its address while it is pinned; another withdraws the address, retires, collects and
/// overwrites.
fn pin_against_reclaim(model: Model) {
    loom::model(move || {
        let epochs = Arc::new(Epochs::new());
        let retired = Arc::new(RetiredStack::new());
        let code = Arc::new(Code::new());
        let published = Arc::new(AtomicBool::new(true));
        let runner = {
            let (epochs, code, published) = (Arc::clone(&epochs), Arc::clone(&code), Arc::clone(&published));
            thread::spawn(move || {
                let seat = epochs.take_seat();
                for _ in 0..2 {
                    seat.pin(&epochs);
                    if published.load(Ordering::Acquire) {
                        code.run();
                    }
                    seat.unpin();
                }
                seat.leave();
            })
        };
        if model != Model::UnpublishedLate {
            published.store(false, Ordering::Release);
        }
        // SAFETY: 1. the code lives until the end of the model, and is pushed once.
        unsafe { retired.push(std::ptr::NonNull::from(&*code)) };
        let collected: Vec<_> = retired.take_all().collect();
        assert_eq!(collected.len(), 1);
        let tag = epochs.advance();
        if model != Model::WithoutBarrier {
            heavy_barrier();
        }
        if epochs.oldest_pin() > tag {
            code.overwrite();
        }
        published.store(false, Ordering::Release);
        runner.join().unwrap();
    });
}

#[test]
fn loom_pinned_code_is_not_overwritten() {
    pin_against_reclaim(Model::Real);
}

#[test]
#[should_panic]
fn loom_catches_a_reclaim_without_barrier() {
    pin_against_reclaim(Model::WithoutBarrier);
}

#[test]
#[should_panic]
fn loom_catches_an_address_that_is_withdrawn_late() {
    pin_against_reclaim(Model::UnpublishedLate);
}

/// One thread looks up an address and reads what it finds; another unlinks the program and ends it. The latter has
/// waited for readers once before, because of another program, so that the reader may be in either counter.
fn lookup_against_reclaim(model: Model) {
    loom::model(move || {
        let directory: Arc<Directory<Code>> = Arc::new(Directory::new(2));
        let readers = Arc::new(Readers::new());
        let mut free = FreeEntries::default();
        let id = directory.reserve(&mut free);
        // SAFETY: 1. just reserved; 2. the only program.
        unsafe { directory.publish(0, id, Code::new()) };
        let reader = {
            let (directory, readers) = (Arc::clone(&directory), Arc::clone(&readers));
            thread::spawn(move || {
                let guard = readers.enter();
                if let Some(code) = directory.find(1, &guard) {
                    code.run();
                }
            })
        };
        let counters = if model == Model::OneCounter { 1 } else { 2 };
        readers.leave_counters(counters);
        directory.unlink(0);
        if model == Model::WithoutQuiet || readers.leave_counters(counters) {
            // SAFETY: 1. unlinked and quiet (but for the mutants, which loom stops); 2. taken once.
            let code = unsafe { directory.take(id) };
            code.overwrite();
            // Leaked, so that the mutant's reader has something to read.
            std::mem::forget(code);
        }
        reader.join().unwrap();
    });
}

#[test]
fn loom_what_a_lookup_has_found_is_not_reused() {
    lookup_against_reclaim(Model::Real);
}

#[test]
#[should_panic]
fn loom_catches_a_reclaim_that_ignores_readers() {
    lookup_against_reclaim(Model::WithoutQuiet);
}

#[test]
#[should_panic]
fn loom_catches_a_reclaim_that_looks_at_one_counter() {
    lookup_against_reclaim(Model::OneCounter);
}

/// One thread looks an address up while another publishes a program there.
fn publish_against_lookup(model: Model) {
    loom::model(move || {
        let directory: Arc<Directory<Code>> = Arc::new(Directory::new(2));
        let readers = Arc::new(Readers::new());
        // Before the lookup: how it sees the block of entries is a matter of the Release in `reserve`.
        let id = directory.reserve(&mut FreeEntries::default());
        let looker = {
            let (directory, readers) = (Arc::clone(&directory), Arc::clone(&readers));
            thread::spawn(move || {
                let guard = readers.enter();
                if let Some(code) = directory.find(1, &guard) {
                    code.run();
                }
            })
        };
        // SAFETY: 1. just reserved; 2. the only program.
        unsafe { directory.publish_ordered(0, id, Code::written(), model.release()) };
        looker.join().unwrap();
    });
}

/// A lookup that begins while a program is published sees all of it, or none.
#[test]
fn loom_a_published_program_is_whole() {
    publish_against_lookup(Model::Real);
}

#[test]
#[should_panic]
fn loom_catches_a_program_that_is_published_too_soon() {
    publish_against_lookup(Model::Relaxed);
}

/// Two threads each use a program and retire it, while a third collects and overwrites what it gets.
fn retire_against_collect(model: Model) {
    loom::model(move || {
        let retired = Arc::new(RetiredStack::new());
        let codes: Arc<[Code; 2]> = Arc::new([Code::new(), Code::new()]);
        let threads: Vec<_> = (0..2)
            .map(|index| {
                let (retired, codes) = (Arc::clone(&retired), Arc::clone(&codes));
                thread::spawn(move || {
                    codes[index].run();
                    let code = std::ptr::NonNull::from(&codes[index]);
                    // SAFETY: 1. the codes live until the end of the model; each is pushed once.
                    unsafe { retired.push_ordered(code, model.release()) };
                })
            })
            .collect();
        let mut collected = Vec::new();
        let mut collect = || {
            for code in retired.take_all() {
                // Overwrites before anything else orders this thread after the one that has retired it. SAFETY: lives
                // until the end of the model.
                unsafe { code.as_ref() }.overwrite();
                collected.push(code);
            }
        };
        collect();
        for thread in threads {
            thread.join().unwrap();
        }
        collect();
        assert_eq!(collected.len(), 2);
        assert_ne!(collected[0], collected[1]);
    });
}

/// Every program is collected exactly once, and not before its owner is done with it.
#[test]
fn loom_nothing_retired_is_lost() {
    retire_against_collect(Model::Real);
}

#[test]
#[should_panic]
fn loom_catches_a_program_that_is_retired_too_soon() {
    retire_against_collect(Model::Relaxed);
}

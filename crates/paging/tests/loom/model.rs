//! The protocol in the header of `space/mod.rs`, on a table with one entry that is loom's too: what walkers may read
//! while tables are copied, written and freed.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Entries are a cell here, so that loom finds a write during a read; in the crate only a table's last sharer writes.
struct Table {
    shares: AtomicU32,
    entry: UnsafeCell<u32>,
    freed: AtomicU32,
}

// SAFETY: loom checks each access to the cell.
unsafe impl Sync for Table {}

impl Table {
    fn new(shares: u32) -> Self {
        Self { shares: AtomicU32::new(shares), entry: UnsafeCell::new(1), freed: AtomicU32::new(0) }
    }

    fn read(&self) -> u32 {
        // SAFETY: loom reports a store at the same time.
        self.entry.with(|entry| unsafe { *entry })
    }

    fn write(&self, value: u32) {
        // SAFETY: loom reports another access at the same time.
        self.entry.with_mut(|entry| unsafe { *entry = value });
    }

    fn drop_share(&self) {
        if self.shares.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.write(0);
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Two spaces that share table 0; table n + 1 is space n's copy.
struct World {
    tables: [Table; 3],
    above: [AtomicUsize; 2],
    /// A CPU of each space holds it from a walk's first step to its last; a flush waits for it.
    walks: [Mutex<()>; 2],
}

impl World {
    /// Makes a change in a space, under its lock; each space has one thread.
    fn change(&self, space: usize) {
        let shared = &self.tables[0];
        if shared.shares.load(Ordering::Acquire) > 1 {
            let copy = &self.tables[space + 1];
            copy.write(shared.read() + 1 + space as u32);
            self.above[space].store(space + 1, Ordering::Release);
            drop(self.walks[space].lock().unwrap());
            shared.drop_share();
        } else {
            // Entries are single words, which the space's own CPUs may read at the same time; a cell is not.
            let _words = self.walks[space].lock().unwrap();
            shared.write(2 + space as u32);
        }
    }

    /// Ends a space that no CPU runs.
    fn end(&self) {
        self.tables[0].drop_share();
    }

    /// Returns what a CPU of the space reads.
    fn walk(&self, space: usize) -> u32 {
        let _walking = self.walks[space].lock().unwrap();
        self.tables[self.above[space].load(Ordering::Acquire)].read()
    }

    fn new() -> Arc<Self> {
        Arc::new(Self {
            tables: [Table::new(2), Table::new(1), Table::new(1)],
            above: [AtomicUsize::new(0), AtomicUsize::new(0)],
            walks: [Mutex::new(()), Mutex::new(())],
        })
    }
}

#[test]
fn a_table_is_written_by_its_last_sharer_when_nobody_walks_it() {
    loom::model(|| {
        let world = World::new();
        let one = thread::spawn({
            let world = world.clone();
            move || world.change(0)
        });
        let walker = thread::spawn({
            let world = world.clone();
            move || world.walk(0)
        });
        world.change(1);
        one.join().unwrap();
        let seen = walker.join().unwrap();
        assert!(seen == 1 || seen == 2, "old or new, and never the other space's: {seen}");
        let both = world.above.iter().all(|above| above.load(Ordering::Relaxed) != 0);
        assert_eq!(world.tables[0].freed.load(Ordering::Relaxed), u32::from(both), "copied twice, and freed once");
    });
}

#[test]
fn a_space_that_ends_leaves_its_table_to_the_other() {
    loom::model(|| {
        let world = World::new();
        let one = thread::spawn({
            let world = world.clone();
            move || world.end()
        });
        world.change(1);
        one.join().unwrap();
        assert_eq!(world.walk(1), 3);
        let copied = world.above[1].load(Ordering::Relaxed) != 0;
        assert_eq!(world.tables[0].freed.load(Ordering::Relaxed), u32::from(copied));
    });
}

/// A private page of two spaces, with the entries that lead to it; page n + 1 is space n's copy. Entries are loom's, so
/// that only the machine's promise orders the page's bytes.
struct Shared {
    references: AtomicU32,
    pages: [UnsafeCell<u64>; 3],
    entries: [AtomicUsize; 2],
}

// SAFETY: loom checks each access to the cells.
unsafe impl Sync for Shared {}

/// How a machine counts references: contract 6 of `Machine`.
#[derive(Clone, Copy)]
struct Promise {
    release: Ordering,
    is_exclusive: Ordering,
}

const KEPT: Promise = Promise { release: Ordering::Release, is_exclusive: Ordering::Acquire };

impl Shared {
    /// Resolves a space's fault at a store, by using or copying the page, then stores.
    fn store(&self, space: usize, value: u64, promise: Promise) {
        if self.references.load(promise.is_exclusive) != 1 {
            let from = self.entries[space].load(Ordering::Acquire);
            // SAFETY: loom reports a store at the same time.
            let copy = self.pages[from].with(|bytes| unsafe { *bytes });
            // SAFETY: loom reports another access at the same time.
            self.pages[space + 1].with_mut(|bytes| unsafe { *bytes = copy });
            self.entries[space].store(space + 1, Ordering::Release);
            self.references.fetch_sub(1, promise.release);
        }
        let page = self.entries[space].load(Ordering::Acquire);
        // SAFETY: loom reports another access at the same time.
        self.pages[page].with_mut(|bytes| unsafe { *bytes += value });
    }

    fn explore(promise: Promise) {
        loom::model(move || {
            let shared = Arc::new(Self {
                references: AtomicU32::new(2),
                pages: [100, 0, 0].map(UnsafeCell::new),
                entries: [AtomicUsize::new(0), AtomicUsize::new(0)],
            });
            let one = thread::spawn({
                let shared = shared.clone();
                move || shared.store(0, 1, promise)
            });
            shared.store(1, 2, promise);
            one.join().unwrap();
            for (space, value) in [(0, 101), (1, 102)] {
                let page = shared.entries[space].load(Ordering::Acquire);
                // SAFETY: loom reports a store at the same time.
                assert_eq!(shared.pages[page].with(|bytes| unsafe { *bytes }), value);
            }
        });
    }
}

#[test]
fn the_last_sharer_stores_in_place_when_the_copier_has_read() {
    Shared::explore(KEPT);
}

/// The model can fail: the copier's loads pass its release.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_release_lets_the_copier_read_what_the_other_stores() {
    Shared::explore(Promise { release: Ordering::Relaxed, ..KEPT });
}

/// The model can fail: the last sharer's store passes its read of the count.
#[test]
#[should_panic(expected = "Causality violation")]
fn a_relaxed_look_lets_the_copier_read_what_the_other_stores() {
    Shared::explore(Promise { is_exclusive: Ordering::Relaxed, ..KEPT });
}

//! Reads of one thread.

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_sys::published::{Published, Reading};

use crate::support::{Drops, Membarrier, Value, play};

#[test]
fn what_is_read_stays_until_the_last_read_ends() {
    play("reads::what_is_read_stays_until_the_last_read_ends", |membarrier| {
        let drops = Drops::default();
        let shared = Published::new(drops.value(1));
        assert_eq!(shared.reclaim(), 0);
        let outer = shared.read();
        assert_eq!(shared.replace(drops.value(2)), 1, "this thread reads it");
        let inner = shared.read();
        assert_eq!((outer.number(), inner.number()), (1, 2));
        // Out of order: the first read is the one that counts, until none is left on its seat.
        drop(outer);
        let left = usize::from(membarrier == Membarrier::Granted);
        assert_eq!((shared.reclaim(), drops.count()), (left, 1 - left));
        drop(inner);
        assert_eq!((shared.reclaim(), drops.count()), (0, 1));
        assert_eq!((shared.replace(drops.value(3)), drops.count()), (0, 2), "nobody reads");
        // A read that began later keeps nothing old.
        let later = shared.read();
        assert_eq!(shared.reclaim(), 0);
        drop(later);
        assert_eq!(shared.replace(drops.value(4)), 0);
        drop(shared);
        assert_eq!(drops.count(), 4);
    });
}

#[test]
fn what_is_only_replaced_stays_until_somebody_frees_it() {
    play("reads::what_is_only_replaced_stays_until_somebody_frees_it", |_| {
        let drops = Drops::default();
        let shared = Published::new(drops.value(1));
        let replaced = shared.replace_only(drops.value(2));
        assert_eq!((shared.read().number(), drops.count()), (2, 0));
        assert_eq!((replaced.free(), drops.count()), (0, 1));
        let read = shared.read();
        assert_eq!((shared.replace_only(drops.value(3)).free(), drops.count()), (1, 1), "this thread reads it");
        drop(read);
        let _ = shared.replace_only(drops.value(4));
        assert_eq!((shared.reclaim(), drops.count()), (0, 3));
    });
}

#[test]
fn a_part_keeps_the_whole() {
    play("reads::a_part_keeps_the_whole", |_| {
        let shared = Published::new(vec![vec![1, 2], vec![3]]);
        let part: Reading<'_, [i32]> = shared.read().map(|all| all[0].as_slice());
        assert_eq!(shared.replace(Vec::new()), 1);
        assert_eq!(*part, [1, 2]);
        drop(part);
        assert_eq!(shared.reclaim(), 0);
    });
}

#[test]
fn a_read_that_is_forgotten_keeps_old_values_and_no_more() {
    play("reads::a_read_that_is_forgotten_keeps_old_values_and_no_more", |_| {
        let drops = Drops::default();
        let shared = Published::new(drops.value(1));
        std::mem::forget(shared.read());
        // Of other values, too: the thread is what is known.
        let other = Published::new(drops.value(2));
        assert_eq!((shared.replace(drops.value(3)), other.replace(drops.value(4))), (1, 1));
        assert_eq!((shared.reclaim(), other.reclaim()), (1, 1));
        drop((shared, other));
        assert_eq!(drops.count(), 4, "nobody can read them any more");
    });
}

#[test]
fn a_thread_can_read_more_often_than_a_seat_counts() {
    play("reads::a_thread_can_read_more_often_than_a_seat_counts", |membarrier| {
        let drops = Drops::default();
        let shared = Published::new(drops.value(1));
        // Seats of one read are searched one by one.
        let count = if membarrier == Membarrier::Granted { 67_000 } else { 3000 };
        let mut reads: Vec<_> = (0..count).map(|_| shared.read()).collect();
        assert_eq!(shared.replace(drops.value(2)), 1);
        // The last ones are counted elsewhere, and keep it too.
        let tail = reads.split_off(count - 1000);
        drop(reads);
        assert_eq!((shared.reclaim(), drops.count()), (1, 0));
        assert!(tail.iter().all(|read| read.number() == 1));
        drop(tail);
        assert_eq!((shared.reclaim(), drops.count()), (0, 1));
    });
}

/// What the signal's handler reads, and the sum of what it has read.
static HANDLED: OnceLock<Published<usize>> = OnceLock::new();
static SUM: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_signal(_: libc::c_int) {
    let Some(handled) = HANDLED.get() else { return };
    let (outer, inner) = (handled.read(), handled.read());
    SUM.fetch_add(*outer + *inner, Ordering::Relaxed);
}

#[test]
fn a_handler_reads_between_any_two_steps() {
    const SIGNALS: usize = 400;
    play("reads::a_handler_reads_between_any_two_steps", |_| {
        let handled = HANDLED.get_or_init(|| Published::new(1));
        drop(handled.read());
        let handler: extern "C" fn(libc::c_int) = on_signal;
        // SAFETY: a function of that type, which only reads and adds.
        unsafe { libc::signal(libc::SIGUSR1, handler as usize) };
        let drops = Drops::default();
        let shared = Published::new(drops.value(0));
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                drop(handled.read());
                // SAFETY: takes nothing.
                sender.send(unsafe { libc::pthread_self() }).expect("somebody listens");
                let mut rounds = 0;
                while SUM.load(Ordering::Relaxed) < 2 * SIGNALS {
                    let outer = shared.read();
                    let (first, second) = (outer.number(), shared.read().number());
                    assert!(first <= second);
                    rounds += 1;
                }
                rounds
            });
            let thread = receiver.recv().expect("it tells");
            for number in 1..=SIGNALS {
                let before = SUM.load(Ordering::Relaxed);
                // SAFETY: the thread runs until the sum is reached, which takes this signal.
                assert_eq!(unsafe { libc::pthread_kill(thread, libc::SIGUSR1) }, 0);
                shared.replace(drops.value(number));
                while SUM.load(Ordering::Relaxed) == before {
                    std::thread::yield_now();
                }
            }
            assert!(reader.join().expect("values stay the same") > 0);
        });
        // No handler has left a read behind.
        assert_eq!((shared.reclaim(), drops.count()), (0, SIGNALS));
        assert_eq!(handled.replace(2), 0);
    });
}

/// A destructor of thread-local data that reads, after everything else of the thread.
struct Last(&'static Published<Value>, RefCell<Option<Reading<'static, Value>>>);

impl Drop for Last {
    fn drop(&mut self) {
        assert_eq!(self.0.read().number(), 7);
        let nested = (self.0.read(), self.0.read());
        assert_eq!(nested.0.number(), nested.1.number());
        drop(self.1.take());
    }
}

#[test]
fn destructors_of_thread_local_data_read() {
    thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });
    play("reads::destructors_of_thread_local_data_read", |_| {
        let drops = Drops::default();
        let shared: &'static Published<Value> = Box::leak(Box::new(Published::new(drops.value(7))));
        for keeps in [false, true] {
            for reads_first in [false, true] {
                let thread = std::thread::spawn(move || {
                    if reads_first {
                        assert_eq!(shared.read().number(), 7);
                    }
                    let kept = RefCell::new(keeps.then(|| shared.read()));
                    LAST.with(|last| *last.borrow_mut() = Some(Last(shared, kept)));
                    assert_eq!(shared.read().number(), 7);
                });
                thread.join().expect("its destructors have read the value");
            }
        }
        assert_eq!(shared.replace(drops.value(8)), 0, "all have left");
        assert_eq!(drops.count(), 1);
    });
}

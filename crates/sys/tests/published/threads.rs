//! Reads of many threads, and of those that have ended.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use palimpsest_sys::published::Published;

use crate::support::{Drops, Value, play};

#[test]
fn a_thread_that_reads_keeps_what_others_replace() {
    play("threads::a_thread_that_reads_keeps_what_others_replace", |_| {
        let drops = Drops::default();
        let shared = Published::new(drops.value(1));
        let (began, ends) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let read = shared.read();
                began.wait();
                ends.wait();
                assert_eq!(read.number(), 1);
            });
            began.wait();
            assert_eq!((shared.replace(drops.value(2)), drops.count()), (1, 0));
            assert_eq!(shared.replace(drops.value(3)), 2, "the reader is older than both");
            ends.wait();
        });
        // The thread has ended.
        assert_eq!((shared.reclaim(), drops.count()), (0, 2));
    });
}

#[test]
fn another_thread_reads_through_a_borrowed_read() {
    play("threads::another_thread_reads_through_a_borrowed_read", |_| {
        let shared = Published::new(vec![5; 100]);
        let read = shared.read();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(shared.replace(Vec::new()), 1);
                assert_eq!(read.iter().sum::<i32>(), 500);
            });
        });
        assert_eq!(shared.reclaim(), 1);
        drop(read);
        assert_eq!(shared.reclaim(), 0);
    });
}

/// A thread forgets a read, and others go on reading through it when the thread has ended.
#[test]
fn a_read_outlives_its_thread() {
    play("threads::a_read_outlives_its_thread", |_| {
        let drops = Drops::default();
        let shared: &'static Published<Value> = Box::leak(Box::new(Published::new(drops.value(1))));
        let left = std::thread::spawn(|| &**Box::leak(Box::new(shared.read()))).join().expect("it reads");
        // Threads that come later must not get its seat: they would end its read.
        for _ in 0..8 {
            std::thread::spawn(|| drop(shared.read())).join().expect("it reads");
        }
        assert_eq!(shared.replace(drops.value(2)), 1);
        assert_eq!((left.number(), drops.count()), (1, 0));
    });
}

#[test]
fn readers_see_whole_values_in_order_while_writers_replace() {
    const READERS: usize = 3;
    // Fewer if everything is emulated.
    let values = std::env::var("PALIMPSEST_UPDATES").map_or(300, |told| told.parse().expect("a number"));
    play("threads::readers_see_whole_values_in_order_while_writers_replace", |_| {
        let drops = Drops::default();
        let shared = Arc::new(Published::new(drops.value(0)));
        let (done, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        // Threads that end again and again, so that seats change hands.
                        scope
                            .spawn(|| {
                                let mut last = 0;
                                for _ in 0..200 {
                                    let outer = shared.read();
                                    let (first, second) = (outer.number(), shared.read().number());
                                    assert!(last <= first && first <= second, "{last}, {first}, {second}");
                                    last = first;
                                }
                                reads.fetch_add(200, Ordering::Relaxed);
                            })
                            .join()
                            .expect("values stay the same");
                    }
                });
            }
            let writer = scope.spawn(|| {
                (1..=values).for_each(|number| {
                    let _left = shared.replace(drops.value(number));
                })
            });
            // A second one that only frees.
            while !writer.is_finished() {
                shared.reclaim();
                std::thread::yield_now();
            }
            writer.join().expect("it replaces");
            while reads.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            done.store(true, Ordering::Relaxed);
        });
        assert_eq!((shared.reclaim(), drops.count()), (0, values));
    });
}

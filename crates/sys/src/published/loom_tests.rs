//! Every interleaving of reads and replacements in small models. Mutants beside each show that the model can fail.
//!
//! A value is a loom cell: reading reads the cell, freeing writes it. loom fails a model in which the two are not
//! ordered. No allocation is freed before all threads have ended, so that a mutant's reader has something to read.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::primitive::full_barrier;
use super::seats::{Seat, Seats};
use super::versions::Versions;

/// The real model, or one that lacks a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Model {
    Real,
    /// The collector asks no thread to pass a barrier.
    WithoutBarrier,
    /// It asks for the oldest read before it withdraws the value.
    OldestReadFirst,
    /// It ignores seats.
    WithoutSeats,
    /// The reader ends its inner read twice, and its outer one never: the seat shows no read too early.
    EndsTooOften,
    /// Two threads use one seat.
    SharedSeat,
}

struct Value(UnsafeCell<u32>);

// SAFETY: the models examine who may access the cell, and when.
unsafe impl Sync for Value {}
// SAFETY: as above.
unsafe impl Send for Value {}

impl Value {
    /// Creates a value whose cell was written by the calling thread: loom treats a new cell as seen by every thread.
    fn new(number: u32) -> Self {
        let cell = UnsafeCell::new(0);
        // SAFETY: nobody else has the cell.
        cell.with_mut(|value| unsafe { *value = number });
        Self(cell)
    }

    fn number(&self) -> u32 {
        // SAFETY: loom checks that nobody writes meanwhile.
        let number = self.0.with(|number| unsafe { *number });
        assert_ne!(number, FREED, "read a value that was freed");
        number
    }

    fn free(&self) {
        // SAFETY: loom checks that nobody else is there.
        self.0.with_mut(|number| unsafe { *number = FREED });
    }
}

const FREED: u32 = 0xDEAD;

struct World {
    seats: Seats,
    versions: Versions<Value>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self { seats: Seats::new(), versions: Versions::new(Value::new(1)) })
    }

    /// Reads the present value at `seat`.
    fn number(&self) -> u32 {
        // SAFETY: it is there, as the caller's read is counted; no allocation is freed meanwhile.
        unsafe { self.versions.current().as_ref() }.number()
    }

    fn replace_and_collect(&self, model: Model) {
        let early = self.seats.oldest_read();
        self.versions.replace(Value::new(2), &self.seats, |_| ());
        let retired = self.versions.take_retired();
        if model != Model::WithoutBarrier {
            full_barrier();
        }
        let oldest = match model {
            Model::OldestReadFirst => early,
            Model::WithoutSeats => u64::MAX,
            _ => self.seats.oldest_read(),
        };
        self.versions.sort_out(retired, |tag, value| {
            if tag < oldest {
                value.free();
            }
            false
        });
    }
}

fn explore(test: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    // Threads lose the CPU at most this often: more takes minutes. Loads may see any value that is possible.
    model.preemption_bound = Some(std::env::var("LOOM_MAX_PREEMPTIONS").map_or(3, |text| text.parse().unwrap()));
    model.check(test);
}

/// A thread reads twice, with a read inside the first; another replaces the value and frees the old one.
fn read_against_replace(model: Model) {
    explore(move || {
        let world = World::new();
        let reader = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let seat = world.seats.claim();
                assert!(seat.enter(&world.seats));
                let first = world.number();
                assert!(seat.enter(&world.seats));
                seat.leave();
                if model == Model::EndsTooOften {
                    seat.leave();
                }
                let second = world.number();
                assert!(first <= second, "an older value after a newer one");
                if model != Model::EndsTooOften {
                    seat.leave();
                }
            })
        };
        world.replace_and_collect(model);
        reader.join().unwrap();
    });
}

#[test]
fn loom_what_is_read_is_not_freed() {
    read_against_replace(Model::Real);
}

#[test]
#[should_panic]
fn loom_catches_a_collector_without_barrier() {
    read_against_replace(Model::WithoutBarrier);
}

#[test]
#[should_panic]
fn loom_catches_a_collector_that_looks_before_it_withdraws() {
    read_against_replace(Model::OldestReadFirst);
}

#[test]
#[should_panic]
fn loom_catches_a_collector_that_ignores_seats() {
    read_against_replace(Model::WithoutSeats);
}

#[test]
#[should_panic]
fn loom_catches_a_read_that_ends_too_often() {
    read_against_replace(Model::EndsTooOften);
}

/// Two threads each read on a seat that they give up while they read; a third replaces and frees.
fn seats_change_hands(model: Model) {
    explore(move || {
        let world = World::new();
        let common: Option<&'static Seat> = (model == Model::SharedSeat).then(|| world.seats.claim());
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    let seat = common.unwrap_or_else(|| world.seats.claim());
                    assert!(seat.enter(&world.seats));
                    if common.is_none() {
                        seat.give_up();
                    }
                    world.number();
                    seat.leave();
                })
            })
            .collect();
        world.replace_and_collect(model);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}

#[test]
fn loom_a_seat_with_a_read_is_not_handed_on() {
    seats_change_hands(Model::Real);
}

#[test]
#[should_panic]
fn loom_catches_two_threads_on_one_seat() {
    seats_change_hands(Model::SharedSeat);
}

/// Two threads replace and free at the same time: each old value is freed once, and the present one stays.
#[test]
fn loom_replacements_meet() {
    explore(|| {
        let world = World::new();
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.replace_and_collect(Model::Real))
        };
        world.replace_and_collect(Model::Real);
        other.join().unwrap();
        let seat = world.seats.claim();
        assert!(seat.enter(&world.seats));
        assert_eq!(world.number(), 2);
        seat.leave();
    });
}

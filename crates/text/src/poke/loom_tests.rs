//! Every interleaving, and every order that the memory model allows, of a handler and two batches at the same address.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use loom::thread;

use super::site::Action;
use super::table::{Table, Verdict, judge};

const ADDRESS: usize = 8;
const TRAP: u8 = 2;

struct Shared {
    words: Vec<AtomicU64>,
    /// The site's first byte, read as data. Instruction fetch is in `model_tests`.
    byte: AtomicU8,
}

/// Which handler runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    Real,
    /// Searches only once, and takes a trap that it does not find for foreign.
    WithoutSecondLook,
}

fn action(batch: usize) -> Action {
    Action { target: batch, otherwise: 10 * batch, condition: batch as u8 }
}

fn handler_against_batches(handler: Handler) {
    loom::model(move || {
        let words = (0..Table::words_for(1)).map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { words, byte: AtomicU8::new(0) });
        let runner = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                // Acquire and Release: x86-64 gives them to every load and store.
                if shared.byte.load(Ordering::Acquire) != TRAP {
                    return;
                }
                let table = Table::new(&shared.words);
                let is_trap = |_| shared.byte.load(Ordering::Acquire) == TRAP;
                let verdict = match handler {
                    Handler::Real => judge(ADDRESS, [table].into_iter(), is_trap),
                    Handler::WithoutSecondLook => match table.find(ADDRESS) {
                        Some(action) => Verdict::Act(action),
                        None if is_trap(ADDRESS) => Verdict::Foreign,
                        None => Verdict::Retry,
                    },
                };
                let right = [Verdict::Retry, Verdict::Act(action(1)), Verdict::Act(action(2))];
                assert!(right.contains(&verdict), "{verdict:?}");
            })
        };
        let table = Table::new(&shared.words);
        for batch in [1, 2] {
            table.publish([(ADDRESS, action(batch))].into_iter());
            shared.byte.store(TRAP, Ordering::Release);
            shared.byte.store(batch as u8 % 2, Ordering::Release);
            table.withdraw();
        }
        runner.join().unwrap();
    });
}

#[test]
fn loom_a_trap_is_never_foreign_and_never_half_of_two_batches() {
    handler_against_batches(Handler::Real);
}

#[test]
#[should_panic]
fn loom_catches_a_handler_that_looks_once() {
    handler_against_batches(Handler::WithoutSecondLook);
}

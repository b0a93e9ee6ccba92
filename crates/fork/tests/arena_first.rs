//! The first arena of a process is made while another thread forks. The only test here, so that no other has made one.

#[expect(dead_code, reason = "other test programs use more of it")]
mod arena_support;

use std::sync::Barrier;

use arena_support::{Filled, forked};
use palimpsest_fork::arena::Arena;

static ARENA: Arena = Arena::new();

/// Uses the arena in threads that begin together, and in children that are forked meanwhile.
fn first_use_beside_forks() -> bool {
    const THREADS: usize = 3;
    let together = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                together.wait();
                assert!(Filled::new(&ARENA, 8, 16, 1).is_some());
            });
        }
        together.wait();
        (0..3).all(|_| forked(|| Filled::new(&ARENA, 8, 16, 2).is_some_and(|block| block.is_right()), || {}) == 0)
    })
}

#[test]
fn a_child_forked_meanwhile_does_not_wait_for_ever() {
    for round in 0..200 {
        let status = forked(first_use_beside_forks, || {});
        assert_eq!(status, 0, "in round {round}");
    }
}

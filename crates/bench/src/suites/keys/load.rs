//! Threads that run through sites while something is measured.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::machine::Sites;

/// Calls `measured` while `threads` other threads run through all sites without pause. Each of them has been through
/// all sites once before.
pub(super) fn under_load<R>(sites: &Sites, threads: usize, measured: impl FnOnce() -> R) -> R {
    let (stop, running) = (AtomicBool::new(false), AtomicUsize::new(0));
    let pass = || {
        black_box(sites.run());
    };
    thread::scope(|scope| {
        let spawn = |_| {
            scope.spawn(|| {
                pass();
                // Relaxed, here and below: neither value publishes anything.
                running.fetch_add(1, Ordering::Relaxed);
                while !stop.load(Ordering::Relaxed) {
                    pass();
                }
            })
        };
        let workers: Vec<_> = (0..threads).map(spawn).collect();
        // Also after a panic, since the scope waits for the threads.
        let stop_on_drop = StopOnDrop(&stop);
        while running.load(Ordering::Relaxed) < threads {
            thread::yield_now();
        }
        let result = measured();
        drop(stop_on_drop);
        // The scope alone would not wait for the threads' last moments, in which they have all signals blocked: batches
        // would wait for that.
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        result
    })
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        // Relaxed: see above.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_text::Packs;

    use super::*;

    #[test]
    fn the_threads_end_with_the_measurement() {
        let packs = Packs::new().expect("packs open");
        let sites = Sites::place(&packs, 10).expect("programs are placed");
        for threads in [0, 1, 2] {
            assert_eq!(under_load(&sites, threads, || threads), threads);
        }
    }
}

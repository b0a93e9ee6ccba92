//! A process that runs a program: its threads, and what its first one does meanwhile, so that it is frozen.
//!
//! Lines that begin with `@` must be equal in two runs of a program, thread by thread; lines that begin with `#` may
//! differ.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::calls::World;
use crate::program::{Code, Program, THREADS};
use crate::run;
use crate::worker::{STEPS, Worker, counted, map_counters};

/// Seconds after which a hanging process is ended.
const TIME_LIMIT: u32 = 1200;

pub(crate) struct Interpreter {
    world: World,
    workers: Vec<Worker>,
}

impl Interpreter {
    pub(crate) fn new(world: World, _path: String) -> Self {
        // SAFETY: sets a timer of this process, which kills it.
        unsafe { libc::alarm(TIME_LIMIT) };
        map_counters(world);
        Self { world, workers: (0..THREADS).map(|number| Worker::new(world, number)).collect() }
    }

    /// Runs all of it and ends the process.
    pub(crate) fn run(self, codes: &[Code]) -> ! {
        let Self { world, workers } = self;
        let running = AtomicUsize::new(THREADS);
        std::thread::scope(|scope| {
            for (number, worker) in workers.into_iter().enumerate() {
                let (ops, running) = (Program::of(codes, number), &running);
                scope.spawn(move || {
                    worker.run(&ops);
                    running.fetch_sub(1, Ordering::Relaxed);
                });
            }
            // Slices that follow each other would leave no time to the threads that they hold.
            let is_over = || running.load(Ordering::Relaxed) == 0;
            world.meanwhile(&|| {
                let before = STEPS.load(Ordering::Relaxed);
                while STEPS.load(Ordering::Relaxed) == before && !is_over() {
                    std::thread::yield_now();
                }
                !is_over()
            });
        });
        let (sum, expected) = counted();
        run::say(&format!("@counters {sum} of {expected}"));
        // SAFETY: ends this process without the rest of the test harness.
        unsafe { libc::_exit(0) }
    }
}

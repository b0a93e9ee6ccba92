//! Runs steps beside each other: for example, two lanes, each taking the next step that may run.

use std::{
    num::NonZero,
    panic::resume_unwind,
    sync::{Condvar, Mutex, PoisonError},
    thread,
};

use crate::{step::Step, table::Row};

/// Returns the number of lanes for this machine. A step waits for one compiler, one linker or one guest for much of its
/// time, so that a second one fits beside it; more would only need more memory.
pub(crate) fn default_count() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(2)
}

/// Indices of the steps that wait, run, and are done.
struct Progress {
    waiting: Vec<usize>,
    running: Vec<usize>,
    rows: Vec<Option<Row>>,
}

/// Runs `steps` with `run` in `count` lanes and returns their rows in the order of `steps`. Steps that build in the
/// same folder follow each other. `run` is told whether its step is the last one of its folder.
pub(crate) fn run(steps: &[Step], count: usize, run: impl Fn(&Step, bool) -> Row + Sync) -> Vec<Row> {
    let progress = Mutex::new(Progress {
        waiting: (0..steps.len()).collect(),
        running: Vec::new(),
        rows: steps.iter().map(|_| None).collect(),
    });
    let changed = Condvar::new();
    let lane = || {
        let mut now = progress.lock().unwrap_or_else(PoisonError::into_inner);
        while !now.waiting.is_empty() {
            let free = |index: &usize| now.running.iter().all(|&other| steps[other].scratch != steps[*index].scratch);
            let Some(place) = now.waiting.iter().position(free) else {
                now = changed.wait(now).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let index = now.waiting.remove(place);
            now.running.push(index);
            let is_last = now.waiting.iter().all(|&later| steps[later].scratch != steps[index].scratch);
            drop(now);
            let row = run(&steps[index], is_last);
            now = progress.lock().unwrap_or_else(PoisonError::into_inner);
            now.running.retain(|&other| other != index);
            now.rows[index] = Some(row);
            changed.notify_all();
        }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..count.max(1)).map(|_| scope.spawn(lane)).collect();
        lane();
        for other in others {
            if let Err(panic) = other.join() {
                resume_unwind(panic);
            }
        }
    });
    let progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    progress.rows.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::{steps, table::Outcome};

    fn step(name: &'static str, scratch: Option<&'static str>) -> Step {
        Step { name, scratch, ..steps::all()[0] }
    }

    fn row(name: &'static str) -> Row {
        Row { name, outcome: Outcome::Passed, seconds: 0.0, processor_seconds: 0.0, remark: String::new() }
    }

    #[test]
    fn steps_with_other_folders_overlap_and_rows_keep_their_order() {
        let steps = [step("a", None), step("b", Some("b")), step("c", None), step("d", Some("d"))];
        // Neither of the first two ends before the other has begun.
        let (both, lasts) = (Barrier::new(2), Mutex::new(Vec::new()));
        let rows = run(&steps, 2, |step, is_last| {
            if ["a", "b"].contains(&step.name) {
                both.wait();
            }
            if is_last {
                lasts.lock().expect("no panic").push(step.name);
            }
            row(step.name)
        });
        assert_eq!(rows.iter().map(|row| row.name).collect::<String>(), "abcd");
        let mut lasts = lasts.into_inner().expect("no panic");
        lasts.sort_unstable();
        assert_eq!(lasts, ["b", "c", "d"]);
    }

    #[test]
    fn steps_with_one_folder_follow_each_other() {
        let steps = ["a", "b", "c", "d", "e", "f"].map(|name| step(name, Some("one")));
        let inside = Mutex::new(());
        let rows = run(&steps, 3, |step, _| {
            let _alone = inside.try_lock().expect("one at a time");
            thread::yield_now();
            row(step.name)
        });
        assert_eq!(rows.len(), steps.len());
    }
}

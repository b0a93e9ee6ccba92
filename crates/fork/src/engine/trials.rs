//! How often something that failed is tried again.
//!
//! Relaxed everywhere: one fork more or less between two trials does not matter.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Most forks between two trials.
const MOST_REST: usize = 127;

/// Trials, ever further apart while they fail. Zeroed memory is valid: the first trial is due. Whoever forks writes.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// Forks until the next trial.
    rest: AtomicUsize,
    /// How many there were before the last one.
    last: AtomicUsize,
}

/// What a trial led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trial {
    /// Nothing is left to do.
    Done,
    /// Something is left.
    InVain,
}

impl Trials {
    /// Counts a fork. Returns whether to try in it.
    pub(crate) fn next_is_due(&self) -> bool {
        let one_less = |rest: usize| rest.checked_sub(1);
        self.rest.try_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
    }

    /// Notes the outcome of a trial.
    pub(crate) fn tried(&self, trial: Trial) {
        let rest = match trial {
            Trial::Done => 0,
            Trial::InVain => (2 * self.last.load(Ordering::Relaxed) + 1).min(MOST_REST),
        };
        self.rest.store(rest, Ordering::Relaxed);
        self.last.store(rest, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trials_in_vain_are_ever_further_apart_and_begin_again_after_one_that_was_not() {
        let trials = Trials::default();
        let next = |trial| {
            let forks = (1..).find(|_| trials.next_is_due()).expect("one is due");
            trials.tried(trial);
            forks
        };
        let forks = [Trial::InVain; 10].map(next);
        assert_eq!(forks, [1, 2, 4, 8, 16, 32, 64, 128, 128, 128]);
        assert_eq!([Trial::Done, Trial::InVain, Trial::InVain].map(next), [128, 1, 2]);
    }
}

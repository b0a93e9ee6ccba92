//! How often something is tried again that could not be done.
//!
//! Relaxed everywhere: a fork more or less between two trials is no matter.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Forks between two trials, at most.
const MOST_REST: usize = 127;

/// Trials, ever further apart as long as they are in vain. Zeroed memory is a valid one: the first is due. Written by
/// whoever forks.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    /// Forks until the next one.
    rest: AtomicUsize,
    /// As many as there were before the last one.
    last: AtomicUsize,
}

/// What a trial has led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trial {
    /// Nothing is left to be done.
    Done,
    /// Something is.
    InVain,
}

impl Trials {
    /// Whether it is to be tried now, in this fork.
    pub(crate) fn is_due(&self) -> bool {
        let one_less = |rest: usize| rest.checked_sub(1);
        self.rest.try_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
    }

    /// It was tried.
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
            let forks = (1..).find(|_| trials.is_due()).expect("one is due");
            trials.tried(trial);
            forks
        };
        let forks = [Trial::InVain; 10].map(next);
        assert_eq!(forks, [1, 2, 4, 8, 16, 32, 64, 128, 128, 128]);
        assert_eq!([Trial::Done, Trial::InVain, Trial::InVain].map(next), [128, 1, 2]);
    }
}

//! Interleaved sampling: in each round every contestant runs once, and the order rotates from round to round.
//!
//! Times of virtual machines drift within seconds. Measured one after the other, two equal contestants can differ by a
//! third; measured in rounds, the drift reaches both.

use std::time::{Duration, Instant};

/// Median and spread of a set of samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Middle value; mean of the two middle values for an even number of samples.
    pub median: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// Number of samples.
    pub runs: usize,
}

impl Summary {
    /// Summarises `samples`; `None` if there are none.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let runs = sorted.len();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let upper = sorted[runs / 2];
        let median = if runs.is_multiple_of(2) { f64::midpoint(sorted[runs / 2 - 1], upper) } else { upper };
        Some(Self { median, min, max, runs })
    }
}

/// Returns the indices `0..contestants` in the order of round `round`: each contestant is first once in `contestants`
/// rounds.
pub fn rotation(contestants: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..contestants).map(move |place| (place + round) % contestants)
}

/// How many rounds to run: as many as time allows, within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// At least this many, unless they take three times as long as all should; always one.
    pub least: usize,
    /// At most this many.
    pub most: usize,
    /// No round begins later than this after the first, except for the least number.
    pub budget: Duration,
}

/// Runs rounds over `contestants`: each has a turn in every round. The first error of `turn` ends them.
///
/// # Errors
///
/// The first error of `turn`.
pub fn interleave<C, E>(
    contestants: &mut [C],
    rounds: Rounds,
    mut turn: impl FnMut(&mut C) -> Result<(), E>,
) -> Result<(), E> {
    let started = Instant::now();
    for round in 0..rounds.most.max(rounds.least) {
        // On a busy machine one round can take longer than all of them should.
        let limit = if round >= rounds.least { rounds.budget } else { rounds.budget.saturating_mul(3) };
        if round > 0 && started.elapsed() >= limit {
            break;
        }
        for index in rotation(contestants.len(), round) {
            turn(&mut contestants[index])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLIMITED: Duration = Duration::MAX;

    #[test]
    fn summaries_of_odd_even_and_no_samples() {
        let odd = Summary::of(&[3.0, 1.0, 2.0]).expect("three samples");
        assert_eq!((odd.median, odd.min, odd.max, odd.runs), (2.0, 1.0, 3.0, 3));
        let even = Summary::of(&[4.0, 1.0, 2.0, 3.0]).expect("four samples");
        assert_eq!(even.median, 2.5);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn every_contestant_runs_once_a_round_in_rotating_order() {
        let mut seen = String::new();
        let rounds = Rounds { least: 1, most: 4, budget: UNLIMITED };
        let outcome = interleave(&mut ['a', 'b', 'c'], rounds, |&mut contestant| {
            seen.push(contestant);
            Ok::<(), ()>(())
        });
        assert_eq!((outcome, seen.as_str()), (Ok(()), "abcbcacababc"));
    }

    #[test]
    fn rounds_end_with_their_number_or_their_time_and_there_is_one() {
        for (least, most, budget, expected) in [
            (2, 9, Duration::ZERO, 1),
            (1, 1, Duration::ZERO, 1),
            (2, 9, UNLIMITED, 9),
            // No round takes a nanosecond and less than a day.
            (1, 9, Duration::from_nanos(1), 1),
            (3, 3, Duration::from_secs(86_400), 3),
        ] {
            let mut turns = 0;
            let outcome = interleave(&mut ['a'], Rounds { least, most, budget }, |_| {
                turns += 1;
                let started = Instant::now();
                while started.elapsed() < Duration::from_nanos(1) {}
                Ok::<(), ()>(())
            });
            assert_eq!((outcome, turns), (Ok(()), expected), "{least} {most} {budget:?}");
        }
    }

    #[test]
    fn a_failing_turn_ends_the_rounds() {
        let mut taken = 0;
        let outcome = interleave(&mut [1, 2], Rounds { least: 3, most: 3, budget: UNLIMITED }, |&mut contestant| {
            taken += 1;
            if contestant == 2 { Err("refused") } else { Ok(()) }
        });
        assert_eq!(outcome, Err("refused"));
        assert_eq!(taken, 2);
    }
}

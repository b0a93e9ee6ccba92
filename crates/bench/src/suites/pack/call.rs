//! `pack.call`: the cost of one call when many programs take turns.
//!
//! Every contestant has programs with the same bytes; only the places differ. A sample is several passes over all
//! programs, after passes that are not timed.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::ARGUMENT;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Context, Group, Samples, expect, failed};
use crate::machine::Population;
use crate::placers::Who;
use crate::programs::{Compiled, compile_all};
use palimpsest_sys::Causes;

const COUNTS: [usize; 4] = [160, 1000, 5000, 20_000];
const ALL: [Who; 3] = [Who::Packed, Who::PageEach, Who::Bucket128k];

/// Calls in one sample.
const CALLS: usize = 200_000;

/// Calls before a sample, and at least this many passes over the programs: caches and branch predictors still know the
/// contestant that ran before, and a runner that follows another order of the same contestant would have an advantage.
const WARM_UP_CALLS: usize = 20_000;
const WARM_UP_PASSES: usize = 4;

/// Time for the rounds of one placement.
const BUDGET: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Sequence,
    Random,
}

impl Order {
    const ALL: [Self; 2] = [Self::Sequence, Self::Random];

    fn id(self, count: usize, who: Who) -> String {
        let suffix = match self {
            Self::Sequence => "",
            Self::Random => ".random",
        };
        format!("pack.call.{count}.{}{suffix}", who.name())
    }
}

pub(super) fn groups() -> Vec<Group> {
    COUNTS.into_iter().map(group).collect()
}

fn group(count: usize) -> Group {
    let of = |order: Order| ALL.map(|who| who.contestant(&ALL, Unit::Nanoseconds, |who| order.id(count, who)));
    Group::new(
        format!("pack.call.{count}"),
        format!("one call, {count} programs taking turns"),
        Order::ALL.into_iter().flat_map(of),
    )
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let wanted: Vec<usize> = COUNTS.into_iter().filter(|&count| context.wants(&group(count))).collect();
    let Some(&most) = wanted.iter().max() else {
        return Ok(());
    };
    context.begin("compiling programs");
    let programs = compile_all(most).map_err(failed("pack.call", "the compiler"))?;
    for count in wanted {
        let group = group(count);
        context.begin(&group.id);
        let rounds = context.effort.rounds(6, 12, BUDGET);
        // Each placement is one random draw of physical memory, so there are several.
        let placements = context.effort.pick(3, 8);
        let samples = measure(&programs[..count], &ALL, placements, rounds)?;
        context.record(&group, samples);
    }
    Ok(())
}

/// Programs and contestants in the tour.
const TOUR: usize = 5000;
const TOUR_ALL: [Who; 2] = [Who::PageEach, Who::Packed];

/// Returns the tour's figures.
pub(in crate::suites) fn tour_group() -> Group {
    let ids = TOUR_ALL.map(|who| Order::Sequence.id(TOUR, who));
    Group { title: format!("one call, {TOUR} functions taking turns"), ..group(TOUR).only(&ids) }
}

/// Returns the tour's samples.
pub(in crate::suites) fn tour(rounds: Rounds) -> Result<Samples, BenchError> {
    let programs = compile_all(TOUR).map_err(failed("pack.call", "the compiler"))?;
    let mut samples = measure(&programs, &TOUR_ALL, 1, rounds)?;
    Ok(samples.take(&tour_group()))
}

/// Returns samples of calls in both orders for those of `all`.
fn measure(programs: &[Compiled], all: &[Who], placements: u64, rounds: Rounds) -> Result<Samples, BenchError> {
    let count = programs.len();
    let id = format!("pack.call.{count}");
    let expected: u64 = programs.iter().fold(0, |sum, program| sum.wrapping_add(program.evaluate(ARGUMENT)));
    let mut samples = Samples::default();
    let mut huge = None;
    for placement in 0..placements {
        let populations = place(&mut samples, all, programs)?;
        let order = permutation(count, placement);
        let mut runners = Vec::new();
        for (who, population) in &populations {
            runners.push((*who, Order::Sequence, population.in_sequence()));
            runners.push((*who, Order::Random, population.in_order(&order)));
        }
        interleave(&mut runners, rounds, |(who, order, callables)| {
            let passes = (CALLS / callables.len()).max(2);
            for _ in 0..(WARM_UP_CALLS / callables.len()).max(WARM_UP_PASSES) {
                callables.call_all(ARGUMENT);
            }
            let mut found = 0;
            let started = Stopwatch::start();
            for _ in 0..passes {
                found = callables.call_all(ARGUMENT);
            }
            let elapsed = started.elapsed();
            expect(&id, who.name(), expected, found)?;
            samples.add(&order.id(count, *who), elapsed.as_secs_f64() * 1e9 / (passes * callables.len()) as f64);
            Ok::<(), BenchError>(())
        })?;
        drop(runners);
        huge = populations.iter().find_map(|(_, population)| population.huge_mapped());
        for (who, population) in populations {
            population.free().map_err(failed(&id, who.name()))?;
        }
    }
    let mean_bytes = programs.iter().map(|program| program.code().len()).sum::<usize>() / count;
    let huge = huge.map_or_else(String::new, |huge| {
        format!("; {} of {} KiB by huge pages", huge.mapped_bytes >> 10, huge.reserved_bytes >> 10)
    });
    for order in Order::ALL {
        samples.note(&order.id(count, Who::Packed), format!("mean length {mean_bytes} bytes{huge}"));
    }
    Ok(samples)
}

/// Places all programs by each of `all` and checks each program once. A rival that cannot place them is left out from
/// now on.
fn place(samples: &mut Samples, all: &[Who], programs: &[Compiled]) -> Result<Vec<(Who, Population)>, BenchError> {
    let count = programs.len();
    let mut populations = Vec::new();
    for &who in all {
        if samples.refused(&Order::Sequence.id(count, who)).is_some() {
            continue;
        }
        match who.open().and_then(|placer| Population::place(placer, programs)) {
            Ok(population) => {
                check(&population, who, programs)?;
                populations.push((who, population));
            }
            Err(error) if who.is_ours() => return Err(failed("pack.call", who.name())(error)),
            Err(error) => {
                for order in Order::ALL {
                    samples.refuse(&order.id(count, who), Causes(&error).to_string());
                }
            }
        }
    }
    Ok(populations)
}

fn check(population: &Population, who: Who, programs: &[Compiled]) -> Result<(), BenchError> {
    for (found, program) in population.in_sequence().call_each(ARGUMENT).zip(programs) {
        expect("pack.call", who.name(), program.evaluate(ARGUMENT), found)?;
    }
    Ok(())
}

fn permutation(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(seed));
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_has_every_program_once() {
        let mut order = permutation(1000, 1);
        assert_ne!(order, permutation(1000, 2));
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }
}

//! `pack.call`: what one call costs when many programs take turns.
//!
//! The bytes of the programs are the same for every contestant; only the places differ. A sample is some passes over
//! all programs, after passes that are not timed.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;

use super::{ARGUMENT, failed};
use crate::clock::Stopwatch;
use crate::machine::Population;
use crate::placers::Contestant;
use crate::programs::{Compiled, compile_all};
use crate::record::Unit;
use crate::sampler::interleave;
use crate::suite::{Group, Measured};
use crate::{BenchError, Context};

const COUNTS: [usize; 4] = [160, 1000, 5000, 20_000];
const CONTESTANTS: [Contestant; 3] = [Contestant::Packed, Contestant::PageEach, Contestant::Bucket128k];

/// Calls in one sample.
const CALLS: usize = 200_000;

/// Calls before a sample, and at least so many passes over the programs: caches and branch predictors still know the
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
    fn id(self, count: usize, contestant: Contestant) -> String {
        let suffix = match self {
            Self::Sequence => "",
            Self::Random => ".random",
        };
        format!("pack.call.{count}.{}{suffix}", contestant.name())
    }
}

pub(super) fn groups() -> Vec<Group> {
    COUNTS.into_iter().map(group).collect()
}

fn group(count: usize) -> Group {
    let ids =
        [Order::Sequence, Order::Random].into_iter().flat_map(|order| CONTESTANTS.map(|who| order.id(count, who)));
    Group {
        id: format!("pack.call.{count}"),
        title: format!("one call, {count} programs taking turns"),
        figures: ids.collect(),
    }
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let wanted: Vec<usize> = COUNTS.into_iter().filter(|&count| context.wants(&group(count))).collect();
    let Some(&most) = wanted.iter().max() else {
        return Ok(());
    };
    context.begin("compiling programs");
    let programs = compile_all(most)?;
    for count in wanted {
        context.begin(&format!("pack.call.{count}"));
        measure(context, &programs[..count])?;
        context.done();
    }
    Ok(())
}

/// One contestant in one order.
struct Runner {
    who: Contestant,
    order: Order,
    samples: Vec<f64>,
}

fn measure(context: &mut Context<'_>, programs: &[Compiled]) -> Result<(), BenchError> {
    let count = programs.len();
    let expected: u64 = programs.iter().fold(0, |sum, program| sum.wrapping_add(program.evaluate(ARGUMENT)));
    let mut contestants = CONTESTANTS.to_vec();
    let mut runners = runners();
    let mut huge = None;
    // Each placement is one throw of the dice of physical memory, so there are several.
    for placement in 0..context.effort.pick(3, 8) {
        let populations = place(context, &mut contestants, programs)?;
        runners.retain(|runner| contestants.contains(&runner.who));
        let order = permutation(count, placement);
        let callables: Vec<_> = runners
            .iter()
            .map(|runner| {
                let population = &populations.iter().find(|(who, _)| *who == runner.who)?.1;
                Some(match runner.order {
                    Order::Sequence => population.in_sequence(),
                    Order::Random => population.in_order(&order),
                })
            })
            .collect();
        let rounds = context.effort.rounds(6, 12, BUDGET);
        let mut pairs: Vec<_> = runners
            .iter()
            .zip(&callables)
            .filter_map(|(runner, callables)| Some((runner.who, callables.as_ref()?)))
            .collect();
        let taken = interleave(&mut pairs, rounds, |(who, callables)| {
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
            if found != expected {
                return Err(BenchError::WrongResult {
                    id: format!("pack.call.{count}"),
                    contestant: who.name().to_owned(),
                    expected,
                    found,
                });
            }
            Ok(elapsed.as_secs_f64() * 1e9 / (passes * callables.len()) as f64)
        })?;
        for (runner, samples) in runners.iter_mut().zip(taken) {
            runner.samples.extend(samples);
        }
        huge = populations.iter().find_map(|(_, population)| population.huge_mapped());
        for (who, population) in populations {
            population.free().map_err(failed("pack.call", who))?;
        }
    }
    let mean_bytes = programs.iter().map(|program| program.code().len()).sum::<usize>() / count;
    let huge = huge.map_or_else(String::new, |huge| {
        format!("; {} of {} KiB by huge pages", huge.mapped_bytes >> 10, huge.reserved_bytes >> 10)
    });
    for order in [Order::Sequence, Order::Random] {
        let measured = runners
            .iter()
            .filter(|runner| runner.order == order)
            .map(|runner| Measured {
                id: order.id(count, runner.who),
                contestant: Some(runner.who),
                samples: runner.samples.clone(),
                note: runner.who.is_ours().then(|| format!("mean length {mean_bytes} bytes{huge}")),
            })
            .collect();
        context.record_group(Unit::Nanoseconds, measured);
    }
    Ok(())
}

fn runners() -> Vec<Runner> {
    CONTESTANTS
        .into_iter()
        .flat_map(|who| [Order::Sequence, Order::Random].map(|order| Runner { who, order, samples: Vec::new() }))
        .collect()
}

/// Places all programs by each contestant and checks each program once. A rival that cannot is left out from now on.
fn place(
    context: &mut Context<'_>,
    contestants: &mut Vec<Contestant>,
    programs: &[Compiled],
) -> Result<Vec<(Contestant, Population)>, BenchError> {
    let count = programs.len();
    let mut populations = Vec::new();
    let mut refused = Vec::new();
    for &who in contestants.iter() {
        match who.open().and_then(|placer| Population::place(placer, programs)) {
            Ok(population) => {
                check(&population, who, programs)?;
                populations.push((who, population));
            }
            Err(error) if who.is_ours() => return Err(failed("pack.call", who)(error)),
            Err(error) => {
                for order in [Order::Sequence, Order::Random] {
                    context.skip_failed(order.id(count, who), &error);
                }
                refused.push(who);
            }
        }
    }
    contestants.retain(|who| !refused.contains(who));
    Ok(populations)
}

fn check(population: &Population, who: Contestant, programs: &[Compiled]) -> Result<(), BenchError> {
    for (found, program) in population.in_sequence().call_each(ARGUMENT).zip(programs) {
        let expected = program.evaluate(ARGUMENT);
        if found != expected {
            return Err(BenchError::WrongResult {
                id: format!("pack.call.{}", programs.len()),
                contestant: who.name().to_owned(),
                expected,
                found,
            });
        }
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

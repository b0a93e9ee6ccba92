//! `pack.threads`: loads per second when several threads load at once, each keeping its last few programs and freeing
//! the others.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use super::failed;
use crate::placers::{Contestant, Packed, Placer};
use crate::record::Unit;
use crate::sampler::interleave;
use crate::suite::{Group, Measured};
use crate::{BenchError, Context, PlaceError};

const THREADS: [usize; 3] = [1, 2, 4];

/// Length of each program in bytes.
const LENGTH: usize = 500;

/// Programs that a thread keeps.
const KEPT: usize = 64;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(20);

const CONTESTANTS: [Contestant; 2] = [Contestant::Packed, Contestant::PageEach];

fn id(threads: usize, who: Contestant) -> String {
    match who {
        Contestant::Packed => format!("pack.threads.{threads}"),
        _ => format!("pack.threads.{threads}.{}", who.name()),
    }
}

/// Loads of each thread in one sample: about the same time for both contestants.
fn loads(who: Contestant) -> usize {
    match who {
        Contestant::Packed => 100_000,
        _ => 4000,
    }
}

fn group(threads: usize) -> Group {
    Group {
        id: format!("pack.threads.{threads}"),
        title: format!("loads and frees per second, {threads} threads"),
        figures: CONTESTANTS.map(|who| id(threads, who)).into(),
    }
}

pub(super) fn groups() -> [Group; 3] {
    THREADS.map(group)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let wanted: Vec<usize> = THREADS.into_iter().filter(|&threads| context.wants(&group(threads))).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    context.begin("pack.threads");
    let packs = Packed::open().map_err(failed("pack.threads", Contestant::Packed))?;
    // All numbers of threads take part in every round, so that the scaling is not the drift of the machine.
    let mut runners: Vec<(usize, Contestant)> =
        wanted.iter().flat_map(|&threads| CONTESTANTS.map(|who| (threads, who))).collect();
    let taken = interleave(&mut runners, context.effort.rounds(11, 33, BUDGET), |&mut (threads, who)| {
        loads_per_second(threads, who, &packs).map_err(failed("pack.threads", who))
    })?;
    let median = |samples: &[f64]| crate::sampler::Summary::of(samples).map(|summary| summary.median);
    let alone =
        runners.iter().position(|&runner| runner == (1, Contestant::Packed)).and_then(|place| median(&taken[place]));
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    for threads in wanted {
        let measured = runners
            .iter()
            .zip(&taken)
            .filter(|((of, _), _)| *of == threads)
            .map(|(&(_, who), samples)| Measured {
                id: id(threads, who),
                contestant: Some(who),
                samples: samples.clone(),
                note: match (who, alone, median(samples)) {
                    (Contestant::Packed, Some(alone), Some(here)) => {
                        Some(format!("{:.2} × the rate of one thread, on {cores} CPUs", here / alone))
                    }
                    _ => None,
                },
            })
            .collect();
        context.record_group(Unit::PerSecond, measured);
        context.done();
    }
    Ok(())
}

fn loads_per_second(threads: usize, who: Contestant, packs: &Packed) -> Result<f64, PlaceError> {
    let start = Barrier::new(threads);
    let loads = loads(who);
    let work = || {
        let placer: Result<Box<dyn Placer>, PlaceError> = match who {
            Contestant::Packed => Ok(Box::new(packs.clone())),
            _ => who.open(),
        };
        // Also after an error: the others wait.
        start.wait();
        let mut placer = placer?;
        let started = Instant::now();
        load_and_free(&mut *placer, loads)?;
        Ok::<_, PlaceError>((started, Instant::now()))
    };
    let spans = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let first = spans.iter().map(|&(started, _)| started).min();
    let last = spans.iter().map(|&(_, ended)| ended).max();
    let elapsed = first.zip(last).map_or(0.0, |(first, last)| (last - first).as_secs_f64());
    Ok((loads * threads) as f64 / elapsed)
}

fn load_and_free(placer: &mut dyn Placer, loads: usize) -> Result<(), PlaceError> {
    let code = [0x90_u8; LENGTH];
    let mut kept = VecDeque::with_capacity(KEPT);
    for _ in 0..loads {
        if kept.len() == KEPT
            && let Some(oldest) = kept.pop_front()
        {
            placer.free(oldest)?;
        }
        kept.push_back(placer.load(&code)?);
    }
    for loaded in kept {
        placer.free(loaded)?;
    }
    placer.settle()
}

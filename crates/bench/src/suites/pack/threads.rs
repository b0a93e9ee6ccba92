//! `pack.threads`: loads per second when several threads load at once, each keeping its last few programs and freeing
//! the others.

use std::collections::VecDeque;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use crate::PlaceError;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Context, Group, Samples, failed};
use crate::placers::{Packed, Placer, Who};

const THREADS: [usize; 3] = [1, 2, 4];

/// Length of each program in bytes.
const LENGTH: usize = 500;

/// Programs that a thread keeps.
const KEPT: usize = 64;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(20);

const ALL: [Who; 2] = [Who::Packed, Who::PageEach];

fn id(threads: usize, who: Who) -> String {
    match who {
        Who::Packed => format!("pack.threads.{threads}"),
        _ => format!("pack.threads.{threads}.{}", who.name()),
    }
}

/// Returns the loads of each thread in one sample: about the same time for both contestants.
fn loads(who: Who) -> usize {
    match who {
        Who::Packed => 100_000,
        _ => 4000,
    }
}

fn group(threads: usize) -> Group {
    Group::new(
        format!("pack.threads.{threads}"),
        format!("loads and frees per second, {threads} threads"),
        ALL.map(|who| who.contestant(&ALL, Unit::PerSecond, |who| id(threads, who))),
    )
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
    let packs = Packed::open().map_err(failed("pack.threads", "packed"))?;
    // All numbers of threads take part in every round, so that drift of the machine does not look like scaling.
    let mut runners: Vec<(usize, Who)> = wanted.iter().flat_map(|&threads| ALL.map(|who| (threads, who))).collect();
    let mut samples = Samples::default();
    interleave(&mut runners, context.effort.rounds(11, 33, BUDGET), |&mut (threads, who)| {
        let rate = loads_per_second(threads, who, &packs).map_err(failed("pack.threads", who.name()))?;
        samples.add(&id(threads, who), rate);
        Ok::<(), BenchError>(())
    })?;
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let alone = samples.median(&id(1, Who::Packed));
    for threads in wanted {
        let own = id(threads, Who::Packed);
        if let Some((alone, here)) = alone.zip(samples.median(&own)) {
            samples.note(&own, format!("{:.2} × the rate of one thread, on {cores} CPUs", here / alone));
        }
        let group = group(threads);
        let own = samples.take(&group);
        context.record(&group, own);
    }
    Ok(())
}

fn loads_per_second(threads: usize, who: Who, packs: &Packed) -> Result<f64, PlaceError> {
    let start = Barrier::new(threads);
    let loads = loads(who);
    let work = || {
        let placer: Result<Box<dyn Placer>, PlaceError> = match who {
            Who::Packed => Ok(Box::new(packs.clone())),
            _ => who.open(),
        };
        // Also after an error, since the others wait.
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

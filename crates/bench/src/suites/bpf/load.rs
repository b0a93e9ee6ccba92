//! `bpf.load`: from byte code to a program that may run.

use std::time::Duration;

use super::apart::{self, Sampler};
use super::engine::{Contest, Refusal, Who};
use super::source::Source;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Context, Group, Samples, failed};

/// Instructions of a program.
const LENGTHS: [usize; 3] = [20, 100, 200];

/// Programs of one sample, all alive until its end.
const PROGRAMS: u64 = 500;

/// Time for all rounds of a length.
const BUDGET: Duration = Duration::from_secs(6);

const ALL: [Who; 9] = Who::ALL;

pub(super) fn groups() -> [Group; 3] {
    LENGTHS.map(group)
}

fn id(len: usize, who: Who) -> String {
    format!("bpf.load.{len}.{}", who.name())
}

fn group(len: usize) -> Group {
    let contestant = |who: Who| who.contestant(&ALL, Unit::Microseconds, |who| id(len, who)).note(who.note());
    let title = format!("one load of {len} instructions");
    Group::new(format!("bpf.load.{len}"), title, ALL.map(contestant))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for len in LENGTHS {
        let group = group(len);
        if !context.wants(&group) {
            continue;
        }
        context.begin(&group.id);
        let samples = measure(context, len, &group.id)?;
        context.record(&group, samples);
    }
    Ok(())
}

/// Programs of one length.
pub(super) fn sources(len: usize, count: u64) -> Result<Vec<Source>, Refusal> {
    (0..count).map(|number| Source::generated(len, number)).collect()
}

/// The programs of a sample.
pub(super) fn programs(len: usize) -> Result<Vec<Source>, Refusal> {
    sources(len, PROGRAMS)
}

fn measure(context: &Context<'_>, len: usize, group: &str) -> Result<Samples, BenchError> {
    let sources = programs(len).map_err(failed(group, "the assembler"))?;
    let mut samples = Samples::default();
    let mut runners = Vec::new();
    for who in ALL {
        let id = id(len, who);
        let here = |engine| sampler(len, who, engine, &sources);
        let sampler = apart::sampler(context, &mut samples, (group, &id), who, here)?;
        runners.extend(sampler.map(|sampler| (id, sampler)));
    }
    interleave(&mut runners, context.effort.rounds(15, 60, BUDGET), |(id, sampler)| {
        samples.add(id, sampler()?);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// Returns what samples the loads of `engine`, which belongs to `who`.
pub(super) fn sampler(
    len: usize,
    who: Who,
    mut engine: Box<dyn Contest>,
    sources: &[Source],
) -> Result<Sampler, BenchError> {
    let id = id(len, who);
    let sources = who.prepared(sources.to_vec()).map_err(failed(&id, who.name()))?;
    let mut taken = move || sample(&mut *engine, &sources).map_err(failed(&id, who.name()));
    // The first sample pays for the first memory; the figure is about a running system.
    taken()?;
    Ok(Box::new(taken))
}

/// Returns microseconds per program. Ending programs is not timed.
fn sample(engine: &mut dyn Contest, sources: &[Source]) -> Result<f64, Refusal> {
    let started = Stopwatch::start();
    engine.load(sources)?;
    let elapsed = started.elapsed();
    engine.clear()?;
    Ok(elapsed.as_secs_f64() * 1e6 / sources.len() as f64)
}

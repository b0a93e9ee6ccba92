//! `bpf.load`: from byte code to a program that may run.

use std::time::Duration;

use super::engine::{Contest, Refusal, Who};
use super::source::Source;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Context, Group, Samples, failed};

/// Instructions of a program.
const LENGTHS: [usize; 3] = [20, 100, 200];

/// Programs of one sample, all alive until its end.
const PROGRAMS: u64 = 500;

/// Time for all rounds of a length.
const BUDGET: Duration = Duration::from_secs(6);

const ALL: [Who; 6] = [Who::Jit, Who::VerifyJit, Who::Interp, Who::Rbpf, Who::RbpfInterp, Who::SolanaSbpf];

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
        let samples = measure(len, &ALL, context.effort.rounds(15, 60, BUDGET))?;
        context.record(&group, samples);
    }
    Ok(())
}

/// Programs of one length.
pub(super) fn sources(len: usize, count: u64) -> Result<Vec<Source>, Refusal> {
    (0..count).map(|number| Source::generated(len, number)).collect()
}

/// Samples the loads of `all`.
fn measure(len: usize, all: &[Who], rounds: Rounds) -> Result<Samples, BenchError> {
    let sources = sources(len, PROGRAMS).map_err(failed("bpf.load", "the assembler"))?;
    let mut samples = Samples::default();
    let mut runners: Vec<(Who, Box<dyn Contest>)> = Vec::new();
    for &who in all {
        match who.open() {
            // The first sample pays for the first memory; the figure is about a running system.
            Ok(mut engine) => {
                sample(&mut *engine, &sources).map_err(failed(&id(len, who), who.name()))?;
                runners.push((who, engine));
            }
            Err(refusal) => samples.refuse(&id(len, who), refusal.to_string()),
        }
    }
    interleave(&mut runners, rounds, |(who, engine)| {
        let taken = sample(&mut **engine, &sources).map_err(failed(&id(len, *who), who.name()))?;
        samples.add(&id(len, *who), taken);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// Returns microseconds per program. Ending programs is not timed.
fn sample(engine: &mut dyn Contest, sources: &[Source]) -> Result<f64, Refusal> {
    let started = Stopwatch::start();
    engine.load(sources)?;
    let elapsed = started.elapsed();
    engine.clear()?;
    Ok(elapsed.as_secs_f64() * 1e6 / sources.len() as f64)
}

//! `bpf.roundrobin`: what one call costs when many programs of 100 instructions take turns.

use std::hint::black_box;
use std::time::Duration;

use super::call::name;
use super::engine::{Contest, Refusal, Who};
use super::load::sources;
use super::source::Source;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Context, Group, Samples, expect, failed};

const COUNTS: [u64; 2] = [1000, 20_000];

/// Instructions of a program.
const LEN: usize = 100;

/// Calls in one sample.
const CALLS: u64 = 100_000;

/// Time for the rounds of one number of programs.
const BUDGET: Duration = Duration::from_secs(6);

/// Returns who takes part. A program of `solana-sbpf` has mappings of its own: 20 000 of them come close to the number
/// that a process may have.
const fn all(count: u64) -> &'static [Who] {
    if count > 1000 { &[Who::VerifyJit, Who::Rbpf] } else { &[Who::VerifyJit, Who::Rbpf, Who::SolanaSbpf] }
}

fn id(count: u64, who: Who) -> String {
    format!("bpf.roundrobin.{count}.{}", name(who))
}

fn group(count: u64) -> Group {
    let all = all(count);
    let contestants = all.iter().map(|who| who.contestant(all, Unit::Nanoseconds, |who| id(count, who)));
    Group::new(format!("bpf.roundrobin.{count}"), format!("one call, {count} programs taking turns"), contestants)
}

pub(super) fn groups() -> [Group; 2] {
    COUNTS.map(group)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for count in COUNTS {
        let group = group(count);
        if !context.wants(&group) {
            continue;
        }
        context.begin(&group.id);
        let samples = measure(context, count)?;
        context.record(&group, samples);
    }
    Ok(())
}

fn measure(context: &Context<'_>, count: u64) -> Result<Samples, BenchError> {
    let group = format!("bpf.roundrobin.{count}");
    let sources = sources(LEN, count).map_err(failed(&group, "the assembler"))?;
    let mut samples = Samples::default();
    let mut runners: Vec<(Who, Box<dyn Contest>)> = Vec::new();
    for &who in all(count) {
        match who.open() {
            Ok(mut engine) => {
                engine.load(&sources).map_err(failed(&id(count, who), who.name()))?;
                runners.push((who, engine));
            }
            Err(refusal) => samples.refuse(&id(count, who), refusal.to_string()),
        }
    }
    // Programs write to the context that the next one reads.
    let expected = by_interpreter(&sources).map_err(failed(&group, "the interpreter"))?;
    for (who, engine) in &runners {
        let found = engine.pass(&mut sources[0].fresh_context()).map_err(failed(&group, who.name()))?;
        expect(&group, who.name(), expected, found)?;
    }
    let passes = (CALLS / count).max(2);
    interleave(&mut runners, context.effort.rounds(20, 100, BUDGET), |(who, engine)| {
        let run = || -> Result<f64, Refusal> {
            let mut bytes = sources[0].fresh_context();
            engine.pass(&mut bytes)?;
            let started = Stopwatch::start();
            for _ in 0..passes {
                black_box(engine.pass(black_box(&mut bytes))?);
            }
            Ok(started.elapsed().as_secs_f64() * 1e9 / (passes * count) as f64)
        };
        samples.add(&id(count, *who), run().map_err(failed(&group, who.name()))?);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

fn by_interpreter(sources: &[Source]) -> Result<u64, Refusal> {
    let mut engine = Who::Interp.open()?;
    engine.load(sources)?;
    engine.pass(&mut sources[0].fresh_context())
}

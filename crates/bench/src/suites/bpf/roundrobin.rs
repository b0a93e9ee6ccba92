//! `bpf.roundrobin`: what one call costs when many programs of 100 instructions take turns.

use std::hint::black_box;
use std::time::Duration;

use super::apart::{self, Sampler};
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

/// Returns who takes part. Programs of most peers have mappings of their own: 20 000 of them come close to the number
/// that a process may have, or need gigabytes.
const fn all(count: u64) -> &'static [Who] {
    if count > 1000 {
        return &[Who::VerifyJit, Who::Rbpf];
    }
    &[Who::VerifyJit, Who::Rbpf, Who::SolanaSbpf, Who::SolanaSbpfBare, Who::Ubpf, Who::AsyncEbpf]
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

/// The programs that take turns.
pub(super) fn programs(count: u64) -> Result<Vec<Source>, Refusal> {
    sources(LEN, count)
}

fn measure(context: &Context<'_>, count: u64) -> Result<Samples, BenchError> {
    let group = format!("bpf.roundrobin.{count}");
    let sources = programs(count).map_err(failed(&group, "the assembler"))?;
    let mut samples = Samples::default();
    let mut runners = Vec::new();
    for &who in all(count) {
        let id = id(count, who);
        let here = |engine| sampler(count, who, engine, &sources);
        let sampler = apart::sampler(context, &mut samples, (&group, &id), who, here)?;
        runners.extend(sampler.map(|sampler| (id, sampler)));
    }
    interleave(&mut runners, context.effort.rounds(20, 100, BUDGET), |(id, sampler)| {
        samples.add(id, sampler()?);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// Returns what samples the calls of `engine`, which belongs to `who`, and returns what it should.
pub(super) fn sampler(
    count: u64,
    who: Who,
    mut engine: Box<dyn Contest>,
    sources: &[Source],
) -> Result<Sampler, BenchError> {
    let (id, name) = (id(count, who), who.name());
    let prepared = who.prepared(sources.to_vec()).map_err(failed(&id, name))?;
    engine.load(&prepared).map_err(failed(&id, name))?;
    let context = sources[0].fresh_context();
    let expected = by_interpreter(sources, who).map_err(failed(&id, "the interpreter"))?;
    expect(&id, name, expected, engine.pass(&mut context.clone()).map_err(failed(&id, name))?)?;
    let passes = (CALLS / count).max(2);
    Ok(Box::new(move || {
        let run = || -> Result<f64, Refusal> {
            let mut bytes = context.clone();
            engine.pass(&mut bytes)?;
            let started = Stopwatch::start();
            for _ in 0..passes {
                black_box(engine.pass(black_box(&mut bytes))?);
            }
            Ok(started.elapsed().as_secs_f64() * 1e9 / (passes * count) as f64)
        };
        run().map_err(failed(&id, name))
    }))
}

/// Returns the sum of the results. Programs write to the context that the next one reads, unless each gets a copy.
fn by_interpreter(sources: &[Source], who: Who) -> Result<u64, Refusal> {
    if who.copies_context() {
        return sources.iter().try_fold(0_u64, |sum, source| Ok(sum.wrapping_add(source.expected()?)));
    }
    let mut engine = Who::Interp.open()?;
    engine.load(sources)?;
    engine.pass(&mut sources[0].fresh_context())
}

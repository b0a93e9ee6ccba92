//! `bpf.call`: what a call costs, of the same program again and again.

use std::time::Duration;

use super::apart::{self, Sampler};
use super::engine::{Contest, Refusal, Who};
use super::map;
use super::source::Source;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, expect, failed};

/// Time for all rounds of a program.
const BUDGET: Duration = Duration::from_secs(4);

/// Time that a sample should take, in nanoseconds.
const SAMPLE: f64 = 2e6;

/// Who runs: [`Who::VerifyJit`] loads what [`Who::Jit`] also makes, and has that name here.
const ALL: [Who; 8] = [
    Who::VerifyJit,
    Who::Rbpf,
    Who::Ubpf,
    Who::SolanaSbpfBare,
    Who::SolanaSbpf,
    Who::AsyncEbpf,
    Who::Interp,
    Who::RbpfInterp,
];

pub(super) fn name(who: Who) -> &'static str {
    if who == Who::VerifyJit { "jit" } else { who.name() }
}

/// A program that all engines run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Program {
    Trivial,
    Fnv1k,
    Bubble64,
    Filter,
}

impl Program {
    const ALL: [Self; 4] = [Self::Trivial, Self::Fnv1k, Self::Bubble64, Self::Filter];

    /// Its name in ids.
    fn name(self) -> &'static str {
        match self {
            Self::Trivial => "trivial",
            Self::Fnv1k => "fnv1k",
            Self::Bubble64 => "bubble64",
            Self::Filter => "filter",
        }
    }

    /// The one with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|program| program.name() == name)
    }

    fn id(self) -> String {
        format!("bpf.call.{}", self.name())
    }

    /// Returns who runs it.
    fn contestants(self) -> Vec<Who> {
        // Its context is longer than the 512 bytes that async-ebpf allows.
        let too_long = |who| self == Self::Fnv1k && who == Who::AsyncEbpf;
        ALL.into_iter().filter(|who| !too_long(*who)).collect()
    }

    fn group(self) -> Group {
        let title = match self {
            Self::Trivial => "one call of a program that returns a number",
            Self::Fnv1k => "FNV-1a of 1 KiB",
            Self::Bubble64 => "64 numbers made and sorted",
            Self::Filter => "a packet looked at by a filter",
        };
        let (id, all) = (self.id(), self.contestants());
        let figure = |who: Who| format!("{id}.{}", name(who));
        let contestants: Vec<Contestant> =
            all.iter().map(|who| who.contestant(&all, Unit::Nanoseconds, figure)).collect();
        Group::new(id.clone(), title, contestants)
    }

    fn source(self) -> Result<Source, Refusal> {
        match self {
            Self::Trivial => Source::trivial(),
            Self::Fnv1k => Source::fnv1k(),
            Self::Bubble64 => Source::bubble64(),
            Self::Filter => Source::filter(),
        }
    }
}

/// A program with a map, which no peer runs.
fn map_lookup() -> Group {
    let id = "bpf.call.map_lookup";
    let figure = Contestant::new(format!("{id}.jit"), Unit::Nanoseconds).in_packs();
    let figure = figure.note("HostedProgram::run_read_only of a program that adds 1 to a value of an array");
    Group::new(id, "one call of a program with one look-up", [figure])
}

pub(super) fn groups() -> Vec<Group> {
    Program::ALL.into_iter().map(Program::group).chain([map_lookup()]).collect()
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for program in Program::ALL {
        let group = program.group();
        if context.wants(&group) {
            context.begin(&group.id);
            let samples = measure(context, program, &group.id)?;
            context.record(&group, samples);
        }
    }
    let group = map_lookup();
    if context.wants(&group) {
        context.begin(&group.id);
        let samples = map::one_lookup(&group.contestants[0].id, context.effort.rounds(30, 120, BUDGET));
        context.record(&group, samples.map_err(failed(&group.id, "jit"))?);
    }
    Ok(())
}

fn measure(context: &Context<'_>, program: Program, group: &str) -> Result<Samples, BenchError> {
    let mut samples = Samples::default();
    let mut runners = Vec::new();
    for who in program.contestants() {
        let id = format!("{group}.{}", name(who));
        let here = |engine| sampler(program, who, engine);
        let sampler = apart::sampler(context, &mut samples, (group, &id), who, here)?;
        runners.extend(sampler.map(|sampler| (id, sampler)));
    }
    interleave(&mut runners, context.effort.rounds(30, 200, BUDGET), |(id, sampler)| {
        samples.add(id, sampler()?);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// Returns what samples the calls of `engine`, which belongs to `who`, and returns what it should.
pub(super) fn sampler(program: Program, who: Who, mut engine: Box<dyn Contest>) -> Result<Sampler, BenchError> {
    let (id, name) = (format!("{}.{}", program.id(), name(who)), name(who));
    let source = program.source().map_err(failed(&id, "the assembler"))?;
    let expected = source.expected().map_err(failed(&id, "the interpreter"))?;
    let mut context = source.fresh_context();
    let prepared = who.prepared(vec![source]).map_err(failed(&id, name))?;
    engine.load(&prepared).map_err(failed(&id, name))?;
    expect(&id, name, expected, engine.call(1, &mut context).map_err(failed(&id, name))?)?;
    let mut times = 1;
    // So many calls that the clock's own time does not count.
    while let Ok(taken) = nanoseconds(&*engine, times, &mut context)
        && taken * (times as f64) < SAMPLE
    {
        times *= 2;
    }
    Ok(Box::new(move || nanoseconds(&*engine, times, &mut context).map_err(failed(&id, name))))
}

/// Nanoseconds of a call.
fn nanoseconds(engine: &dyn Contest, times: u64, context: &mut [u8]) -> Result<f64, Refusal> {
    engine.call(times / 10 + 1, context)?;
    let started = Stopwatch::start();
    engine.call(times, context)?;
    Ok(started.elapsed().as_secs_f64() * 1e9 / times as f64)
}

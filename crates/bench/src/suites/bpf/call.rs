//! `bpf.call`: what a call costs, of the same program again and again.

use std::time::Duration;

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
const ALL: [Who; 5] = [Who::VerifyJit, Who::Rbpf, Who::SolanaSbpf, Who::Interp, Who::RbpfInterp];

pub(super) fn name(who: Who) -> &'static str {
    if who == Who::VerifyJit { "jit" } else { who.name() }
}

/// A program that all engines run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Program {
    Trivial,
    Fnv1k,
    Bubble64,
    Filter,
}

impl Program {
    const ALL: [Self; 4] = [Self::Trivial, Self::Fnv1k, Self::Bubble64, Self::Filter];

    fn group(self) -> Group {
        let (name, title) = match self {
            Self::Trivial => ("trivial", "one call of a program that returns a number"),
            Self::Fnv1k => ("fnv1k", "FNV-1a of 1 KiB"),
            Self::Bubble64 => ("bubble64", "64 numbers made and sorted"),
            Self::Filter => ("filter", "a packet looked at by a filter"),
        };
        let id = format!("bpf.call.{name}");
        let contestants =
            ALL.map(|who| who.contestant(&ALL, Unit::Nanoseconds, |who| format!("{id}.{}", self::name(who))));
        Group::new(id, title, contestants)
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

struct Runner {
    id: String,
    name: &'static str,
    engine: Box<dyn Contest>,
    context: Vec<u8>,
    times: u64,
}

fn measure(context: &Context<'_>, program: Program, group: &str) -> Result<Samples, BenchError> {
    let source = program.source().map_err(failed(group, "the assembler"))?;
    let expected = source.expected().map_err(failed(group, "the interpreter"))?;
    let mut samples = Samples::default();
    let mut runners = Vec::new();
    for who in ALL {
        let (id, name) = (format!("{group}.{}", name(who)), name(who));
        let mut engine = match who.open() {
            Ok(engine) => engine,
            Err(refusal) => {
                samples.refuse(&id, refusal.to_string());
                continue;
            }
        };
        engine.load(std::slice::from_ref(&source)).map_err(failed(&id, name))?;
        let mut context = source.fresh_context();
        expect(&id, name, expected, engine.call(1, &mut context).map_err(failed(&id, name))?)?;
        let mut runner = Runner { id, name, engine, context, times: 1 };
        // So many calls that the clock's own time does not count.
        while let Ok(taken) = nanoseconds(&mut runner)
            && taken * (runner.times as f64) < SAMPLE
        {
            runner.times *= 2;
        }
        runners.push(runner);
    }
    interleave(&mut runners, context.effort.rounds(30, 200, BUDGET), |runner| {
        let taken = nanoseconds(runner).map_err(failed(&runner.id, runner.name))?;
        samples.add(&runner.id, taken);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// Nanoseconds of a call.
fn nanoseconds(runner: &mut Runner) -> Result<f64, Refusal> {
    runner.engine.call(runner.times / 10 + 1, &mut runner.context)?;
    let started = Stopwatch::start();
    runner.engine.call(runner.times, &mut runner.context)?;
    Ok(started.elapsed().as_secs_f64() * 1e9 / runner.times as f64)
}

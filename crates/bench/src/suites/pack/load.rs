//! `pack.load`: from bytes to a runnable program, without code generation.

use std::time::Duration;

use crate::PlaceError;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Context, Group, Samples, failed};
use crate::placers::{Loaded, Placer, Who};
use crate::programs::{Compiled, compile_all};
use palimpsest_sys::Causes;

const ID: &str = "pack.load";

/// Programs of one sample, all alive until its end.
const PROGRAMS: usize = 2000;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(20);

/// The most important rival comes first: it becomes the baseline.
const ALL: [Who; 10] = [
    Who::Packed,
    Who::PackedBatch,
    Who::PackedCranelift,
    Who::PackedDuringCopies,
    Who::PackedNoView,
    Who::PageEach,
    Who::JitAllocator,
    Who::CraneliftJit,
    Who::CraneliftJitBatch,
    Who::Copy,
];

pub(super) fn group() -> Group {
    let contestants = ALL.map(|who| who.contestant(&ALL, Unit::Microseconds, id).note(note(who)));
    Group::new(ID, "one load: place and make executable", contestants)
}

fn id(who: Who) -> String {
    format!("{ID}.{}", who.name())
}

fn note(who: Who) -> &'static str {
    match who {
        Who::Packed => "program by program, into packs that exist",
        Who::PackedBatch => "staged one by one, finalised together",
        Who::PackedCranelift => "palimpsest-cranelift: define_function_bytes + finalize_definitions each",
        Who::PackedDuringCopies => "WriteView::DuringCopies: the write view is opened and closed for each program",
        Who::PackedNoView => "WriteView::None: through /proc/self/mem, opened for each program",
        Who::PageEach => "mmap, copy, mprotect",
        Who::Bucket128k => "mmap of 128 KiB, copy, mprotect",
        Who::JitAllocator => "alloc, copy, flush; defaults",
        Who::CraneliftJit => "define_function_bytes + finalize_definitions each",
        Who::CraneliftJitBatch => "define_function_bytes each, one finalize_definitions",
        Who::Copy => "memcpy into memory that is present: the floor",
    }
}

struct Runner {
    who: Who,
    placer: Box<dyn Placer>,
    loaded: Vec<Loaded>,
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let programs = compile_all(PROGRAMS).map_err(failed(ID, "the compiler"))?;
    let mut samples = measure(&programs, &ALL, context.effort.rounds(15, 42, BUDGET))?;
    let bytes = programs.iter().map(|program| program.code().len()).sum::<usize>() / PROGRAMS;
    ALL.into_iter().for_each(|who| samples.note(&id(who), format!("{bytes} bytes")));
    context.record(&group, samples);
    Ok(())
}

/// Contestants in the tour.
const TOUR: [Who; 2] = [Who::PageEach, Who::Packed];

/// Returns the tour's figures.
pub(in crate::suites) fn tour_group() -> Group {
    Group { title: "loading a function of 400 bytes".to_owned(), ..group().only(&TOUR.map(id)) }
}

/// Returns the tour's samples.
pub(in crate::suites) fn tour(rounds: Rounds) -> Result<Samples, BenchError> {
    let programs = compile_all(PROGRAMS).map_err(failed(ID, "the compiler"))?;
    measure(&programs, &TOUR, rounds)
}

/// Returns samples of loads for those of `all`.
fn measure(programs: &[Compiled], all: &[Who], rounds: Rounds) -> Result<Samples, BenchError> {
    let codes: Vec<&[u8]> = programs.iter().map(Compiled::code).collect();
    let mut samples = Samples::default();
    let mut runners = Vec::new();
    for &who in all {
        match who.open() {
            Ok(placer) => runners.push(Runner { who, placer, loaded: Vec::with_capacity(programs.len()) }),
            Err(error) => samples.refuse(&id(who), Causes(&error).to_string()),
        }
    }
    for runner in &mut runners {
        // The first sample of a placer pays for its first blocks, but the figure is about a running system.
        sample(runner, &codes).map_err(failed(ID, runner.who.name()))?;
    }
    interleave(&mut runners, rounds, |runner| {
        let taken = sample(runner, &codes).map_err(failed(ID, runner.who.name()))?;
        samples.add(&id(runner.who), taken);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// Returns microseconds per program. Frees are not timed.
fn sample(runner: &mut Runner, codes: &[&[u8]]) -> Result<f64, PlaceError> {
    let started = Stopwatch::start();
    runner.placer.load_all(codes, &mut runner.loaded)?;
    let elapsed = started.elapsed();
    for loaded in runner.loaded.drain(..) {
        runner.placer.free(loaded)?;
    }
    runner.placer.settle()?;
    Ok(elapsed.as_secs_f64() * 1e6 / codes.len() as f64)
}

//! `pack.load`: from bytes to a program that may run, code generation left out.

use std::time::Duration;

use super::{failed, group_of};
use crate::clock::Stopwatch;
use crate::placers::{Contestant, Loaded, Placer};
use crate::programs::{Compiled, compile_all};
use crate::record::Unit;
use crate::sampler::interleave;
use crate::suite::{Group, Measured};
use crate::{BenchError, Context, PlaceError};

const ID: &str = "pack.load";

/// Programs of one sample, all alive until its end.
const PROGRAMS: usize = 2000;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(20);

/// The most important rival comes first: it becomes the baseline.
const CONTESTANTS: [Contestant; 10] = [
    Contestant::Packed,
    Contestant::PackedBatch,
    Contestant::PackedCranelift,
    Contestant::PackedDuringCopies,
    Contestant::PackedNoView,
    Contestant::PageEach,
    Contestant::JitAllocator,
    Contestant::CraneliftJit,
    Contestant::CraneliftJitBatch,
    Contestant::Copy,
];

pub(super) fn group() -> Group {
    group_of(ID, "one load: place and make executable", &CONTESTANTS)
}

fn note(who: Contestant) -> &'static str {
    match who {
        Contestant::Packed => "program by program, into packs that exist",
        Contestant::PackedBatch => "staged one by one, finalised together",
        Contestant::PackedCranelift => "palimpsest-cranelift: define_function_bytes + finalize_definitions each",
        Contestant::PackedDuringCopies => {
            "WriteView::DuringCopies: the write view is opened and closed for each program"
        }
        Contestant::PackedNoView => "WriteView::None: through /proc/self/mem, opened for each program",
        Contestant::PageEach => "mmap, copy, mprotect",
        Contestant::Bucket128k => "mmap of 128 KiB, copy, mprotect",
        Contestant::JitAllocator => "alloc, copy, flush; defaults",
        Contestant::CraneliftJit => "define_function_bytes + finalize_definitions each",
        Contestant::CraneliftJitBatch => "define_function_bytes each, one finalize_definitions",
        Contestant::Copy => "memcpy into memory that is present: the floor",
    }
}

struct Runner {
    who: Contestant,
    placer: Box<dyn Placer>,
    loaded: Vec<Loaded>,
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    if !context.wants(&group()) {
        return Ok(());
    }
    context.begin(ID);
    let programs = compile_all(PROGRAMS)?;
    let codes: Vec<&[u8]> = programs.iter().map(Compiled::code).collect();
    let bytes = codes.iter().map(|code| code.len()).sum::<usize>() / PROGRAMS;
    let mut runners = Vec::new();
    for who in CONTESTANTS {
        match who.open() {
            Ok(placer) => runners.push(Runner { who, placer, loaded: Vec::with_capacity(PROGRAMS) }),
            Err(error) => context.skip_failed(format!("{ID}.{}", who.name()), &error),
        }
    }
    for runner in &mut runners {
        // The first sample of a placer pays for its first blocks; the figure is about a running system.
        sample(runner, &codes).map_err(failed(ID, runner.who))?;
    }
    let taken = interleave(&mut runners, context.effort.rounds(15, 42, BUDGET), |runner| {
        sample(runner, &codes).map_err(failed(ID, runner.who))
    })?;
    let measured = runners
        .iter()
        .zip(taken)
        .map(|(runner, samples)| Measured {
            id: format!("{ID}.{}", runner.who.name()),
            contestant: Some(runner.who),
            samples,
            note: Some(format!("{}; {bytes} bytes", note(runner.who))),
        })
        .collect();
    context.record_group(Unit::Microseconds, measured);
    context.done();
    Ok(())
}

/// Microseconds per program. The frees are not timed.
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

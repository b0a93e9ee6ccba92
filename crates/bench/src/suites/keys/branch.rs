//! `keys.branch`: a loop with one branch that is not taken, decided in different ways. `keys.branches`: a loop with 56
//! in a row.
//!
//! The loops do nothing else, so that the CPU's throughput limits them, not the latency of other work that would hide
//! the branch. But a short loop takes the cycle of its own jump, in which a wide CPU has room for a branch. A row of
//! branches shows how much of that room each takes.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palimpsest_text::key::State;
use palimpsest_text::{branch, static_key};

use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, expect, failed};
use crate::repeat::times_56;

/// Branches of one sample: some milliseconds.
const BRANCHES: u64 = 4_000_000;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(8);

static_key! {
    static OFF: "bench.branch.off" = off;
    static ON: "bench.branch.on" = off;
}

static FLAG: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Off,
    On,
    AtomicLoad,
    TracingEvent,
    None,
}

const KINDS: [Kind; 5] = [Kind::Off, Kind::On, Kind::AtomicLoad, Kind::TracingEvent, Kind::None];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::On => "on",
            Self::AtomicLoad => "atomic_load",
            Self::TracingEvent => "tracing_event",
            Self::None => "none",
        }
    }

    fn note(self) -> &'static str {
        match self {
            Self::Off => "branch!(unlikely KEY), the key is off",
            Self::On => "branch!(unlikely KEY), the key is on: a jump out of line and one back",
            Self::AtomicLoad => "a relaxed load of an AtomicBool",
            Self::TracingEvent => "tracing::event! of a level that is off",
            Self::None => "the loop alone",
        }
    }
}

/// How many branches a round of the loop has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    One,
    Row,
}

impl Shape {
    const ALL: [Self; 2] = [Self::One, Self::Row];

    fn id(self, kind: Kind) -> String {
        format!("{}.{}", self.name(), kind.name())
    }

    fn name(self) -> &'static str {
        match self {
            Self::One => "keys.branch",
            Self::Row => "keys.branches",
        }
    }

    fn group(self) -> Group {
        let title = match self {
            Self::One => "one pass of a loop with one branch",
            Self::Row => "one of 56 branches in a row",
        };
        let contestant = |kind: Kind| {
            let contestant = Contestant::new(self.id(kind), Unit::Nanoseconds).note(kind.note());
            match kind {
                Kind::Off | Kind::On => contestant.against(self.rivals().iter().map(|&rival| self.id(rival))),
                _ => contestant,
            }
        };
        Group::new(self.name(), title, KINDS.map(contestant))
    }

    /// Returns the rivals of a branch, the baseline first: a single branch should cost nothing, and one in a row no
    /// more than what it replaces.
    fn rivals(self) -> &'static [Kind] {
        match self {
            Self::One => &[Kind::None, Kind::AtomicLoad, Kind::TracingEvent],
            Self::Row => &[Kind::AtomicLoad, Kind::TracingEvent],
        }
    }

    fn branches(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Row => 56,
        }
    }

    /// Runs a loop of this many rounds.
    fn run(self, kind: Kind, passes: u64) {
        let looping = match (self, kind) {
            (Self::One, Kind::Off) => one_off,
            (Self::One, Kind::On) => one_on,
            (Self::One, Kind::AtomicLoad) => one_atomic_load,
            (Self::One, Kind::TracingEvent) => one_tracing_event,
            (Self::One, Kind::None) => one_none,
            (Self::Row, Kind::Off) => row_off,
            (Self::Row, Kind::On) => row_on,
            (Self::Row, Kind::AtomicLoad) => row_atomic_load,
            (Self::Row, Kind::TracingEvent) => row_tracing_event,
            (Self::Row, Kind::None) => row_none,
        };
        looping(passes);
    }
}

/// Makes two functions that run a block many times: once in a round, and in a row.
macro_rules! looping {
    ($one:ident, $row:ident, $body:block) => {
        #[inline(never)]
        fn $one(passes: u64) {
            for _ in 0..passes {
                $body
                // A compiler barrier, so that the compiler keeps the loop.
                black_box(());
            }
        }

        #[inline(never)]
        fn $row(passes: u64) {
            for _ in 0..passes {
                times_56!({
                    $body
                    black_box(());
                });
            }
        }
    };
}

looping!(one_off, row_off, {
    if branch!(unlikely OFF) {
        taken();
    }
});
looping!(one_on, row_on, {
    if branch!(unlikely ON) {
        black_box(());
    }
});
looping!(one_atomic_load, row_atomic_load, {
    // Relaxed: like a key, the flag orders nothing.
    if FLAG.load(Ordering::Relaxed) {
        taken();
    }
});
looping!(one_tracing_event, row_tracing_event, {
    tracing::event!(tracing::Level::TRACE, "a pass");
});
looping!(one_none, row_none, {});

#[cold]
#[inline(never)]
fn taken() {
    black_box(());
}

pub(super) fn groups() -> [Group; 2] {
    Shape::ALL.map(Shape::group)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for shape in Shape::ALL {
        let group = shape.group();
        if context.wants(&group) {
            context.begin(&group.id);
            let samples = measure(context, shape)?;
            context.record(&group, samples);
        }
    }
    Ok(())
}

fn measure(context: &Context<'_>, shape: Shape) -> Result<Samples, BenchError> {
    let id = shape.name();
    let switch = |state| ON.set(state).map_err(failed(id, "on"));
    // Whoever has the address may store to it: the compiler must not know that nobody does.
    black_box(&FLAG);
    let switched = switch(State::On)?.sites;
    // All branches on the key, in both shapes; on machines without patching, none.
    expect(id, "on", ON.sites().len() as u64, switched as u64)?;
    let mut samples = Samples::default();
    interleave(&mut KINDS.to_vec(), context.effort.rounds(60, 240, BUDGET), |&mut kind| {
        samples.add(&shape.id(kind), nanoseconds(shape, kind));
        Ok::<(), BenchError>(())
    })?;
    switch(State::Off)?;
    Ok(samples)
}

/// Returns nanoseconds per branch.
fn nanoseconds(shape: Shape, kind: Kind) -> f64 {
    let passes = BRANCHES / shape.branches();
    // Train the predictors: they know another loop.
    shape.run(kind, black_box(passes / 100));
    let started = Stopwatch::start();
    shape.run(kind, black_box(passes));
    started.elapsed().as_secs_f64() * 1e9 / (passes * shape.branches()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_loop_ends() {
        for shape in Shape::ALL {
            for kind in KINDS {
                shape.run(kind, 3);
            }
        }
    }
}

//! `keys.branch`: a loop with one branch that is not taken, decided in different ways.
//!
//! The loop does nothing else, so that it is bound by what the CPU can do in a cycle, and not by the latency of some other work behind
//! which the branch would hide.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use palimpsest_text::key::State;
use palimpsest_text::{branch, static_key};

use super::failed;
use crate::clock::Stopwatch;
use crate::record::{Entry, Unit};
use crate::sampler::{Summary, interleave};
use crate::suite::Group;
use crate::{BenchError, Context, PlaceError};

const ID: &str = "keys.branch";

/// Passes of one sample: some milliseconds.
const PASSES: u64 = 4_000_000;

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
    fn id(self) -> String {
        let name = match self {
            Self::Off => "off",
            Self::On => "on",
            Self::AtomicLoad => "atomic_load",
            Self::TracingEvent => "tracing_event",
            Self::None => "none",
        };
        format!("{ID}.{name}")
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

    fn run(self, passes: u64) {
        match self {
            Self::Off => pass_off(passes),
            Self::On => pass_on(passes),
            Self::AtomicLoad => pass_atomic_load(passes),
            Self::TracingEvent => pass_tracing_event(passes),
            Self::None => pass_none(passes),
        }
    }
}

/// A function that runs a block so many times.
macro_rules! looping {
    ($name:ident, $body:block) => {
        #[inline(never)]
        fn $name(passes: u64) {
            for _ in 0..passes {
                $body
                // Nothing but a barrier for the compiler: it leaves the loop as it is.
                black_box(());
            }
        }
    };
}

looping!(pass_off, {
    if branch!(unlikely OFF) {
        taken();
    }
});
looping!(pass_on, {
    if branch!(unlikely ON) {
        black_box(());
    }
});
looping!(pass_atomic_load, {
    // Relaxed: a flag that orders nothing, as a key.
    if FLAG.load(Ordering::Relaxed) {
        taken();
    }
});
looping!(pass_tracing_event, {
    tracing::event!(tracing::Level::TRACE, "a pass");
});
looping!(pass_none, {});

#[cold]
#[inline(never)]
fn taken() {
    black_box(());
}

pub(super) fn group() -> Group {
    Group {
        id: ID.to_owned(),
        title: "one pass of a loop with one branch".to_owned(),
        figures: KINDS.map(Kind::id).into(),
    }
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    if !context.wants(&group()) {
        return Ok(());
    }
    context.begin(ID);
    // Whoever has the address may store to it: the compiler must not know that nobody does.
    black_box(&FLAG);
    let switch_on = |state| ON.set(state).map(drop).map_err(|error| failed(ID, "on")(PlaceError::from(error)));
    switch_on(State::On)?;
    let taken = interleave(&mut KINDS.to_vec(), context.effort.rounds(60, 240, BUDGET), |kind| {
        Ok::<f64, BenchError>(nanoseconds(*kind))
    })?;
    switch_on(State::Off)?;
    let mut entries = Vec::new();
    for (kind, samples) in KINDS.iter().zip(taken) {
        if let Some(summary) = Summary::of(&samples) {
            entries.push((*kind, Entry::new(kind.id(), Unit::Nanoseconds, summary).with_note(kind.note())));
        }
    }
    // The loop alone comes first: that is what `off` has to be equal to.
    let rivals: Vec<Entry> = [Kind::None, Kind::AtomicLoad, Kind::TracingEvent]
        .iter()
        .filter_map(|rival| entries.iter().find(|(kind, _)| kind == rival))
        .map(|(_, entry)| entry.clone())
        .collect();
    for (kind, mut entry) in entries {
        if matches!(kind, Kind::Off | Kind::On) {
            entry.compare(&rivals.iter().collect::<Vec<_>>());
        }
        context.record(entry);
    }
    context.done();
    Ok(())
}

fn nanoseconds(kind: Kind) -> f64 {
    // The key may have been switched since, and predictors know another loop.
    kind.run(black_box(PASSES / 100));
    let started = Stopwatch::start();
    kind.run(black_box(PASSES));
    started.elapsed().as_secs_f64() * 1e9 / PASSES as f64
}

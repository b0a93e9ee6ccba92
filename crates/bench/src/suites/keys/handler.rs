//! `keys.handler`: the cost of a trap of a batch for the thread that runs into it, beyond the cost of any signal.
//!
//! A batch of many sites is held open, and a thread runs through all of them; in turns, it runs through the same
//! programs with permanent traps and a handler that does nothing.

use std::time::Duration;

use super::open_packs;
use crate::PlaceError;
use crate::harness::clock::Stopwatch;
use crate::harness::record::Unit;
use crate::harness::sampler::{Summary, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};
use crate::machine::{Sites, Trapping, while_held, with_empty_trap_handler};
use palimpsest_sys::Causes;

const COUNTS: [usize; 3] = [1, 56, 10_000];

/// Traps of one measurement; it makes at least one pass.
const TRAPS: usize = 4000;

/// Pairs of measurements while one batch is held. A sample is the median of their differences.
const PAIRS: usize = 7;

/// Time for all rounds.
const BUDGET: Duration = Duration::from_secs(20);

fn id(count: usize) -> String {
    format!("keys.handler.{count}")
}

pub(super) fn group() -> Group {
    let contestants = COUNTS.map(|count| Contestant::new(id(count), Unit::Nanoseconds).ours());
    Group::new("keys.handler", "one trap of a batch, beyond the bare signal", contestants)
}

/// Programs with a number of sites, and the same programs with permanent traps.
struct Runner {
    sites: Sites,
    trapping: Trapping,
    holds: u64,
    /// Nanoseconds of bare signals.
    bare: Vec<f64>,
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(&group.id);
    let packs = open_packs(&group.id)?;
    let wrap = || failed::<PlaceError>(&group.id, "handler");
    let mut runners = Vec::new();
    for count in COUNTS {
        let sites = Sites::place(&packs, count).map_err(wrap())?;
        let Some(trapping) = Trapping::place(&packs, count).map_err(wrap())? else {
            context.skip(&group, "this architecture changes code without traps");
            return Ok(());
        };
        runners.push(Runner { sites, trapping, holds: 0, bare: Vec::new() });
    }
    let mut samples = Samples::default();
    let outcome = interleave(&mut runners, context.effort.rounds(12, 45, BUDGET), |runner| {
        samples.add(&id(runner.sites.count()), sample(runner)?);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        // If the machine gives the two threads no time at once, this is a matter of luck.
        Err(error @ PlaceError::NotHeld { .. }) => {
            context.skip(&group, &Causes(&error).to_string());
            return Ok(());
        }
        Err(error) => return Err(wrap()(error)),
    }
    let least = samples.median(&id(COUNTS[0]));
    for runner in &runners {
        let id = id(runner.sites.count());
        if let (Some(least), Some(own), Some(bare)) = (least, samples.median(&id), Summary::of(&runner.bare)) {
            let bare = bare.median;
            samples.note(&id, format!("beyond {bare:.0} ns of a bare signal; {:.2} × that of 1 site", own / least));
        }
    }
    context.record(&group, samples);
    Ok(())
}

/// Returns nanoseconds per trap beyond the bare signal.
fn sample(runner: &mut Runner) -> Result<f64, PlaceError> {
    runner.holds += 1;
    let (sites, trapping) = (&runner.sites, &runner.trapping);
    // Allocate nothing while the batch is held.
    let mut pairs = [(0.0, 0.0); PAIRS];
    while_held(sites, runner.holds, || {
        for (bare, served) in &mut pairs {
            *bare = with_empty_trap_handler(trapping, |run| per_trap(sites.count(), run))?;
            *served = per_trap(sites.count(), &|| sites.run());
        }
        Ok::<(), PlaceError>(())
    })??;
    let median = |of: fn(&(f64, f64)) -> f64| {
        let values: Vec<f64> = pairs.iter().map(of).collect();
        Summary::of(&values).map_or(f64::NAN, |summary| summary.median)
    };
    runner.bare.push(median(|(bare, _)| *bare));
    Ok(median(|(bare, served)| served - bare))
}

/// Returns nanoseconds per trap of a function that runs into `count` traps.
fn per_trap(count: usize, run: &dyn Fn() -> u64) -> f64 {
    let passes = (TRAPS / count).max(1);
    run();
    let started = Stopwatch::start();
    for _ in 0..passes {
        run();
    }
    started.elapsed().as_secs_f64() * 1e9 / (passes * count) as f64
}

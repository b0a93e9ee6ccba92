//! `pack.fragmentation`: reserved bytes per used byte after many programs of random length were freed and replaced.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::PlaceError;
use crate::harness::record::Unit;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, failed};
use crate::placers::{Loaded, Packed, Placer};

const ID: &str = "pack.fragmentation";

/// Programs alive at any time.
const ALIVE: usize = 20_000;

/// Lengths in bytes: most programs are small, some are not.
const SHORTEST: usize = 16;
const LONGEST: usize = 8192;

pub(super) fn group() -> Group {
    let note = format!("{ALIVE} programs of {SHORTEST} to {LONGEST} bytes, freed and replaced in random order");
    let packed = Contestant::new(ID, Unit::ReservedPerUsed).in_packs().note(note);
    Group::new(ID, "reserved per used bytes at steady state", [packed])
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(ID);
    let reloads = context.effort.pick(100_000, 1_000_000);
    let mut samples = Samples::default();
    for run in 0..context.effort.pick(1, 3) {
        samples.add(ID, churn(reloads, run).map_err(failed(ID, "packed"))?);
    }
    samples.note(ID, format!("{reloads} replacements"));
    context.record(&group, samples);
    Ok(())
}

fn churn(reloads: usize, seed: u64) -> Result<f64, PlaceError> {
    let mut random = SmallRng::seed_from_u64(seed);
    let code = vec![0x90_u8; LONGEST];
    let mut placer = Packed::open()?;
    let mut alive: Vec<Loaded> = Vec::with_capacity(ALIVE);
    for _ in 0..ALIVE {
        let len = length(&mut random);
        alive.push(placer.load(&code[..len])?);
    }
    for _ in 0..reloads {
        let place = random.random_range(0..ALIVE);
        placer.free(alive.swap_remove(place))?;
        let len = length(&mut random);
        alive.push(placer.load(&code[..len])?);
    }
    placer.settle()?;
    let fragmentation = placer.reserved_per_used();
    alive.shuffle(&mut random);
    for loaded in alive {
        placer.free(loaded)?;
    }
    placer.settle()?;
    Ok(fragmentation)
}

/// Returns a length; every power of two between the limits is equally likely.
fn length(random: &mut SmallRng) -> usize {
    let above = random.random_range(SHORTEST.ilog2()..LONGEST.ilog2());
    random.random_range(1 << above..=2 << above)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_stay_within_the_limits() {
        let mut random = SmallRng::seed_from_u64(1);
        for _ in 0..1000 {
            assert!((SHORTEST..=LONGEST).contains(&length(&mut random)));
        }
    }
}

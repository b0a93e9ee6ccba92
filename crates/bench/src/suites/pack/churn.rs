//! `pack.fragmentation`: reserved bytes per used byte after many programs of random length were freed and replaced.

use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::failed;
use crate::placers::{Contestant, Loaded, Packed, Placer};
use crate::record::Unit;
use crate::suite::{Group, Measured};
use crate::{BenchError, Context, PlaceError};

const ID: &str = "pack.fragmentation";

/// Programs alive at any time.
const ALIVE: usize = 20_000;

/// Lengths in bytes: most programs are small, some are not.
const SHORTEST: usize = 16;
const LONGEST: usize = 8192;

pub(super) fn group() -> Group {
    Group {
        id: ID.to_owned(),
        title: "reserved per used bytes at steady state".to_owned(),
        figures: vec![ID.to_owned()],
    }
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    if !context.wants(&group()) {
        return Ok(());
    }
    context.begin(ID);
    let reloads = context.effort.pick(100_000, 1_000_000);
    let runs = context.effort.pick(1, 3);
    let mut samples = Vec::with_capacity(runs);
    for run in 0..runs {
        samples.push(churn(reloads, run as u64).map_err(failed(ID, Contestant::Packed))?);
    }
    context.record_group(
        Unit::ReservedPerUsed,
        vec![Measured {
            id: ID.to_owned(),
            contestant: Some(Contestant::Packed),
            samples,
            note: Some(format!(
                "{ALIVE} programs of {SHORTEST} to {LONGEST} bytes, {reloads} freed and replaced in random order"
            )),
        }],
    );
    context.done();
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

/// Every power of two between the limits is as likely as any other.
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

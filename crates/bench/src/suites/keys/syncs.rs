//! `keys.syncs` and `keys.traps_hit`: counts.

use palimpsest_text::poke::Batch;

use super::load::under_load;
use super::{Way, open_packs};
use crate::PlaceError;
use crate::harness::record::Unit;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, expect, failed};
use crate::machine::{Sites, Switch};

const COUNTS: [usize; 2] = [56, 10_000];

const TRAPS_HIT: &str = "keys.traps_hit";

/// Sites of the batches whose traps are counted.
const TRAPPED_SITES: usize = 56;

/// Toggles of one sample.
const TOGGLES: usize = 1000;

fn id(count: usize, way: Way) -> String {
    format!("keys.syncs.{count}.{}", way.name())
}

fn syncs_group(count: usize) -> Group {
    let [batched, one_by_one] = Way::ALL.map(|way| Contestant::new(id(count, way), Unit::Count));
    let batched = batched.in_packs().against([one_by_one.id.as_str()]);
    Group::new(format!("keys.syncs.{count}"), format!("core synchronisations, {count} sites"), [batched, one_by_one])
}

fn traps_group() -> Group {
    let note = format!("in {TOGGLES} toggles of {TRAPPED_SITES} sites, batched, while one thread runs through them");
    Group::new(TRAPS_HIT, "traps under load", [Contestant::new(TRAPS_HIT, Unit::Count).ours().note(note)])
}

pub(super) fn groups() -> Vec<Group> {
    let mut groups: Vec<Group> = COUNTS.into_iter().map(syncs_group).collect();
    groups.push(traps_group());
    groups
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    for count in COUNTS {
        let group = syncs_group(count);
        if context.wants(&group) {
            context.begin(&group.id);
            let samples = count_syncs(count)?;
            context.record(&group, samples);
        }
    }
    let group = traps_group();
    if context.wants(&group) {
        context.begin(&group.id);
        let samples = count_traps(context.effort.pick(3, 9))?;
        context.record(&group, samples);
    }
    Ok(())
}

fn count_syncs(count: usize) -> Result<Samples, BenchError> {
    let packs = open_packs(&id(count, Way::Batched))?;
    let mut samples = Samples::default();
    for way in Way::ALL {
        let id = id(count, way);
        let syncs = syncs_of(&packs, count, way).map_err(failed(&id, way.name()))?;
        samples.add(&id, syncs as f64);
    }
    Ok(samples)
}

/// Switches all sites on once, and returns the core synchronisations.
fn syncs_of(packs: &palimpsest_text::Packs, count: usize, way: Way) -> Result<u64, PlaceError> {
    let sites = Sites::place(packs, count)?;
    let per_batch = match way {
        Way::Batched => count,
        Way::OneByOne => 1,
    };
    let mut syncs = 0;
    for first in (0..count).step_by(per_batch) {
        syncs += Sites::apply(&sites.batch(Switch::On, first..first + per_batch)?)?.syncs;
    }
    Ok(syncs)
}

fn count_traps(runs: usize) -> Result<Samples, BenchError> {
    let packs = open_packs(TRAPS_HIT)?;
    let wrap = || failed::<PlaceError>(TRAPS_HIT, Way::Batched.name());
    let sites = Sites::place(&packs, TRAPPED_SITES).map_err(wrap())?;
    let on = sites.batch(Switch::On, 0..TRAPPED_SITES).map_err(wrap())?;
    let off = sites.batch(Switch::Off, 0..TRAPPED_SITES).map_err(wrap())?;
    let mut samples = Samples::default();
    for _ in 0..runs {
        let hits = under_load(&sites, 1, || toggle(&on, &off)).map_err(wrap())?;
        expect(TRAPS_HIT, Way::Batched.name(), TRAPPED_SITES as u64, sites.run())?;
        samples.add(TRAPS_HIT, hits as f64);
    }
    Ok(samples)
}

/// Returns how many traps were hit in [`TOGGLES`] toggles.
fn toggle(on: &Batch<'_>, off: &Batch<'_>) -> Result<u64, PlaceError> {
    let mut hits = 0;
    for _ in 0..TOGGLES / 2 {
        hits += Sites::apply(on)?.traps_hit + Sites::apply(off)?.traps_hit;
    }
    Ok(hits)
}

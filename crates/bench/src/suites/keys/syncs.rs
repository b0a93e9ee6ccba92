//! `keys.syncs` and `keys.traps_hit`: counts.

use palimpsest_text::poke::Batch;

use super::load::under_load;
use super::{Way, expect, failed, open_packs};
use crate::machine::{Sites, Switch};
use crate::record::{Entry, Unit};
use crate::sampler::Summary;
use crate::suite::Group;
use crate::{BenchError, Context, PlaceError};

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
    Group {
        id: format!("keys.syncs.{count}"),
        title: format!("core synchronisations, {count} sites"),
        figures: Way::ALL.map(|way| id(count, way)).into(),
    }
}

fn traps_group() -> Group {
    Group { id: TRAPS_HIT.to_owned(), title: "traps under load".to_owned(), figures: vec![TRAPS_HIT.to_owned()] }
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
            count_syncs(context, count)?;
            context.done();
        }
    }
    if context.wants(&traps_group()) {
        context.begin(TRAPS_HIT);
        count_traps(context)?;
        context.done();
    }
    Ok(())
}

fn count_syncs(context: &mut Context<'_>, count: usize) -> Result<(), BenchError> {
    let packs = open_packs(&id(count, Way::Batched))?;
    let mut entries = Vec::new();
    for way in Way::ALL {
        let id = id(count, way);
        let syncs = syncs_of(&packs, count, way).map_err(failed(&id, way.name()))?;
        if let Some(summary) = Summary::of(&[syncs as f64]) {
            entries.push(Entry::new(id, Unit::Count, summary));
        }
    }
    if let [batched, one_by_one] = &mut entries[..] {
        batched.compare(&[one_by_one]);
        batched.backing = context.backing();
    }
    entries.into_iter().for_each(|entry| context.record(entry));
    Ok(())
}

/// Switches all sites on once.
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

fn count_traps(context: &mut Context<'_>) -> Result<(), BenchError> {
    let packs = open_packs(TRAPS_HIT)?;
    let wrap = || failed(TRAPS_HIT, Way::Batched.name());
    let sites = Sites::place(&packs, TRAPPED_SITES).map_err(wrap())?;
    let batches = [Switch::On, Switch::Off].map(|switch| sites.batch(switch, 0..TRAPPED_SITES));
    let [on, off] = batches;
    let (on, off) = (on.map_err(wrap())?, off.map_err(wrap())?);
    let mut samples = Vec::new();
    for _ in 0..context.effort.pick(3, 9) {
        let hits = under_load(&sites, 1, || toggle(&on, &off)).map_err(wrap())?;
        expect(TRAPS_HIT, Way::Batched.name(), TRAPPED_SITES as u64, sites.run())?;
        samples.push(hits as f64);
    }
    if let Some(summary) = Summary::of(&samples) {
        let note =
            format!("in {TOGGLES} toggles of {TRAPPED_SITES} sites, batched, while one thread runs through them");
        context.record(Entry::new(TRAPS_HIT, Unit::Count, summary).with_note(note));
    }
    Ok(())
}

/// Traps that were hit in [`TOGGLES`] toggles.
fn toggle(on: &Batch<'_>, off: &Batch<'_>) -> Result<u64, PlaceError> {
    let mut hits = 0;
    for _ in 0..TOGGLES / 2 {
        hits += Sites::apply(on)?.traps_hit + Sites::apply(off)?.traps_hit;
    }
    Ok(hits)
}

//! `keys.toggle`: switching all of so many sites, in one batch against a batch for each, while other threads run
//! through them.
//!
//! Wall time: most of it is waiting for other CPUs. A sample is the mean of one toggle on and one off, with threads of
//! its own running beside it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use palimpsest_text::Packs;
use palimpsest_text::key::State;
use palimpsest_text::poke::{Batch, Mode, arch};

use super::load::under_load;
use super::text_key::{BRANCHES, TextKey};
use super::{Way, expect, failed, open_packs};
#[cfg(feature = "peers")]
use crate::machine::PeerKey;
use crate::machine::{Sites, Switch};
use crate::record::{Entry, Unit};
use crate::sampler::{Summary, interleave};
use crate::suite::Group;
use crate::{BenchError, Context, PlaceError};

const COUNTS: [usize; 4] = [1, 56, 1000, 10_000];
const THREADS: [usize; 3] = [0, 1, 2];

/// Of more sites than these, so many are switched one by one, and the time is multiplied.
const ONE_BY_ONE_MOST: usize = 56;

/// Time for all rounds of one count.
const BUDGET: Duration = Duration::from_secs(12);

const TEXT_KEY: &str = "keys.toggle.56.text_key.t0";
const PEER: &str = "keys.toggle.56.static_keys.t0";

/// Whose figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Sites in packs, with so many threads running through them.
    Packs(Way, usize),
    /// A static key in program text.
    TextKey,
    /// The crate `static-keys`.
    Peer,
}

impl Kind {
    fn id(self, count: usize) -> String {
        match self {
            Self::Packs(way, threads) => format!("keys.toggle.{count}.{}.t{threads}", way.name()),
            Self::TextKey => TEXT_KEY.to_owned(),
            Self::Peer => PEER.to_owned(),
        }
    }

    /// Name in errors.
    fn name(self) -> &'static str {
        match self {
            Self::Packs(way, _) => way.name(),
            Self::TextKey => "static_key!",
            Self::Peer => "static-keys",
        }
    }

    /// Whom it is compared with.
    fn rival(self) -> Option<Self> {
        match self {
            Self::Packs(Way::Batched, threads) => Some(Self::Packs(Way::OneByOne, threads)),
            Self::TextKey => Some(Self::Peer),
            Self::Packs(Way::OneByOne, _) | Self::Peer => None,
        }
    }

    fn is_built(self) -> bool {
        cfg!(feature = "peers") || self != Self::Peer
    }
}

fn kinds(count: usize) -> Vec<Kind> {
    let packs = THREADS.into_iter().flat_map(|threads| Way::ALL.map(|way| Kind::Packs(way, threads)));
    let text = (count as u64 == BRANCHES).then_some([Kind::TextKey, Kind::Peer]);
    packs.chain(text.into_iter().flatten()).collect()
}

fn group(count: usize) -> Group {
    Group {
        id: format!("keys.toggle.{count}"),
        title: match count {
            1 => "switching 1 site (t: threads that run through it)".to_owned(),
            _ => format!("switching {count} sites (t: threads that run through them)"),
        },
        figures: kinds(count).into_iter().map(|kind| kind.id(count)).collect(),
    }
}

pub(super) fn groups() -> [Group; 4] {
    COUNTS.map(group)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let mut single = HashMap::new();
    for count in COUNTS {
        let group = group(count);
        if !context.wants(&group) {
            continue;
        }
        context.begin(&group.id);
        let packs = open_packs(&group.id)?;
        let mut entries = measure(context, &packs, count)?;
        for (kind, entry) in &mut entries {
            describe(*kind, entry, count, &single);
            if count == 1 {
                single.insert(*kind, entry.median);
            }
        }
        let rivals: HashMap<Kind, Entry> = entries.iter().cloned().collect();
        for (kind, mut entry) in entries {
            if let Some(rival) = kind.rival().and_then(|rival| rivals.get(&rival)) {
                entry.compare(&[rival]);
            }
            if matches!(kind, Kind::Packs(..)) {
                entry.backing = context.backing();
            }
            context.record(entry);
        }
        context.done();
    }
    Ok(())
}

/// Says what the figure includes. `single` holds the medians for one site.
fn describe(kind: Kind, entry: &mut Entry, count: usize, single: &HashMap<Kind, f64>) {
    let note = match kind {
        Kind::Packs(Way::OneByOne, _) if count > ONE_BY_ONE_MOST => {
            Some(format!("measured on {ONE_BY_ONE_MOST} of the sites and multiplied"))
        }
        Kind::Packs(Way::Batched, _) if count > ONE_BY_ONE_MOST => single.get(&kind).map(|single| {
            let further = (entry.median - single) / (count - 1) as f64;
            format!("{further:.3} µs for each further site")
        }),
        Kind::Packs(..) => None,
        Kind::TextKey => Some("static_key! with 56 branches in program text".to_owned()),
        Kind::Peer => Some("may only be switched while no other thread runs; in program text".to_owned()),
    };
    let notes: Vec<String> = note.into_iter().chain(entry.note.take()).collect();
    entry.note = (!notes.is_empty()).then(|| notes.join("; "));
}

/// What a contestant switches.
enum Target<'s> {
    Batches {
        sites: &'s Sites,
        on: Vec<Batch<'s>>,
        off: Vec<Batch<'s>>,
        threads: usize,
        /// Batches that went by single stores where there are traps, since some thread had SIGTRAP blocked for long.
        without_traps: usize,
    },
    TextKey(TextKey),
    #[cfg(feature = "peers")]
    Peer(PeerKey),
}

fn measure(context: &mut Context<'_>, packs: &Packs, count: usize) -> Result<Vec<(Kind, Entry)>, BenchError> {
    // Each way has sites of its own, as `run` tells whether all of them were switched.
    let place = || Sites::place(packs, count).map_err(failed(&group(count).id, "packs"));
    let sites = [place()?, place()?];
    let mut runners = Vec::new();
    for kind in kinds(count) {
        if !kind.is_built() {
            context.skip_failed(kind.id(count), &PlaceError::NotBuilt { peer: "static-keys" });
            continue;
        }
        let id = kind.id(count);
        runners.push((kind, id.clone(), target(kind, &sites).map_err(failed(&id, kind.name()))?));
    }
    let taken =
        interleave(&mut runners, context.effort.rounds(6, 60, BUDGET), |(kind, id, target)| sample(*kind, id, target))?;
    let entries = runners.iter().zip(taken).filter_map(|((kind, id, target), samples)| {
        let mut entry = Entry::new(id.as_str(), Unit::Microseconds, Summary::of(&samples)?);
        if let Target::Batches { without_traps: without_traps @ 1.., .. } = target {
            entry.note = Some(format!("{without_traps} batches by single stores, as a thread had SIGTRAP blocked"));
        }
        Some((*kind, entry))
    });
    Ok(entries.collect())
}

fn target(kind: Kind, sites: &[Sites; 2]) -> Result<Target<'_>, PlaceError> {
    let (way, threads) = match kind {
        Kind::Packs(way, threads) => (way, threads),
        Kind::TextKey => return Ok(Target::TextKey(TextKey::take())),
        #[cfg(feature = "peers")]
        Kind::Peer => return Ok(Target::Peer(PeerKey::take())),
        #[cfg(not(feature = "peers"))]
        Kind::Peer => return Err(PlaceError::NotBuilt { peer: "static-keys" }),
    };
    let [batched, one_by_one] = sites;
    let batches = |switch| match way {
        Way::Batched => Ok(vec![batched.batch(switch, 0..batched.count())?]),
        Way::OneByOne => {
            let chosen = spread(one_by_one.count());
            chosen.map(|number| one_by_one.batch(switch, [number])).collect::<Result<Vec<_>, _>>()
        }
    };
    let sites = match way {
        Way::Batched => batched,
        Way::OneByOne => one_by_one,
    };
    Ok(Target::Batches { sites, on: batches(Switch::On)?, off: batches(Switch::Off)?, threads, without_traps: 0 })
}

/// The numbers of at most [`ONE_BY_ONE_MOST`] sites, evenly spread.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(count.div_ceil(ONE_BY_ONE_MOST))
}

/// Microseconds for one toggle of all sites.
fn sample(kind: Kind, id: &str, target: &mut Target<'_>) -> Result<f64, BenchError> {
    let name = kind.name();
    let wrap = || failed(id, name);
    match target {
        Target::Batches { sites, on, off, threads, without_traps } => {
            let count = sites.count() as u64;
            let switched: u64 = on.iter().map(|batch| batch.len() as u64).sum();
            let without_traps = Cell::from_mut(without_traps);
            let apply = |batches: &[Batch<'_>]| {
                without_traps.set(without_traps.get() + apply_all(batches).map_err(wrap())?);
                Ok(())
            };
            let micros = under_load(sites, *threads, || {
                // Caches still know who ran before.
                apply(&on[..1])?;
                apply(&off[..1])?;
                toggle(|| apply(on), || expect(id, name, count - switched, sites.run()), || apply(off))
            })?;
            expect(id, name, count, sites.run())?;
            Ok(micros * count as f64 / switched as f64)
        }
        Target::TextKey(key) => {
            // The three closures take turns.
            let key = RefCell::new(key);
            let set = |state| key.borrow_mut().set(state).map_err(wrap());
            let found = || key.borrow().run();
            set(State::On)?;
            set(State::Off)?;
            let micros = toggle(|| set(State::On), || expect(id, name, 0, found()), || set(State::Off))?;
            expect(id, name, BRANCHES, found())?;
            Ok(micros)
        }
        #[cfg(feature = "peers")]
        Target::Peer(key) => {
            let key = RefCell::new(key);
            let on = || {
                key.borrow_mut().enable();
                Ok(())
            };
            let off = || {
                key.borrow_mut().disable();
                Ok(())
            };
            on()?;
            off()?;
            let micros = toggle(on, || expect(id, name, 0, key.borrow().run()), off)?;
            expect(id, name, BRANCHES, key.borrow().run())?;
            Ok(micros)
        }
    }
}

/// Mean of the microseconds that switching on and switching off take.
fn toggle(
    on: impl FnOnce() -> Result<(), BenchError>,
    check: impl FnOnce() -> Result<(), BenchError>,
    off: impl FnOnce() -> Result<(), BenchError>,
) -> Result<f64, BenchError> {
    let started = Instant::now();
    on()?;
    let elapsed_on = started.elapsed();
    check()?;
    let started = Instant::now();
    off()?;
    let elapsed = elapsed_on + started.elapsed();
    Ok(elapsed.as_secs_f64() * 1e6 / 2.0)
}

/// Applies the batches one after the other; the number of those that went without traps where there are traps.
fn apply_all(batches: &[Batch<'_>]) -> Result<usize, PlaceError> {
    let mut without_traps = 0;
    for batch in batches {
        let mode = Sites::apply(batch)?.mode;
        without_traps += usize::from(arch::TRAPS && mode == Mode::SingleStore);
    }
    Ok(without_traps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_sites_are_all_switched_and_many_evenly() {
        assert_eq!(spread(1).collect::<Vec<_>>(), [0]);
        assert_eq!(spread(56).count(), 56);
        assert_eq!(spread(10_000).take(3).collect::<Vec<_>>(), [0, 179, 358]);
        assert_eq!([1000, 10_000].map(|count| spread(count).count()), [ONE_BY_ONE_MOST; 2]);
    }

    #[test]
    fn every_way_leaves_the_sites_as_they_were() {
        let _alone = crate::machine::COUNTING_TRAPS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let packs = Packs::new().expect("packs open");
        let sites = [(); 2].map(|()| Sites::place(&packs, 56).expect("programs are placed"));
        for kind in kinds(56).into_iter().filter(|kind| kind.is_built()) {
            let mut target = target(kind, &sites).expect("batches");
            let micros = sample(kind, "test", &mut target).expect("all sites are switched");
            assert!(micros > 0.0, "{kind:?}");
        }
    }
}

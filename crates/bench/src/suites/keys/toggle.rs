//! `keys.toggle`: switching many sites, in one batch against a batch for each, while other threads run through them.
//!
//! Times are wall-clock times, since most of a switch is waiting for other CPUs. A sample is the mean of one toggle on
//! and one off, while the contestant's own threads run.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

use palimpsest_text::key::State;
use palimpsest_text::poke::{Batch, Mode, arch};

use super::load::under_load;
use super::text_key::{BRANCHES, TextKey};
use super::{Way, open_packs};
use crate::PlaceError;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, expect, failed};
#[cfg(feature = "peers")]
use crate::machine::PeerKey;
use crate::machine::{Sites, Switch};
use palimpsest_sys::Causes;

const COUNTS: [usize; 4] = [1, 56, 1000, 10_000];
const THREADS: [usize; 3] = [0, 1, 2];

/// The most sites that are switched one by one; for more sites the time is multiplied.
const ONE_BY_ONE_MOST: usize = 56;

/// Time for all rounds of one count.
const BUDGET: Duration = Duration::from_secs(12);

const TEXT_KEY: &str = "keys.toggle.56.text_key.t0";
const PEER: &str = "keys.toggle.56.static_keys.t0";

/// The contestants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// Sites in packs, with this many threads running through them.
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

    /// Returns the name in errors.
    fn name(self) -> &'static str {
        match self {
            Self::Packs(way, _) => way.name(),
            Self::TextKey => "static_key!",
            Self::Peer => "static-keys",
        }
    }

    /// Returns the contestant with which it is compared.
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

    fn contestant(self, count: usize) -> Contestant {
        let contestant = Contestant::new(self.id(count), Unit::Microseconds);
        let contestant = match self {
            Self::Packs(Way::OneByOne, _) if count > ONE_BY_ONE_MOST => {
                contestant.note(format!("measured on {ONE_BY_ONE_MOST} of the sites and multiplied"))
            }
            Self::TextKey => contestant.note("static_key! with 56 branches in program text"),
            Self::Peer => contestant.note("may only be switched while no other thread runs; in program text"),
            Self::Packs(..) => contestant,
        };
        let contestant = match self.rival() {
            Some(rival) => contestant.against([rival.id(count)]),
            None => contestant,
        };
        if matches!(self, Self::Packs(..)) { contestant.in_packs() } else { contestant }
    }
}

fn kinds(count: usize) -> Vec<Kind> {
    let packs = THREADS.into_iter().flat_map(|threads| Way::ALL.map(|way| Kind::Packs(way, threads)));
    let text = (count as u64 == BRANCHES).then_some([Kind::TextKey, Kind::Peer]);
    packs.chain(text.into_iter().flatten()).collect()
}

fn group(count: usize) -> Group {
    let title = match count {
        1 => "switching 1 site (t: threads that run through it)".to_owned(),
        _ => format!("switching {count} sites (t: threads that run through them)"),
    };
    Group::new(format!("keys.toggle.{count}"), title, kinds(count).into_iter().map(|kind| kind.contestant(count)))
}

pub(super) fn groups() -> [Group; 4] {
    COUNTS.map(group)
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    // Medians for one site.
    let mut single = HashMap::new();
    for count in COUNTS {
        let group = group(count);
        if !context.wants(&group) {
            continue;
        }
        context.begin(&group.id);
        let mut samples = measure(count, &kinds(count), context.effort.rounds(6, 60, BUDGET))?;
        for threads in THREADS {
            let id = Kind::Packs(Way::Batched, threads).id(count);
            let Some(median) = samples.median(&id) else { continue };
            if count == 1 {
                single.insert(threads, median);
            } else if let Some(single) = single.get(&threads).filter(|_| count > ONE_BY_ONE_MOST) {
                let further = (median - single) / (count - 1) as f64;
                samples.note(&id, format!("{further:.3} µs for each further site"));
            }
        }
        context.record(&group, samples);
    }
    Ok(())
}

/// Contestants in the tour.
const TOUR: [Kind; 2] = [Kind::Packs(Way::OneByOne, 1), Kind::Packs(Way::Batched, 1)];

/// Returns the tour's figures.
pub(in crate::suites) fn tour_group() -> Group {
    let ids = TOUR.map(|kind| kind.id(56));
    Group { title: "switching 56 branches while a thread runs through them".to_owned(), ..group(56).only(&ids) }
}

/// Returns the tour's samples.
pub(in crate::suites) fn tour(rounds: Rounds) -> Result<Samples, BenchError> {
    measure(56, &TOUR, rounds)
}

/// What a contestant switches.
enum Target<'s> {
    Batches {
        sites: &'s Sites,
        on: Vec<Batch<'s>>,
        off: Vec<Batch<'s>>,
        threads: usize,
        /// Batches that used single stores where traps are the rule, because some thread had blocked SIGTRAP for long.
        without_traps: usize,
    },
    TextKey(TextKey),
    #[cfg(feature = "peers")]
    Peer(PeerKey),
}

/// Returns samples of `count` sites, switched in those ways.
fn measure(count: usize, kinds: &[Kind], rounds: Rounds) -> Result<Samples, BenchError> {
    let packs = open_packs("keys.toggle")?;
    // Each way has its own sites, since `run` tells whether all of them were switched.
    let place = || Sites::place(&packs, count).map_err(failed("keys.toggle", "packs"));
    let sites = [place()?, place()?];
    let mut samples = Samples::default();
    let mut runners = Vec::new();
    for &kind in kinds {
        let id = kind.id(count);
        if kind.is_built() {
            runners.push((kind, id.clone(), target(kind, &sites).map_err(failed(&id, kind.name()))?));
        } else {
            samples.refuse(&id, Causes(&PlaceError::NotBuilt { peer: "static-keys" }).to_string());
        }
    }
    interleave(&mut runners, rounds, |(kind, id, target)| {
        samples.add(id, sample(*kind, id, target)?);
        Ok::<(), BenchError>(())
    })?;
    for (_, id, target) in &runners {
        if let Target::Batches { without_traps: without_traps @ 1.., .. } = target {
            samples.note(id, format!("{without_traps} batches by single stores, as a thread had SIGTRAP blocked"));
        }
    }
    Ok(samples)
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

/// Returns the numbers of at most [`ONE_BY_ONE_MOST`] sites, evenly spread.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    (0..count).step_by(count.div_ceil(ONE_BY_ONE_MOST))
}

/// Returns microseconds for one toggle of all sites.
fn sample(kind: Kind, id: &str, target: &mut Target<'_>) -> Result<f64, BenchError> {
    let name = kind.name();
    let wrap = || failed::<PlaceError>(id, name);
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
                // The caches still hold the previous contestant's data.
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

/// Returns the mean of the microseconds for switching on and switching off.
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

/// Applies the batches one after the other. Returns how many went without traps where traps are the rule.
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
    use palimpsest_text::Packs;

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

//! The packs of one process: a region of addresses in slots of 2 MiB, and what belongs to it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use palimpsest_sys::{CoreSync, ForkDetector, MapError, Reservation};

use super::PACK;
use super::backing::{Backing, Refused};
use super::builder::{Config, ForkPolicy, ReclaimPolicy, RegionLen};
use super::directory::Readers;
use super::error::OpenError;
use super::memory::{Kind, OnRefusal, PackMemory, Plan};
use super::place::NewPack;
use super::reclaim::{ReclaimState, Watch};
use super::release::LaidOut;
use super::root::ProcessEpochs;
use super::shard::Tally;
use super::slot::{Home, Pack, Slot};
use super::stats::Counters;
use crate::observe::{ObserveError, Observer};
use crate::primitive::{AtomicU64, AtomicUsize};

/// See the module's documentation.
///
/// What several threads touch, and who: `used_slots`, under `grow`, read by anybody; `generation`, under `reclaiming`,
/// read by anybody; `next_reclaim` and `freeing` by whoever reclaims; the rest is atomic within, under its own lock, or
/// never changes.
pub(super) struct Store {
    pub(super) config: Arc<Config>,
    pub(super) backing: Backing,
    pub(super) refused: Vec<Refused>,
    pub(super) region: Arc<Reservation>,
    pub(super) slots: Box<[Slot]>,
    /// Slots from here on have never been used.
    pub(super) used_slots: AtomicUsize,
    pub(super) sync: CoreSync,
    pub(super) fork: ForkDetector,
    /// Counts the fork witnesses; see `reclaim`.
    pub(super) generation: AtomicU64,
    pub(super) readers: Readers,
    pub(super) epochs: Arc<ProcessEpochs>,
    /// One per shard.
    pub(super) tallies: Box<[Tally]>,
    pub(super) reclaiming: Mutex<ReclaimState>,
    /// How many threads are about to free what they have collected.
    pub(super) freeing: AtomicUsize,
    /// Bytes of retired chunks at which the next automatic reclaim is due.
    pub(super) next_reclaim: AtomicUsize,
    /// Held while a pack is made.
    pub(super) grow: Mutex<()>,
    /// Packs that are out of use, with their first slots; unmapped when no reader can see them any more.
    pub(super) graveyard: Mutex<Vec<LaidOut>>,
    pub(super) counters: Counters,
}

impl Store {
    /// Opens a store, with the first pack for code in it.
    pub(super) fn open(
        config: Arc<Config>,
        epochs: Arc<ProcessEpochs>,
        parent: Option<&Store>,
    ) -> Result<Self, OpenError> {
        let sync = CoreSync::new()?;
        if let Some(refused) = sync.refused() {
            tracing::warn!(%refused, "core synchronisation falls back to signals");
        }
        let region = Arc::new(reserve(&config, parent)?);
        if config.region == RegionLen::AsMuchAsCanBe && region.len() < RegionLen::DEFAULT {
            tracing::warn!(bytes = region.len(), "the region for packs is smaller than usual: address space is short");
        }
        let (first, backing, refused) = first_pack(&config, &region)?;
        for Refused { backing, error } in &refused {
            tracing::warn!(%backing, %error, "a better backing for packs is not available");
        }
        let watch = match (backing, config.fork) {
            (Backing::ProcMem, _) | (_, ForkPolicy::Omit) => Watch::Nothing,
            (_, ForkPolicy::Inherit) => Watch::Forks,
        };
        let due = match config.reclaim {
            ReclaimPolicy::Automatic { retired_bytes } => retired_bytes,
            ReclaimPolicy::Manual => usize::MAX,
        };
        let store = Self {
            slots: (0..region.len() / PACK).map(|_| Slot::new()).collect(),
            region,
            config,
            backing,
            refused,
            used_slots: AtomicUsize::new(0),
            sync,
            fork: ForkDetector::new(),
            generation: AtomicU64::new(0),
            readers: Readers::new(),
            epochs,
            tallies: Tally::for_this_machine(),
            reclaiming: Mutex::new(ReclaimState::new(watch)?),
            freeing: AtomicUsize::new(0),
            next_reclaim: AtomicUsize::new(due),
            grow: Mutex::new(()),
            graveyard: Mutex::default(),
            counters: Counters::default(),
        };
        store.install_pack(0, Home::OfNobody, NewPack::empty(Kind::Code, first));
        Ok(store)
    }

    /// The generation that programs are born in now.
    pub(super) fn generation(&self) -> u64 {
        // Acquire, partner: the Release store in `reclaim`. Forbids that a program counts as younger than a witness
        // that children do not get yet.
        self.generation.load(Ordering::Acquire)
    }

    /// The pack of a slot, for whoever holds the slot's lock or knows of a program in it.
    pub(super) fn pack_in<'s>(&self, slot: &'s Slot) -> Option<&'s Pack> {
        // Acquire, partner: the Release store in `install_pack`.
        let pack = slot.pack.load(Ordering::Acquire);
        // SAFETY: null or a live pack; it is taken out under the slot's lock, which the caller holds.
        unsafe { pack.as_ref() }
    }

    /// Calls `tell` for every observer, and counts failures.
    pub(super) fn observe(&self, tell: impl Fn(&dyn Observer) -> Result<(), ObserveError>) {
        for observer in &self.config.observers {
            if let Err(error) = tell(&**observer) {
                tracing::warn!(%error, "an observer failed");
                self.counters.observer_errors.add(1);
            }
        }
    }
}

fn reserve(config: &Config, parent: Option<&Store>) -> Result<Reservation, OpenError> {
    let mut failed = None;
    for len in config.region.candidates()? {
        let reach = RegionLen::MAX;
        let attempt = match (config.near, parent) {
            (Some(near), _) => Reservation::near(near, reach, len, PACK),
            // A child's code should reach what it inherits; if it cannot, it has not been promised.
            (None, Some(parent)) => {
                Reservation::near(parent.region.address(), reach, len, PACK).or_else(|_| Reservation::new(len, PACK))
            }
            (None, None) => Reservation::new(len, PACK),
        };
        match attempt {
            Ok(region) => return Ok(region),
            Err(source) => failed = Some((len, source)),
        }
    }
    let (len, source) = failed.unwrap_or((0, MapError::Place { offset: 0, wanted: 0, len: 0 }));
    Err(OpenError::Reserve { len, source })
}

type FirstPack = (PackMemory, Backing, Vec<Refused>);

/// Makes the first pack of the best backing that works, or of the one that was asked for.
fn first_pack(config: &Config, region: &Arc<Reservation>) -> Result<FirstPack, OpenError> {
    let mut refused = Vec::new();
    for &backing in config.candidates()? {
        let made = PackMemory::new(&Plan {
            region,
            offset: 0,
            replicas: &[],
            len: PACK,
            kind: Kind::Code,
            backing,
            write_view: config.write_view_of(backing),
            fork: config.fork,
            on_refusal: OnRefusal::Fail,
            profiling: config.profiling(),
        });
        match made {
            Ok(memory) => return Ok((memory, backing, refused)),
            Err(error) => refused.push(Refused { backing, error }),
        }
    }
    match config.backing {
        Some(backing) => match refused.pop() {
            Some(Refused { error: source, .. }) => Err(OpenError::Backing { backing, source }),
            None => unreachable!("one backing was tried"),
        },
        None => {
            let refused = refused.into_iter().map(|Refused { backing, error }| (backing, error)).collect();
            Err(OpenError::NoBacking { refused })
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.forget_everything();
    }
}

//! Opening a store: its region, and the first pack of the best backing that works.

use std::sync::{Arc, Mutex};

use palimpsest_sys::{CoreSync, ForkDetector, MapError, Reservation};

use super::PACK;
use super::backing::{Backing, Refused};
use super::config::{Config, RegionLen};
use super::directory::Readers;
use super::epoch::ProcessEpochs;
use super::error::OpenError;
use super::limbo::{ReclaimState, Watch};
use super::memory::{Kind, OnRefusal, PackMemory, Plan};
use super::place::NewPack;
use super::policy::{ForkPolicy, ReclaimPolicy};
use super::slot::{Home, Slot};
use super::store::Store;
use super::tally::{Counters, Tally};
use crate::primitive::{AtomicU64, AtomicUsize};

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
}

fn reserve(config: &Config, parent: Option<&Store>) -> Result<Reservation, OpenError> {
    let mut failed = None;
    for len in config.region.candidates()? {
        let reach = RegionLen::MAX;
        let attempt = match (config.near, parent) {
            (Some(near), _) => Reservation::near(near, reach, len, PACK),
            // A child's code should be able to reach what it inherits; this is not promised.
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

/// Makes the first pack, of the best backing that works or of the one asked for.
fn first_pack(config: &Config, region: &Arc<Reservation>) -> Result<FirstPack, OpenError> {
    let mut refused = Vec::new();
    for &backing in config.candidates()? {
        let made = PackMemory::new(&Plan {
            region,
            offset: 0,
            len: PACK,
            kind: Kind::Code,
            backing,
            node: config.node,
            write_view: config.write_view_of(backing),
            branch_targets: config.branch_targets,
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

//! What a program's timers keep of it.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::AtomicUsize;

use palimpsest_text::Program as Loaded;

use super::{Host, Timers};
use crate::timer;

/// The number of the helper `bpf_timer_set_callback`.
pub(super) const SET_CALLBACK: i32 = 170;

/// What a program's timers keep of it when the program itself is dropped.
#[derive(Debug)]
pub(super) struct Kept {
    /// The code with its functions.
    pub(super) code: Arc<Loaded>,
    /// The fuel of each call by a timer.
    pub(super) fuel: i64,
    /// The host with its helpers and maps. Timers do not keep it: they end with it.
    pub(super) host: Weak<Host>,
    /// How many timers keep it.
    keepers: AtomicUsize,
}

impl timer::Kept for Kept {
    fn keepers(&self) -> &AtomicUsize {
        &self.keepers
    }
}

impl Kept {
    pub(super) fn new(code: Arc<Loaded>, fuel: i64, host: Weak<Host>) -> Self {
        Self { code, fuel, host, keepers: AtomicUsize::new(0) }
    }

    /// Whether this address is in its code.
    pub(super) fn has(&self, function: u64) -> bool {
        let offset = function.checked_sub(self.code.entry().expose_provenance() as u64);
        offset.is_some_and(|offset| offset < self.code.len() as u64)
    }
}

/// The share in it of the program itself.
#[derive(Debug)]
pub(super) struct Share {
    /// `None` when it is dropped.
    kept: Option<Arc<Kept>>,
    timers: Vec<Arc<Timers>>,
}

impl Share {
    /// Has all that may call functions of `kept` keep it beside the program: what drives the timers of the host's maps,
    /// which may be another host's.
    pub(super) fn new(kept: Kept, host: &Host) -> Self {
        let mut timers: Vec<Arc<Timers>> = host.maps().iter().filter_map(|map| map.timed().get().cloned()).collect();
        timers.sort_unstable_by_key(Arc::as_ptr);
        timers.dedup_by_key(|timers| Arc::as_ptr(timers));
        let kept = Arc::new(kept);
        for timers in &timers {
            timers.keep(Arc::clone(&kept) as _);
        }
        Self { kept: Some(kept), timers }
    }

    pub(super) fn kept(&self) -> Option<&Arc<Kept>> {
        self.kept.as_ref()
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        drop(self.kept.take());
        self.timers.iter().for_each(|timers| timers.let_go());
    }
}

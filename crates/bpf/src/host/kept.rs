//! What a program's timers keep of it.

use alloc::sync::{Arc, Weak};

use palimpsest_text::Program as Loaded;

use super::{Host, Timers};

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
}

impl Kept {
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
    timers: Option<Arc<Timers>>,
}

impl Share {
    /// Has the timers of the program's host keep `kept` beside it.
    pub(super) fn new(kept: Kept, timers: Option<Arc<Timers>>) -> Self {
        let kept = Arc::new(kept);
        if let Some(timers) = &timers {
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
        if let Some(timers) = &self.timers {
            timers.let_go();
        }
    }
}

//! The peer `static-keys`: a key with 56 branches in this program's text.

use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use static_keys::{define_static_key_false, global_init, static_branch_unlikely};

use crate::repeat::times_56;

define_static_key_false!(KEY);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The key, off at first. There is only one at a time.
pub(crate) struct PeerKey {
    _only: MutexGuard<'static, ()>,
}

impl PeerKey {
    /// Takes the key.
    pub(crate) fn take() -> Self {
        let only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        global_init();
        Self { _only: only }
    }

    /// Turns it on.
    pub(crate) fn enable(&mut self) {
        // SAFETY: initialised by `take`; one thread at a time, as this value is the only one and borrowed. No thread
        // may be running *the sites*: only `run` contains them, which cannot run now for the same reason. Other code in
        // their pages stays the same: the pages are replaced by copies, and nobody else writes to them.
        unsafe { KEY.enable() };
    }

    /// Turns it off.
    pub(crate) fn disable(&mut self) {
        // SAFETY: as in `enable`.
        unsafe { KEY.disable() };
    }

    /// How many branches see it off.
    #[inline(never)]
    pub(crate) fn run(&self) -> u64 {
        let mut off = 0_u64;
        times_56!({
            if !static_branch_unlikely!(KEY) {
                off = black_box(off + 1);
            }
        });
        off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_branches_follow_the_key() {
        let mut key = PeerKey::take();
        assert_eq!(key.run(), 56);
        key.enable();
        assert_eq!(key.run(), 0);
        key.disable();
        assert_eq!(key.run(), 56);
    }
}

//! A static key with 56 branches in this program's text, to compare with the peer, which has no packs.

use std::hint::black_box;
use std::sync::{Mutex, MutexGuard, PoisonError};

use palimpsest_text::key::State;
use palimpsest_text::{branch, static_key};

use crate::PlaceError;
use crate::repeat::times_56;

static_key!(static KEY: "bench.toggle" = off);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Branches of the key.
pub(super) const BRANCHES: u64 = 56;

/// The key, off at first. There is one at a time.
pub(super) struct TextKey {
    _only: MutexGuard<'static, ()>,
}

impl TextKey {
    /// Takes the key.
    pub(super) fn take() -> Self {
        Self { _only: ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    /// Switches the key.
    pub(super) fn set(&mut self, state: State) -> Result<(), PlaceError> {
        KEY.set(state)?;
        Ok(())
    }

    /// Returns how many branches see the key off.
    #[inline(never)]
    pub(super) fn run(&self) -> u64 {
        let mut off = 0_u64;
        times_56!({
            if !branch!(unlikely KEY) {
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
        let mut key = TextKey::take();
        assert_eq!(key.run(), BRANCHES);
        key.set(State::On).expect("the key is switched");
        assert_eq!(key.run(), 0);
        key.set(State::Off).expect("the key is switched");
        assert_eq!(key.run(), BRANCHES);
    }
}

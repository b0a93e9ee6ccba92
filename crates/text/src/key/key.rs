//! One key.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{fmt, slice, str};

use super::note::{Note, OWN_NOTE};
use super::state::State;

/// A condition that is compiled into the branches on it, see [`branch!`](crate::branch). Made by
/// [`static_key!`](crate::static_key).
///
/// A key is on if its *switch* is on, or if it is *enabled* at least once:
///
/// * the switch is what operators turn, by name or by [`set`](Self::set). It starts as the key was defined;
/// * [`enable`](Self::enable) and [`disable`](Self::disable) count, so that several users can each have the
///   key on for as long as they need it, whatever the switch says.
///
/// When a call that switches returns, every pass through a branch that begins later, in any thread, sees the new
/// state. Passes that run at the same time see the old one or the new one. Nothing else is ordered: a key is no lock.
//
// The layout is shared by copies of this library: `note::NOTE_VERSION` stands for it.
#[repr(C, align(64))]
pub struct Key {
    name: *const u8,
    name_len: usize,
    /// The note of the object that the key is in.
    note: *const Note,
    /// See the module `lock`. Its holder may change the fields below, and the sites; anybody may read all three.
    pub(super) lock: AtomicU64,
    /// How many `enable` calls want it on, and [`KEPT`] if `keep` does.
    enabled: AtomicU32,
    /// 1 if operators want it on.
    switch: AtomicU32,
    /// 1 if it is on.
    on: AtomicU32,
    starts_on: u32,
}

// SAFETY: the pointers lead to what never changes while the key's object is loaded.
unsafe impl Send for Key {}
// SAFETY: as above; the other fields are atomic.
unsafe impl Sync for Key {}

/// The wishes for a key, which is on if the switch is, if it is kept on, or if the count is not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) switch: State,
    pub(super) kept: State,
    /// At most [`MOST_ENABLED`].
    pub(super) enabled: u32,
}

/// How often a key can be enabled.
pub(super) const MOST_ENABLED: u32 = KEPT - 1;

/// In a key's word of wishes: it is kept on.
const KEPT: u32 = 1 << 31;

impl Wish {
    pub(super) fn state(self) -> State {
        State::from_on(self.switch.is_on() || self.kept.is_on() || self.enabled > 0)
    }
}

impl Key {
    pub(super) const fn new(name: &'static str, is_on: bool) -> Self {
        assert!(is_name(name), "a key's name consists of letters, digits and . _ - : /");
        let on = is_on as u32;
        Self {
            name: name.as_ptr(),
            name_len: name.len(),
            note: OWN_NOTE,
            lock: AtomicU64::new(0),
            enabled: AtomicU32::new(0),
            switch: AtomicU32::new(on),
            on: AtomicU32::new(on),
            starts_on: on,
        }
    }

    /// Returns the name by which operators switch the key; empty where a C program has given bytes that are no text.
    pub fn name(&self) -> &str {
        // SAFETY: the constructor, or the C header's macro, took both from a literal, which lives as long as the key's
        // object.
        let bytes = unsafe { slice::from_raw_parts(self.name, self.name_len) };
        str::from_utf8(bytes).unwrap_or_default()
    }

    /// Returns whether the key is on.
    ///
    /// A load: where speed counts, use [`branch!`](crate::branch).
    #[inline]
    pub fn is_on(&self) -> bool {
        // Relaxed: a key orders nothing.
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Returns whether the key is on, as a [`State`].
    pub fn state(&self) -> State {
        State::from_on(self.is_on())
    }

    /// Returns the state that the key was defined with.
    pub fn first_state(&self) -> State {
        State::from_on(self.starts_on != 0)
    }

    /// Returns how often the key is enabled and not yet disabled.
    pub fn enabled(&self) -> u32 {
        // Relaxed: for information; changes are made under the lock.
        self.enabled.load(Ordering::Relaxed) & MOST_ENABLED
    }

    /// Returns whether it is an entry of zeros and no key.
    pub(super) fn is_filler(&self) -> bool {
        self.name.is_null()
    }

    pub(super) fn note(&self) -> NonNull<Note> {
        NonNull::new(self.note.cast_mut()).unwrap_or_else(|| unreachable!("only fillers have no note"))
    }

    /// Returns the wishes for the key. The caller holds the lock.
    pub(super) fn wish(&self) -> Wish {
        // Relaxed: the lock orders.
        let switch = State::from_on(self.switch.load(Ordering::Relaxed) != 0);
        let enabled = self.enabled.load(Ordering::Relaxed);
        Wish { switch, kept: State::from_on(enabled & KEPT != 0), enabled: enabled & MOST_ENABLED }
    }

    /// Stores the wishes, and whether the key is on. The caller holds the lock.
    pub(super) fn store(&self, wish: Wish) {
        // Relaxed: the lock orders.
        self.switch.store(wish.switch.is_on().into(), Ordering::Relaxed);
        let kept = if wish.kept.is_on() { KEPT } else { 0 };
        self.enabled.store(kept | wish.enabled, Ordering::Relaxed);
        self.on.store(wish.state().is_on().into(), Ordering::Relaxed);
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("name", &self.name())
            .field("state", &self.state())
            .field("enabled", &self.enabled())
            .finish_non_exhaustive()
    }
}

/// Returns whether operators can name it: no character has a meaning in a pattern or a directive.
pub(super) const fn is_name(name: &str) -> bool {
    let mut rest = name.as_bytes();
    while let [byte, tail @ ..] = rest {
        if !(byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':' | b'/')) {
            return false;
        }
        rest = tail;
    }
    !name.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_nothing_else() {
        assert!(is_name("net.trace") && is_name("a::b-c/d_9"));
        for name in ["", "a*", "a?", "a=b", "a,b", "a b", "ä"] {
            assert!(!is_name(name), "{name}");
        }
    }

    #[test]
    fn a_key_is_on_by_either() {
        let (off, on) = (State::Off, State::On);
        for (switch, kept, enabled, state) in
            [(off, off, 0, off), (off, off, 2, on), (off, on, 0, on), (on, off, 0, on)]
        {
            assert_eq!(Wish { switch, kept, enabled }.state(), state);
        }
    }
}

//! Which addresses' bytes each extent has ever held: more than it shows now, since what was copied elsewhere stays in
//! it.
//!
//! Whoever erases a secret asks here. Anybody may read, without a lock; each round rewrites it while no other thread
//! runs. Relaxed everywhere: a reader that a round interrupts finds the map's generation changed.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use palimpsest_sys::memory::span::Span;

use super::slots::Slots;

/// Most extents listed. Untouched slots cost nothing. Extents beyond these may have held anything.
const ORIGINS: usize = 1 << 12;
/// As many of the slots are in the table itself.
const NEAR: usize = 64;

/// The other slots. Zeroed memory is valid.
pub(super) type FarOrigins = [Origin; ORIGINS - NEAR];

/// The table.
pub(crate) struct Origins {
    /// Slots filled; more than there are slots if some extents found no room.
    used: AtomicUsize,
    /// One bit for the extents of several numbers: memory of one of them was moved since the last round, so that its
    /// present addresses are not those whose bytes it held.
    moved: AtomicU64,
    slots: Slots<Origin, NEAR>,
}

pub(super) struct Origin {
    start: AtomicUsize,
    end: AtomicUsize,
    serial: AtomicU32,
}

impl Origin {
    const fn new() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0), serial: AtomicU32::new(0) }
    }

    fn span(&self) -> Span {
        Span::new(self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed))
    }

    fn serial(&self) -> u32 {
        self.serial.load(Ordering::Relaxed)
    }
}

const fn bit(serial: u32) -> u64 {
    1 << (serial % 64)
}

impl Origins {
    /// Makes an empty table.
    pub(super) const fn new(far: &'static FarOrigins) -> Self {
        let slots = Slots::new([const { Origin::new() }; NEAR], far);
        Self { used: AtomicUsize::new(0), moved: AtomicU64::new(0), slots }
    }

    /// Begins anew.
    pub(super) fn clear(&self) {
        self.used.store(0, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
    }

    /// Forgets what the extents have held: each may have held anything.
    pub(super) fn doubt(&self) {
        self.clear();
        self.used.store(ORIGINS + 1, Ordering::Relaxed);
        for slot in self.slots.iter(0..ORIGINS) {
            slot.serial.store(0, Ordering::Relaxed);
        }
    }

    /// Adds an extent that has held bytes of `span`.
    pub(super) fn add(&self, serial: u32, span: Span) {
        let place = self.used.fetch_add(1, Ordering::Relaxed);
        let Some(slot) = self.slots.get(place) else { return };
        slot.start.store(span.start, Ordering::Relaxed);
        slot.end.store(span.end, Ordering::Relaxed);
        slot.serial.store(serial, Ordering::Relaxed);
    }

    /// Whether there is room for extents of slices, and a quarter of all for others.
    pub(super) fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= ORIGINS - ORIGINS / 4
    }

    /// Notes that the program moved memory of an extent to another address.
    pub(crate) fn note_move(&self, serial: u32) {
        self.moved.fetch_or(bit(serial), Ordering::Relaxed);
    }

    /// Whether memory of the extent may have moved since the last round.
    pub(super) fn is_moved(&self, serial: u32) -> bool {
        self.moved.load(Ordering::Relaxed) & bit(serial) != 0
    }

    /// Whether any extent may have held bytes of `span`.
    pub(crate) fn may_hold(&self, span: Span) -> bool {
        !self.is_complete() || self.used().any(|slot| slot.span().overlaps(span))
    }

    /// Whether this extent may have held bytes of `span`.
    pub(crate) fn may_have_held(&self, serial: u32, span: Span) -> bool {
        if self.is_moved(serial) {
            return true;
        }
        match self.used().find(|slot| slot.serial() == serial) {
            Some(slot) => slot.span().overlaps(span),
            None => self.used.load(Ordering::Relaxed) > ORIGINS,
        }
    }

    /// Whether the slots alone tell what each extent held.
    fn is_complete(&self) -> bool {
        self.used.load(Ordering::Relaxed) <= ORIGINS && self.moved.load(Ordering::Relaxed) == 0
    }

    /// Removes an extent that is gone.
    pub(crate) fn forget(&self, serial: u32) {
        for slot in self.used().filter(|slot| slot.serial() == serial) {
            slot.end.store(slot.start.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    fn used(&self) -> impl Iterator<Item = &Origin> {
        self.slots.iter(0..self.used.load(Ordering::Relaxed).min(ORIGINS))
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::vec::leak_zeroed;

    use super::*;

    fn empty() -> Origins {
        let place = leak_zeroed(size_of::<FarOrigins>()).expect("memory").cast::<FarOrigins>();
        // SAFETY: zeroed memory of that size, aligned to a page and never given back; it holds atomics, for which zero
        // is valid.
        Origins::new(unsafe { place.as_ref() })
    }

    #[test]
    fn an_extent_has_held_what_was_told_and_if_it_was_moved_anything() {
        let origins = empty();
        let (first, second, third) = (Span::new(0x1000, 0x3000), Span::new(0x3000, 0x4000), Span::new(0x9000, 0xA000));
        assert!(!origins.may_hold(first) && !origins.may_have_held(1, first));
        origins.add(1, first);
        origins.add(2, second);
        let who = |span| [1, 2].map(|serial| origins.may_have_held(serial, span));
        assert_eq!([first, second, third].map(who), [[true, false], [false, true], [false; 2]]);
        assert_eq!([first, second, third].map(|span| origins.may_hold(span)), [true, true, false]);
        origins.note_move(2);
        assert_eq!(who(third), [false, true]);
        assert!(origins.may_hold(third));
        origins.clear();
        origins.add(1, first);
        origins.forget(1);
        assert!(!origins.may_hold(first) && !origins.may_have_held(1, first));
    }

    #[test]
    fn what_there_was_no_room_for_may_have_held_anything() {
        let origins = empty();
        assert!(origins.has_room());
        for serial in 1..=ORIGINS as u32 + 1 {
            origins.add(serial, Span::new(0x1000, 0x2000));
        }
        let elsewhere = Span::new(0x5000, 0x6000);
        assert_eq!([1, ORIGINS as u32 + 1].map(|serial| origins.may_have_held(serial, elsewhere)), [false, true]);
        assert!(origins.may_hold(elsewhere));
        assert!(!origins.has_room());
        origins.doubt();
        assert!([1, 2 * NEAR as u32].iter().all(|serial| origins.may_have_held(*serial, elsewhere)));
    }
}

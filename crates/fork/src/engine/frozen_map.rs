//! The *map*: which memory is frozen, with which rights and flags. Guards answer from the map alone, in any process:
//! they open no file, and no descriptor is kept.
//!
//! # What an entry says
//!
//! *Memory here is frozen, or is private anonymous memory that replaced frozen memory, with these rights and flags.* So
//! a discarded range stays in the map: discarding it again as if it were frozen gives fresh zeros again, as the kernel
//! would. Memory that may be anything else must be taken out: the program's mappings and changes of rights are reported
//! to the guards.
//!
//! Thawed memory stays in the map as well, without an extent: it is anonymous, but the kernel does not always join it
//! with its neighbours again, and refuses to move or grow what is one mapping to the program and several to the kernel.
//!
//! Calls inside the C library are not reported. It unmaps and maps memory of its heap and of stacks, which is private
//! and anonymous; the kernel reports a hole when it is asked to discard one. Files that it maps for itself it keeps to
//! itself.
//!
//! # Who may do what
//!
//! Anybody reads at any time, without a lock. Only whoever has set [`BUSY`] in a slot changes it. Whoever finds it set
//! for long (a signal handler that interrupted the owner; a child, if another thread of its parent was the owner) sets
//! [`UNSURE`] and goes on. Nobody acts on an unsure slot: guards fail, and nothing is lost. The next round rewrites the
//! map.
//!
//! The whole map is rewritten only while no other thread runs. A reader interrupted by that finds the generation
//! changed, and reads again.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use palimpsest_sys::memory::span::Span;

use super::entry::{BUSY, Entry, UNSURE};
use super::slots::Slots;

/// Most slots. Untouched ones cost nothing.
const SPANS: usize = 1 << 14;
/// As many of them are in the map itself: enough for a few gigabytes that were frozen in one go.
const NEAR: usize = 64;
/// The start of a slot that is being filled: above every end, so that its span is empty.
const CLAIMED: usize = usize::MAX;
/// How often a reader tries a slot that is being changed.
const PATIENCE: usize = 1 << 14;

/// The other slots. Zeroed memory is valid.
pub(super) type FarSpans = [Slot; SPANS - NEAR];

/// The map.
///
/// | field | written by |
/// |---|---|
/// | `generation`, `epoch`, `sorted` | whoever rewrites the map while no other thread runs |
/// | `low`, `high`, `used`, `free` | the same; and anybody who adds or removes a span, with one exchange each |
/// | a slot | whoever has set [`BUSY`] in it |
pub(crate) struct FrozenMap {
    /// Bounds of all spans.
    low: AtomicUsize,
    high: AtomicUsize,
    /// Rises with each rewrite.
    generation: AtomicUsize,
    /// Rises whenever memory is frozen or thawed, while whoever might notice is held still.
    epoch: AtomicUsize,
    /// This many slots from the start are sorted and apart. An emptied one keeps its start.
    sorted: AtomicUsize,
    /// Slots ever given out; may exceed `SPANS`.
    used: AtomicUsize,
    /// At least as many as the slots behind the sorted ones that were given back.
    free: AtomicUsize,
    slots: Slots<Slot, NEAR>,
}

pub(super) struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    entry: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self { start: AtomicUsize::new(0), end: AtomicUsize::new(0), entry: AtomicU64::new(0) }
    }

    fn span(&self) -> Span {
        Span::new(self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed))
    }

    /// Returns a consistent pair of span and entry.
    fn read(&self) -> (Span, Entry) {
        for _ in 0..PATIENCE {
            // Acquire, partner: the Release in `unlock`. Forbids to read a span from before the entry.
            let entry = self.entry.load(Ordering::Acquire);
            if entry & BUSY == 0 {
                let span = self.span();
                // Acquire, partner: the Release fence in `lock`. Forbids that the span was read from a later change,
                // and the entry below before it.
                fence(Ordering::Acquire);
                let again = (self.entry.load(Ordering::Relaxed), self.start.load(Ordering::Relaxed));
                if again == (entry, span.start) {
                    return (span, Entry(entry));
                }
            }
            std::hint::spin_loop();
        }
        let span = self.span();
        // The slot has been changing for long: whoever asks gets no answer.
        (span, Entry(self.entry.load(Ordering::Relaxed)).unsure())
    }

    /// Takes the right to change this slot. On failure makes the slot unsure and returns `None`.
    fn lock(&self) -> Option<Entry> {
        for _ in 0..PATIENCE {
            let known = self.entry.load(Ordering::Relaxed);
            // Acquire, partner: the Release in `unlock`.
            let taken = known & BUSY == 0
                && self.entry.compare_exchange(known, known | BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if taken {
                // Release, partner: the Acquire fence in `read`. Forbids that a change of the span is seen before BUSY.
                fence(Ordering::Release);
                return Some(Entry(known));
            }
            std::hint::spin_loop();
        }
        self.entry.fetch_or(UNSURE, Ordering::Relaxed);
        None
    }

    /// Ends a change. Keeps the slot unsure if others made it so meanwhile.
    fn unlock(&self, entry: Entry) {
        // Release, partner: the Acquire in `read` and `lock`.
        let _ =
            self.entry.try_update(Ordering::Release, Ordering::Relaxed, |known| Some(entry.0 & !BUSY | known & UNSURE));
    }

    /// Takes the slot if it is free.
    fn claim(&self) -> bool {
        // Relaxed: nobody relies on the start alone; `read` pairs span and entry.
        self.start.compare_exchange(0, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Fills a slot that was claimed.
    fn fill(&self, span: Span, entry: Entry) {
        self.entry.store(entry.0 | BUSY, Ordering::Relaxed);
        // Release, partner: the Acquire fence in `read`.
        fence(Ordering::Release);
        self.end.store(span.end, Ordering::Relaxed);
        self.start.store(span.start, Ordering::Relaxed);
        // Release, partner: the Acquire in `read`. Overwrites a mark left by a child's parent or a signal handler.
        self.entry.store(entry.0, Ordering::Release);
    }
}

impl FrozenMap {
    /// Makes an empty map.
    pub(super) const fn new(far: &'static FarSpans) -> Self {
        Self {
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            epoch: AtomicUsize::new(0),
            sorted: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            slots: Slots::new([const { Slot::new() }; NEAR], far),
        }
    }

    /// Whether `span` may hold frozen memory.
    pub(crate) fn holds(&self, span: Span) -> bool {
        self.bounds().overlaps(span) && self.first(span).is_some()
    }

    /// Returns the lowest part of `span` that is in the map, and its entry.
    pub(crate) fn first(&self, span: Span) -> Option<(Span, Entry)> {
        loop {
            let generation = self.generation.load(Ordering::Relaxed);
            let found = self.look(span);
            // A rewrite holds all other threads still, so that program order suffices to notice it.
            if self.generation.load(Ordering::Relaxed) == generation {
                return found.map(|(found, entry)| (span.intersection(found), entry));
            }
        }
    }

    fn look(&self, span: Span) -> Option<(Span, Entry)> {
        if self.is_in_doubt() {
            // The map is not complete: memory above the last slot is unknown, and after `doubt` all memory is.
            let last = self.slots[SPANS - 1].end.load(Ordering::Relaxed);
            let unknown = span.intersection(Span::new(last, self.bounds().end));
            if !unknown.is_empty() {
                return Some((unknown, Entry::unknown()));
            }
        }
        let (sorted, used) = self.counts();
        let place = self.slots.partition_point(sorted, |slot| slot.end.load(Ordering::Relaxed) <= span.start);
        let ahead = self.slots.iter(place..sorted).take_while(|slot| slot.start.load(Ordering::Relaxed) < span.end);
        let is_inside = |slot: &&Slot| span.overlaps(slot.span());
        let later = self.slots.iter(sorted..used).filter(is_inside);
        let candidates = ahead.filter(is_inside).take(1).chain(later).map(Slot::read);
        candidates.filter(|(known, _)| span.overlaps(*known)).min_by_key(|(known, _)| known.start)
    }

    /// Returns some span for which `is_wanted` returns true, in no order.
    pub(crate) fn find(&self, is_wanted: impl Fn(Span, Entry) -> bool) -> Option<(Span, Entry)> {
        self.all().find(|(span, entry)| is_wanted(*span, *entry))
    }

    /// Returns the lowest span from `at` on for which `is_wanted` returns true.
    pub(crate) fn next(&self, at: usize, is_wanted: impl Fn(Entry) -> bool) -> Option<(Span, Entry)> {
        let all = self.all().filter(|(span, _)| span.start >= at);
        all.filter(|(_, entry)| is_wanted(*entry)).min_by_key(|(span, _)| span.start)
    }

    /// Returns the lowest extent number above `after` for which `is_wanted` returns true of any entry.
    pub(crate) fn next_extent(&self, after: u32, is_wanted: impl Fn(Entry) -> bool) -> Option<u32> {
        let all = self.all().filter(|(_, entry)| is_wanted(*entry));
        all.filter_map(|(_, entry)| entry.extent()).filter(|serial| *serial > after).min()
    }

    /// Whether frozen memory may be missing from the map.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.used.load(Ordering::Relaxed) > SPANS
    }

    /// Returns the generation, which rises with each rewrite.
    pub(crate) fn generation(&self) -> usize {
        self.generation.load(Ordering::Relaxed)
    }

    /// Returns the epoch: as long as it stays the same, nothing is frozen or thawed.
    pub(crate) fn epoch(&self) -> usize {
        // Relaxed: who changes it holds all other threads still, so that program order suffices to notice it.
        self.epoch.load(Ordering::Relaxed)
    }

    /// Begins an epoch: memory was frozen or thawed. Only while no other thread runs.
    pub(crate) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes the whole map unsure: guards fail until it is rewritten.
    pub(crate) fn doubt(&self) {
        self.used.store(SPANS + 1, Ordering::Relaxed);
        self.slots[SPANS - 1].end.store(0, Ordering::Relaxed);
        self.low.store(1, Ordering::Relaxed);
        self.high.store(usize::MAX, Ordering::Relaxed);
    }

    /// Puts a span into the map, replacing what the map says of it. Returns false if there is no room.
    pub(crate) fn add(&self, span: Span, entry: Entry) -> bool {
        if span.is_empty() {
            return true;
        }
        self.forget(span);
        let Some(slot) = self.claim() else { return false };
        slot.fill(span, entry);
        self.widen(span);
        true
    }

    /// Adds a span above all others. Only while no other thread runs.
    pub(crate) fn append(&self, span: Span, entry: Entry) {
        if span.is_empty() {
            return;
        }
        let place = self.used.fetch_add(1, Ordering::Relaxed);
        if let Some(slot) = self.slots.get(place) {
            slot.fill(span, entry);
            self.sorted.store(place + 1, Ordering::Relaxed);
        }
        self.widen(span);
    }

    /// Sorts added spans in, so that a search need not read them all. Only while no other thread runs. Does nothing if
    /// a thread is held in the middle of a change.
    pub(super) fn sort(&self) {
        let (slots, (sorted, used)) = (&self.slots, self.counts());
        if sorted == used || self.is_in_doubt() || self.is_half_done(sorted) {
            return;
        }
        self.generation.fetch_add(1, Ordering::Relaxed);
        let mut count = 0;
        for (index, slot) in slots.iter(0..used).enumerate() {
            let (span, entry) = (slot.span(), Entry(slot.entry.load(Ordering::Relaxed)));
            if span.is_empty() {
                continue;
            }
            let place = match index < sorted {
                true => count,
                false => slots.partition_point(count, |known| known.start.load(Ordering::Relaxed) < span.start),
            };
            for at in (place..count).rev() {
                slots[at + 1].fill(slots[at].span(), Entry(slots[at].entry.load(Ordering::Relaxed)));
            }
            // A slot that keeps its place is not written: every written page costs every fork.
            if place != index {
                slots[place].fill(span, entry);
            }
            count += 1;
        }
        for slot in slots.iter(count..used) {
            slot.fill(Span::default(), Entry(0));
        }
        self.sorted.store(count, Ordering::Relaxed);
        self.used.store(count, Ordering::Relaxed);
        self.free.store(0, Ordering::Relaxed);
    }

    /// Whether a thread may be held in the middle of changing a slot, `sorted` of which are sorted: one that it has
    /// locked, has claimed, is giving back, or was given and has not claimed yet.
    fn is_half_done(&self, sorted: usize) -> bool {
        let is_locked = |slot: &Slot| slot.entry.load(Ordering::Relaxed) & BUSY != 0;
        let later = || self.slots.iter(sorted..self.counts().1);
        let is_between = |slot: &Slot| slot.start.load(Ordering::Relaxed) != 0 && slot.span().is_empty();
        let free = later().filter(|slot| slot.start.load(Ordering::Relaxed) == 0).count();
        self.used().any(is_locked) || later().any(is_between) || free > self.free.load(Ordering::Relaxed)
    }

    /// Notes that `span` is anonymous now. Forgets it if room is short.
    pub(crate) fn thaw(&self, span: Span) {
        // A thaw that thaws nothing begins no epoch: who asked for it would ask again, and again.
        if span.is_empty() {
            return;
        }
        self.begin_epoch();
        if self.has_room() { self.change(span, &Entry::thawed) } else { self.forget(span) }
    }

    /// Whether there is room for what slices add, and a quarter of all slots for what guards divide.
    pub(crate) fn has_room(&self) -> bool {
        let free = self.free.load(Ordering::Relaxed);
        self.used.load(Ordering::Relaxed).saturating_sub(free) <= SPANS - SPANS / 4
    }

    fn widen(&self, span: Span) {
        let _ = self.low.try_update(Ordering::Relaxed, Ordering::Relaxed, |low| {
            Some(if low == 0 { span.start } else { low.min(span.start) })
        });
        self.high.fetch_max(span.end, Ordering::Relaxed);
    }

    /// Claims a free slot: the next unused one, or one that was given back.
    fn claim(&self) -> Option<&Slot> {
        let (sorted, used) = self.counts();
        if self.free.load(Ordering::Relaxed) > 0 {
            if let Some(slot) = self.slots.iter(sorted..used).find(|slot| slot.claim()) {
                let _ = self.free.try_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
                return Some(slot);
            }
            self.free.store(0, Ordering::Relaxed);
        }
        loop {
            let next =
                self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < SPANS).then_some(used + 1));
            let slot = self.slots.get(next.ok()?)?;
            // Another thread may have taken this one for a slot that was given back.
            if slot.claim() {
                return Some(slot);
            }
        }
    }

    /// Removes a span: something else is there.
    pub(crate) fn forget(&self, span: Span) {
        self.rewrite(span, &|_| None);
    }

    /// Changes the entries of `span`.
    pub(crate) fn change(&self, span: Span, change: &dyn Fn(Entry) -> Entry) {
        self.rewrite(span, &|entry| Some(change(entry)));
    }

    /// Replaces each entry in `span` by what `change` returns, or removes it.
    pub(crate) fn rewrite(&self, span: Span, change: &dyn Fn(Entry) -> Option<Entry>) {
        if !self.bounds().overlaps(span) {
            return;
        }
        loop {
            let generation = self.generation.load(Ordering::Relaxed);
            self.rewrite_once(span, change);
            // Again, if a rewrite has moved slots meanwhile. Changing a slot twice does no harm.
            if self.generation.load(Ordering::Relaxed) == generation {
                return;
            }
        }
    }

    fn rewrite_once(&self, span: Span, change: &dyn Fn(Entry) -> Option<Entry>) {
        let (sorted, _) = self.counts();
        let place = self.slots.partition_point(sorted, |slot| slot.end.load(Ordering::Relaxed) <= span.start);
        let ahead = self.slots.iter(place..sorted).take_while(|slot| slot.start.load(Ordering::Relaxed) < span.end);
        let ahead = place..place + ahead.count();
        // Read last, so that a slot which somebody has just divided is not missed.
        let (_, used) = self.counts();
        for index in ahead.chain(sorted..used) {
            let slot = &self.slots[index];
            if span.overlaps(slot.span()) {
                self.rewrite_slot(index, span, change);
            }
        }
    }

    fn rewrite_slot(&self, index: usize, span: Span, change: &dyn Fn(Entry) -> Option<Entry>) {
        let slot = &self.slots[index];
        let Some(entry) = slot.lock() else { return };
        let known = slot.span();
        let inside = span.intersection(known);
        let changed = change(entry);
        if inside.is_empty() || changed == Some(entry) {
            return slot.unlock(entry);
        }
        let (left, right) = (Span::new(known.start, inside.start), Span::new(inside.end, known.end));
        let parts = [(left, Some(entry)), (inside, changed), (right, Some(entry))];
        let mut parts = parts.into_iter().filter(|(part, entry)| !part.is_empty() && entry.is_some());
        let Some((kept, Some(own))) = parts.next() else {
            if index < self.sorted.load(Ordering::Relaxed) {
                slot.end.store(known.start, Ordering::Relaxed);
                slot.unlock(entry);
            } else {
                slot.end.store(0, Ordering::Relaxed);
                // Empty the span before giving the slot back: from then on it is somebody else's.
                slot.unlock(entry);
                slot.start.store(0, Ordering::Relaxed);
                self.free.fetch_add(1, Ordering::Relaxed);
            }
            return;
        };
        for (part, entry) in parts {
            let (Some(other), Some(entry)) = (self.claim(), entry) else {
                // There is no room to tell the parts apart.
                return slot.unlock(entry.map_or(own, |entry| entry).unsure());
            };
            other.fill(part, entry);
        }
        slot.end.store(kept.end, Ordering::Relaxed);
        slot.start.store(kept.start, Ordering::Relaxed);
        slot.unlock(own);
    }

    /// Iterates over all entries, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = (Span, Entry)> {
        self.used().map(Slot::read).filter(|(span, _)| !span.is_empty())
    }

    /// Returns the span from the first to the last address.
    pub(crate) fn bounds(&self) -> Span {
        Span::new(self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// Forgets all spans. The caller adds those that count before any other thread runs.
    pub(crate) fn clear(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        // Slots never given out stay untouched: every written page would cost every fork.
        for slot in self.used() {
            slot.start.store(0, Ordering::Relaxed);
            slot.end.store(0, Ordering::Relaxed);
            slot.entry.store(0, Ordering::Relaxed);
        }
        for field in [&self.sorted, &self.used, &self.free, &self.low, &self.high] {
            field.store(0, Ordering::Relaxed);
        }
    }

    fn used(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter(0..self.counts().1)
    }

    /// Returns how many slots are sorted, and how many are used.
    fn counts(&self) -> (usize, usize) {
        let used = self.used.load(Ordering::Relaxed).min(SPANS);
        (self.sorted.load(Ordering::Relaxed).min(used), used)
    }
}

#[cfg(test)]
#[path = "frozen_map_tests.rs"]
mod tests;

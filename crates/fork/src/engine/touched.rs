//! The *touched spans*: a superset of what is frozen, and what mappings there have that a replacement must have too. Read and written without a lock.
//!
//! A slot is taken by an exchange of its start, and is free when that is 0. While other threads run, slots are taken and given back; the whole list is rewritten with
//! no other thread running, and who was interrupted while reading finds the generation changed and reads again.
//!
//! A reader that sees the start of one span and the end of another, since the slot was given back and taken anew meanwhile, is told of too much, or of a span that
//! is none. It misses nothing of its own: what it asks about was frozen before it got to know of it, by this thread or one that it has synchronised with, and
//! nobody else gives that span back. So all accesses are relaxed.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use palimpsest_sys::vmas::VmaFlags;

use super::span::Span;

/// When they are used up, the answer is yes to everything.
const SPANS: usize = 1 << 12;

/// The start of a slot that is being filled: above every end, so that the span is empty.
const CLAIMED: usize = usize::MAX;

/// In `traits`: the mappings must be asked.
const UNKNOWN: u64 = 1 << 32;

/// Zeroed memory is a valid one.
pub(crate) struct Touched {
    /// Bounds of all spans.
    low: AtomicUsize,
    high: AtomicUsize,
    /// Grows with each rewriting.
    generation: AtomicUsize,
    /// Slots that were given out at least once; may exceed `SPANS`.
    used: AtomicUsize,
    /// Slots that were given back, or more.
    free: AtomicUsize,
    slots: [Slot; SPANS],
}

#[derive(Default)]
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    /// The flags of the mappings, or [`UNKNOWN`].
    traits: AtomicU64,
}

impl Slot {
    fn span(&self) -> Span {
        Span::new(self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed))
    }

    /// Takes the slot if it is free.
    fn claim(&self) -> bool {
        self.start.compare_exchange(0, CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Fills a slot that was claimed.
    fn fill(&self, span: Span, traits: u64) {
        self.traits.store(traits, Ordering::Relaxed);
        self.end.store(span.end, Ordering::Relaxed);
        self.start.store(span.start, Ordering::Relaxed);
    }

    fn empty(&self) {
        self.start.store(0, Ordering::Relaxed);
        self.end.store(0, Ordering::Relaxed);
    }
}

impl Touched {
    /// Whether `span` may hold frozen memory. Says yes too often rather than too seldom.
    pub(crate) fn holds(&self, span: Span) -> bool {
        if span.start >= self.high.load(Ordering::Relaxed) || span.end <= self.low.load(Ordering::Relaxed) {
            return false;
        }
        loop {
            let generation = self.generation.load(Ordering::Relaxed);
            let Some(slots) = self.slots.get(..self.used.load(Ordering::Relaxed)) else { return true };
            let found = slots.iter().any(|slot| span.overlaps(slot.span()));
            // A rewriting happens with all other threads held still, so that program order suffices to notice it.
            if found || self.generation.load(Ordering::Relaxed) == generation {
                return found;
            }
        }
    }

    /// The flags of all frozen mappings in `span`, which is of one mapping; nothing if the kernel must be asked.
    pub(crate) fn flags(&self, span: Span) -> Option<VmaFlags> {
        let slots = self.slots.get(..self.used.load(Ordering::Relaxed))?;
        let mut holding = slots.iter().filter(|slot| span.overlaps(slot.span()));
        let slot = holding.next()?;
        let known = slot.traits.load(Ordering::Relaxed);
        let is_whole = span.intersection(slot.span()) == span && holding.next().is_none();
        (is_whole && known & UNKNOWN == 0).then_some(VmaFlags::from_bits(known as u32))
    }

    /// Adds a span. Without `flags` the kernel is asked for them.
    pub(crate) fn add(&self, span: Span, flags: Option<VmaFlags>) {
        if span.is_empty() {
            return;
        }
        let traits = flags.map_or(UNKNOWN, |flags| u64::from(flags.bits()));
        let known = self.used().iter().find(|slot| span.intersection(slot.span()) == span);
        if let Some(slot) = known {
            if slot.traits.load(Ordering::Relaxed) != traits {
                slot.traits.store(UNKNOWN, Ordering::Relaxed);
            }
            return;
        }
        if let Some(slot) = self.claim() {
            slot.fill(span, traits);
        }
        let _ = self.low.try_update(Ordering::Relaxed, Ordering::Relaxed, |low| {
            Some(if low == 0 { span.start } else { low.min(span.start) })
        });
        self.high.fetch_max(span.end, Ordering::Relaxed);
    }

    /// A free slot: one that was given back, or the next.
    fn claim(&self) -> Option<&Slot> {
        if self.free.load(Ordering::Relaxed) > 0 {
            if let Some(slot) = self.used().iter().find(|slot| slot.claim()) {
                let _ = self.free.try_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(1));
                return Some(slot);
            }
            self.free.store(0, Ordering::Relaxed);
        }
        loop {
            let slot = self.slots.get(self.used.fetch_add(1, Ordering::Relaxed))?;
            // Somebody else may have taken it for one that was given back.
            if slot.claim() {
                return Some(slot);
            }
        }
    }

    /// Takes a span out that is mapped no more, or tells that it is not frozen any more.
    pub(crate) fn forget(&self, span: Span) {
        for slot in self.used() {
            let known = slot.span();
            if known.start != 0 && !known.is_empty() && span.intersection(known) == known {
                slot.empty();
                self.free.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Tells that mappings in `span` may have other flags from now on.
    pub(crate) fn change(&self, span: Span) {
        for slot in self.used().iter().filter(|slot| span.overlaps(slot.span())) {
            slot.traits.store(UNKNOWN, Ordering::Relaxed);
        }
    }

    /// From the first to the last touched address.
    pub(crate) fn bounds(&self) -> Span {
        Span::new(self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed))
    }

    /// Forgets all spans. The caller adds those that count before any other thread runs.
    pub(crate) fn clear(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
        // Slots that were never given out stay untouched: each page would cost every fork.
        self.used().iter().for_each(Slot::empty);
        self.used.store(0, Ordering::Relaxed);
        self.free.store(0, Ordering::Relaxed);
        self.low.store(0, Ordering::Relaxed);
        self.high.store(0, Ordering::Relaxed);
    }

    fn used(&self) -> &[Slot] {
        &self.slots[..self.used.load(Ordering::Relaxed).min(SPANS)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Box<Touched> {
        Box::new(Touched {
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            generation: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            free: AtomicUsize::new(0),
            slots: [const { Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), traits: AtomicU64::new(0) } };
                SPANS],
        })
    }

    const fn span(start: usize) -> Span {
        Span::new(start << 12, (start + 1) << 12)
    }

    #[test]
    fn slots_that_were_given_back_are_used_again() {
        let touched = empty();
        touched.add(Span::new(1 << 12, 2 << 12), None);
        touched.add(Span::new(1 << 40, (1 << 40) + 4096), None);
        // As a block that is moved again and again.
        for place in 10..10 + 3 * SPANS {
            touched.add(span(place), None);
            assert!(touched.holds(span(place)));
            touched.forget(span(place));
        }
        assert!(!touched.holds(span(5)) && !touched.holds(span(10)), "the slots are used up");
        assert!(touched.holds(span(1)));
        // Those that are really full say yes.
        (0..SPANS).for_each(|place| touched.add(span(1000 + 2 * place), None));
        assert!(touched.holds(span(5)));
        touched.clear();
        assert!(!touched.holds(span(1)));
    }

    #[test]
    fn flags_are_known_until_they_change() {
        let touched = empty();
        let (plain, dumped) = (VmaFlags::default(), VmaFlags::DONT_DUMP);
        touched.add(Span::new(0x10_0000, 0x20_0000), Some(plain));
        touched.add(Span::new(0x20_0000, 0x30_0000), Some(dumped));
        assert_eq!(touched.flags(Span::new(0x10_0000, 0x11_0000)), Some(plain));
        assert_eq!(touched.flags(Span::new(0x20_0000, 0x30_0000)), Some(dumped));
        assert_eq!(touched.flags(Span::new(0x1f_0000, 0x21_0000)), None, "two kinds");
        assert_eq!(touched.flags(Span::new(0x2f_0000, 0x31_0000)), None, "not all of it is frozen");
        touched.change(Span::new(0x20_0000, 0x20_1000));
        assert_eq!(touched.flags(Span::new(0x28_0000, 0x29_0000)), None);
        assert_eq!(touched.flags(Span::new(0x10_0000, 0x20_0000)), Some(plain));
        // The same place with other flags.
        touched.add(Span::new(0x10_0000, 0x11_0000), Some(dumped));
        assert_eq!(touched.flags(Span::new(0x12_0000, 0x13_0000)), None);
    }
}

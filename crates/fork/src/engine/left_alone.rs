//! Memory that a freeze in slices leaves alone, because the program has changed it in ways that cannot be seen later:
//! its mapping was replaced, or has other flags or a key (a child must not get what `MADV_DONTFORK` keeps from it).
//!
//! Guards write it, in any thread and in signal handlers; slices read it while nobody else runs. Relaxed everywhere: a
//! slot counts only when it is complete, and a thread that was interrupted before that has either not made its call
//! yet, or reports it again afterwards.

use std::sync::atomic::{AtomicUsize, Ordering};

use palimpsest_sys::memory::span::Span;

/// When these are full, the rest shares one hull.
const SLOTS: usize = 256;

/// The list. Zeroed memory is a valid, empty one.
#[derive(Debug)]
pub(crate) struct LeftAlone {
    /// The bounds of planned memory; empty if nothing is planned.
    low: AtomicUsize,
    high: AtomicUsize,
    /// Slots given out; may exceed `SLOTS`.
    used: AtomicUsize,
    /// Start and end.
    slots: [(AtomicUsize, AtomicUsize); SLOTS],
    /// The hull of all that found no slot.
    rest: (AtomicUsize, AtomicUsize),
}

impl LeftAlone {
    /// Makes an empty list.
    pub(crate) const fn new() -> Self {
        Self {
            low: AtomicUsize::new(0),
            high: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            slots: [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; SLOTS],
            rest: (AtomicUsize::new(0), AtomicUsize::new(0)),
        }
    }

    /// Begins anew: from now on changes count anywhere.
    pub(crate) fn begin(&self) {
        for (start, end) in self.slots.iter().take(self.used.load(Ordering::Relaxed)) {
            start.store(0, Ordering::Relaxed);
            end.store(0, Ordering::Relaxed);
        }
        self.rest.0.store(usize::MAX, Ordering::Relaxed);
        self.rest.1.store(0, Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
        self.narrow(Span::new(0, usize::MAX));
    }

    /// Ends: from now on no change counts.
    pub(crate) fn end(&self) {
        self.high.store(0, Ordering::Relaxed);
    }

    /// Narrows what counts to these bounds.
    pub(crate) fn narrow(&self, bounds: Span) {
        self.high.store(bounds.end, Ordering::Relaxed);
        self.low.store(bounds.start, Ordering::Relaxed);
    }

    /// Whether planned memory may lie in `span`.
    pub(crate) fn concerns(&self, span: Span) -> bool {
        Span::new(self.low.load(Ordering::Relaxed), self.high.load(Ordering::Relaxed)).overlaps(span)
    }

    /// Leaves `span` alone from now on.
    pub(crate) fn add(&self, span: Span) {
        if !self.concerns(span) || self.is_known(span) {
            return;
        }
        let place = self.used.fetch_add(1, Ordering::Relaxed);
        match self.slots.get(place) {
            Some((start, end)) => {
                start.store(span.start, Ordering::Relaxed);
                end.store(span.end, Ordering::Relaxed);
            }
            None => {
                self.rest.0.fetch_min(span.start, Ordering::Relaxed);
                self.rest.1.fetch_max(span.end, Ordering::Relaxed);
            }
        }
    }

    fn is_known(&self, span: Span) -> bool {
        self.all().any(|known| known.intersection(span) == span)
    }

    /// Returns the first part of `span` that is left alone.
    pub(super) fn first(&self, span: Span) -> Option<Span> {
        self.all().map(|known| known.intersection(span)).filter(|part| !part.is_empty()).min_by_key(|part| part.start)
    }

    fn all(&self) -> impl Iterator<Item = Span> {
        let slots = self.slots.iter().take(self.used.load(Ordering::Relaxed));
        slots.chain([&self.rest]).filter_map(|(start, end)| {
            let (start, end) = (start.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
            (start < end).then_some(Span::new(start, end))
        })
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::vec::leak_zeroed;

    use super::*;

    #[test]
    fn what_is_added_is_left_alone_also_when_there_are_too_many() {
        let place = leak_zeroed(size_of::<LeftAlone>()).expect("memory").cast::<LeftAlone>();
        // SAFETY: zeroed memory of that size, aligned to a page and never given back; it holds atomics, for which zero
        // is valid.
        let left = unsafe { place.as_ref() };
        let page = |number: usize| Span::new(number << 12, (number + 1) << 12);
        left.add(page(5));
        assert_eq!(left.first(page(5)), None, "nothing is planned");
        left.begin();
        left.narrow(Span::new(1 << 12, 1 << 30));
        left.add(page(5));
        left.add(Span::new(1 << 40, 1 << 41));
        assert_eq!(left.first(Span::new(0, 1 << 50)), Some(page(5)), "what is elsewhere does not count");
        for number in 10..10 + 2 * SLOTS {
            left.add(page(2 * number));
            assert_eq!(left.first(page(2 * number)), Some(page(2 * number)));
        }
        assert_eq!(left.first(page(21)), None);
        assert_eq!(left.first(page(2 * SLOTS + 101)), Some(page(2 * SLOTS + 101)), "in the hull of many");
        left.end();
        left.add(page(7));
        left.begin();
        assert_eq!(left.first(Span::new(0, 1 << 50)), None);
    }
}

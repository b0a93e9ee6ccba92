//! Forks that the ledger does not know yet.
//!
//! The ledger is on a page that children share, so that each fork that it accounts for copies that page. A fork server
//! forks every fraction of a millisecond, and one fork is like the other: these are noted on the page that the kernel
//! [wipes](crate::hazards::wiped) in children, which costs no copy, and booked together, in their order, by whoever
//! next takes the lock.
//!
//! Relaxed: if two threads fork at once, one of the forks may be lost, as without notes.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Forks that there is room for.
const ROOM: usize = 32;

/// The notes. Zeroed memory is none.
#[derive(Debug, Default)]
pub(crate) struct Unbooked {
    count: AtomicUsize,
    /// What they took beyond clean ones.
    owed: AtomicU64,
    /// What each took.
    times: [AtomicU64; ROOM],
}

impl Unbooked {
    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed).min(ROOM)
    }

    /// Returns what they took beyond clean ones.
    pub(crate) fn owed(&self) -> u64 {
        self.owed.load(Ordering::Relaxed)
    }

    /// Notes a fork that took `taken`, `excess` more than a clean one. Returns false if there is no room.
    pub(crate) fn note(&self, taken: u64, excess: u64) -> bool {
        let count = self.count();
        let Some(place) = self.times.get(count) else { return false };
        place.store(taken, Ordering::Relaxed);
        self.owed.store(self.owed().saturating_add(excess), Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
        true
    }

    /// Passes what each took to `book`, the first one first, and forgets them.
    pub(crate) fn book(&self, book: impl FnMut(u64)) {
        let count = self.count();
        if count == 0 {
            return;
        }
        self.count.store(0, Ordering::Relaxed);
        self.owed.store(0, Ordering::Relaxed);
        self.times.iter().take(count).map(|time| time.load(Ordering::Relaxed)).for_each(book);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_booked_once_and_in_their_order() {
        let unbooked = Unbooked::default();
        let noted = (0..).take_while(|&taken| unbooked.note(taken, 2)).count();
        assert_eq!((noted, unbooked.count(), unbooked.owed()), (ROOM, ROOM, 2 * ROOM as u64));
        let mut booked = Vec::new();
        unbooked.book(|taken| booked.push(taken));
        assert_eq!(booked, (0..ROOM as u64).collect::<Vec<_>>());
        assert_eq!((unbooked.count(), unbooked.owed()), (0, 0));
        assert!(unbooked.note(7, 0));
        unbooked.book(|taken| booked.push(taken));
        assert_eq!(&booked[ROOM..], [7]);
    }
}

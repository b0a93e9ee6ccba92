//! Words of tables. Page walkers read entries at any time, and some set marks in them: every access of an entry that a
//! walker can reach goes through here.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::address::Level;
use crate::format::{Entry, Format, Leaf};

/// The bits of an entry.
#[inline]
pub(crate) fn load(entry: &AtomicU64) -> u64 {
    meanwhile(entry);
    // Acquire, partner: the Release in `publish`. Forbids that a table is read as it was before it was filled.
    entry.load(Ordering::Acquire)
}

/// Makes an entry known to walkers and to other CPUs of this crate. Loses marks that a walker sets since it was read:
/// for entries that walkers do not mark, or whose marks nobody asks for.
#[inline]
pub(crate) fn publish(entry: &AtomicU64, bits: u64) {
    meanwhile(entry);
    // Release, partners: `load`, and the hardware's walkers, which depend on the address. Forbids that a table or page
    // is seen before what it holds.
    entry.store(bits, Ordering::Release);
}

/// As [`publish`]. The result is what the entry was until then, with every mark that a walker has set.
#[inline]
pub(crate) fn exchange(entry: &AtomicU64, bits: u64) -> u64 {
    meanwhile(entry);
    // AcqRel: as `load` and `publish`.
    entry.swap(bits, Ordering::AcqRel)
}

/// Changes a page's entry without losing a mark that a walker sets meanwhile. Returns the page as it was; none if the
/// entry is no page.
pub(crate) fn change_leaf<F: Format>(entry: &AtomicU64, level: Level, change: impl Fn(Leaf) -> Leaf) -> Option<Leaf> {
    let mut bits = load(entry);
    loop {
        let Entry::Leaf(leaf) = F::decode(level, bits) else { return None };
        let new = F::leaf(level, change(leaf));
        if new == bits {
            return Some(leaf);
        }
        meanwhile(entry);
        // AcqRel and Acquire: as `publish` and `load`.
        match entry.compare_exchange_weak(bits, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(leaf),
            Err(found) => bits = found,
        }
    }
}

/// Other CPUs' turn, where a test wants them to have one. Walkers leave an empty entry as it is.
#[inline(always)]
fn meanwhile(_entry: &AtomicU64) {
    #[cfg(all(feature = "interleave", not(loom)))]
    // Relaxed: decides when a test acts, and nothing else.
    if _entry.load(Ordering::Relaxed) != 0 {
        crate::sim::interleave::meanwhile();
    }
}

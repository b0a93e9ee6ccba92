//! Words of tables. Page walkers read entries at any time, and some set marks in them: every access to an entry that a
//! walker can reach goes through here.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::address::Level;
use crate::format::{Entry, Format, Leaf};

/// Reads an entry's bits.
#[inline]
pub(crate) fn load(entry: &AtomicU64) -> u64 {
    meanwhile(entry);
    // Acquire, partner: the Release in `publish`. Forbids reading a table as it was before it was filled.
    entry.load(Ordering::Acquire)
}

/// Publishes an entry to walkers and to other CPUs of this crate. Loses marks that a walker has set since it was read:
/// only for entries that walkers do not mark, or whose marks nobody needs.
#[inline]
pub(crate) fn publish(entry: &AtomicU64, bits: u64) {
    meanwhile(entry);
    // Release, partners: `load`, and the hardware's walkers, which depend on the address. Forbids seeing a table or
    // page before its contents.
    entry.store(bits, Ordering::Release);
}

/// Does what [`publish`] does. Returns the previous entry, with every mark that a walker has set.
#[inline]
pub(crate) fn exchange(entry: &AtomicU64, bits: u64) -> u64 {
    meanwhile(entry);
    // AcqRel: as `load` and `publish`.
    entry.swap(bits, Ordering::AcqRel)
}

/// Changes a page's entry without losing a mark that a walker sets meanwhile. Returns the previous page; `None` if the
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

/// Lets other CPUs act, where a test wants that. Walkers never change an empty entry.
#[inline(always)]
fn meanwhile(_entry: &AtomicU64) {
    #[cfg(all(feature = "interleave", not(loom)))]
    // Relaxed: only decides when a test acts.
    if _entry.load(Ordering::Relaxed) != 0 {
        crate::sim::interleave::meanwhile();
    }
}

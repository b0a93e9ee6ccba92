//! Whether a piece is one huge page.
//!
//! From Linux 6.7 on the kernel tells (`PAGEMAP_SCAN`). Before, we remember. A write splits a huge page only if a child
//! shows it as well, and a discard leaves pages out, which any kernel tells. So a piece that was made whole since the
//! last fork, and has all its pages, is whole. Others are asked for again: where nothing is split, that takes the
//! kernel less than a microsecond for each.
//!
//! Forks are counted before and behind the call, so that nobody who asks for huge pages in between, in another thread,
//! takes them for made after it. Forks of a bare `clone` are not seen: what their children split is asked for after the
//! next one of ours.

/// How whoever looks learns which pieces are huge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sight {
    /// The kernel tells.
    Told,
    /// What was made since the last fork is remembered.
    Remembered {
        /// The number of forks.
        forks: u64,
    },
}

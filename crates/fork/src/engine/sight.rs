//! Who tells whether a piece is one huge page.
//!
//! From Linux 6.7 on the kernel does (`PAGEMAP_SCAN`). Before, we remember. A write splits a huge page only if a child
//! shows it as well, and a discard leaves pages out, which any kernel tells. So a piece that was made whole since the
//! last fork, and has all its pages, is whole. Others are asked for again once no child shows them. Of a whole one that
//! takes the kernel less than a microsecond; the time tells whether anything was mended.
//!
//! While a child shows a piece, and the process has no page of it for itself, nobody has written to it since the fork:
//! if it was whole then, it is whole.
//!
//! Forks are counted before and behind the call, so that nobody who asks for huge pages in between, in another thread,
//! takes them for made after it.
//!
//! Whatever we are wrong about is mended later than it could be, after a fork of ours: what children of a bare `clone`
//! have split, what was swapped out, or a page that a child alone has written to.

/// Nanoseconds for each piece below which asking has mended none: to mend one takes 277 µs and more
/// (docs/records/2026-11-27-evening).
pub(super) const LEAST_MENDING: u64 = 50_000;

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

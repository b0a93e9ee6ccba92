//! What to expect of x86-64.

/// Traps, tails, first bytes.
pub(crate) const SYNCS: u64 = 3;
/// Bytes of a site.
pub(crate) const SITE: usize = 5;

//! What to expect of AArch64.

/// One store for each site.
pub(crate) const SYNCS: u64 = 1;
/// Bytes of a site.
pub(crate) const SITE: usize = 4;

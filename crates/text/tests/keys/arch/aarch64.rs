//! What to expect of AArch64.

/// One store for each site.
pub(crate) const SYNCS: u64 = 1;
/// The target for which programs are compiled.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Bytes of a site.
pub(crate) const SITE: usize = 4;

/// Returns true: the instruction is an aligned word.
pub(crate) fn is_one_store(site: usize, _changed: usize) -> bool {
    site.is_multiple_of(SITE)
}

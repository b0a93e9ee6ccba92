//! What to expect of x86-64.

/// One byte for each site.
pub(crate) const SYNCS: u64 = 1;
/// The target for which programs are compiled.
pub(crate) const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Bytes of a site.
pub(crate) const SITE: usize = 5;

/// Returns true for one byte, which is stored as a whole wherever it lies.
pub(crate) fn is_one_store(_site: usize, changed: usize) -> bool {
    changed == 1
}

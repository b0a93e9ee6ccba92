//! Which process this is, of those that were forked from each other.

#[cfg(feature = "std")]
use palimpsest_sys::{ForkDetector, SetOnce};

/// Counts from the process that asked first. Not a `LazyLock`: a child forked in the middle of the first use would wait
/// for it for ever.
#[cfg(feature = "std")]
static HERE: SetOnce<ForkDetector> = SetOnce::new();

/// Allocates at its first call in a process, which is that of the first map, program or hook.
#[cfg(feature = "std")]
pub(crate) fn here() -> &'static ForkDetector {
    HERE.get_or_init(ForkDetector::new)
}

/// Returns a number that is not 0, and that no process has from which this one was forked.
#[cfg(feature = "std")]
pub(crate) fn generation() -> u32 {
    here().generation()
}

/// There is one process.
#[cfg(not(feature = "std"))]
pub(crate) const fn generation() -> u32 {
    1
}

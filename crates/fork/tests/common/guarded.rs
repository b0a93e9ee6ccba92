//! Memory calls, as an interposer makes them.

use palimpsest_fork::guard;
use rustix::io::Errno;

use super::Memory;

/// `madvise(2)`.
pub(crate) fn madvise(memory: &Memory, offset: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: 1. the scenario's own memory.
    unsafe { guard::madvise(memory.at(offset).addr(), len, advice) }
}

/// `mremap(2)`.
pub(crate) fn mremap(remap: guard::Remap) -> Result<usize, Errno> {
    // SAFETY: 1. the scenario's own memory.
    unsafe { guard::mremap(remap) }
}

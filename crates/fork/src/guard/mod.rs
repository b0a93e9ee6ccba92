//! What has to happen when a program manages memory that is frozen, so that it sees what it would see of anonymous memory.
//!
//! For whoever stands between a program and the kernel: an interposed `madvise` asks here first. Nothing here uses the heap, and `errno` is left alone.
//! A process that never froze pays one load. Pointers may have tags (AArch64, and x86-64 with LAM), wherever the kernel takes them.
//!
//! Whether an address shows frozen memory is told by the kernel each time, from the mapping's file: the library's own list may be out of date, as
//! the C library's inner calls pass by everyone. For that a descriptor is kept from the first freeze on, so that neither a `chroot` nor the limit of descriptors is in
//! the way. If the program closes it and no other can be opened, calls about frozen memory fail with ENOMEM, and nothing is changed.
//!
//! A guard stops other threads only if the freeze was allowed to ([`OtherThreads::Stop`](crate::OtherThreads::Stop)). Only what must become anonymous memory needs
//! that: `MADV_WIPEONFORK` and `MREMAP_DONTUNMAP`, which fail with EINVAL otherwise, as from a kernel that cannot do them for such memory.

mod advice;
mod errno;
mod frozen;
mod moving;
mod thaw;

use std::ops::Range;

use rustix::io::Errno;

pub use advice::madvise;
pub use moving::{Remap, mremap};
pub use thaw::{before_mlock, before_mlockall, thaw};

use crate::engine::registry;
use crate::engine::span::Span;

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T = ()> {
    /// No frozen memory is concerned: make the system call.
    NotOurs,
    /// It is done, with this result; the system call must not be made.
    Done(Result<T, Errno>),
}

/// Whether a range may hold frozen memory. Takes no lock; says yes too often rather than too seldom.
pub fn touches(range: Range<usize>) -> bool {
    registry::shared().is_some_and(|shared| shared.touched.holds(Span::of_pointers(range)))
}

/// Whether this process runs in the memory of another, as children of `vfork` do: then it must leave frozen memory to its owner. The first call in a process
/// decides that the memory is its own; call it early.
pub fn is_borrowed() -> bool {
    crate::hazards::borrowed::owner().is_some()
}

/// Looks up what a freeze needs of the dynamic linker, which takes locks and may allocate: for whoever may freeze inside of `malloc` or a signal handler. Else a freeze does it
/// itself.
pub fn prepare() {
    crate::engine::own::find_rseq();
}

/// Tells that whatever was at `range` is gone (`munmap`, `mmap` with `MAP_FIXED`). Not needed for correctness: it keeps [`touches`] quick.
pub fn forget(range: Range<usize>) {
    if let Some(shared) = registry::shared() {
        shared.touched.forget(Span::of_pointers(range));
    }
}

/// Tells that mappings in `range` are about to get other flags, by `mprotect` with other rights than read, write and execute (`PROT_MTE`), `pkey_mprotect`, `mlock`, or
/// advice that did not come through [`madvise`]: what is replaced from then on has what the kernel tells. Call it again afterwards if other threads may freeze.
pub fn changed(range: Range<usize>) {
    if let Some(shared) = registry::shared() {
        shared.touched.change(Span::of_pointers(range));
    }
}

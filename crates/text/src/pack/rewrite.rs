//! What changing a program in place needs from it.

use super::error::WriteError;
use super::memory::Opened;
use super::program::Program;
use crate::observe::{Patch, Patched};
use crate::poke::Site;

impl Program {
    /// Returns whether this process has loaded it, and not an ancestor.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.0.store().fork.is_same_process()
    }

    /// Returns whether it lies in shared memory, which forked children share with this process and which is written
    /// through an [`alias`](Self::alias).
    pub(crate) fn is_shared(&self) -> bool {
        self.0.meta().pack().memory.is_shared()
    }

    /// Returns where to write the byte at `offset`, if the memory is shared, while [`open`](Self::open) is in effect.
    pub(crate) fn alias(&self, offset: usize) -> Option<*mut u8> {
        debug_assert!(offset < self.len());
        let meta = self.0.meta();
        Some(meta.pack().memory.alias()?.wrapping_add(meta.start as usize + offset))
    }

    /// Makes instruction fetch see what has been written to `len` bytes at `offset`.
    pub(crate) fn flush(&self, offset: usize, len: usize) {
        let meta = self.0.meta();
        meta.pack().memory.flush(meta.start as usize + offset, len);
    }

    /// Makes the alias writable, if it is not at all times.
    pub(crate) fn open(&self) -> Result<Opened<'_>, WriteError> {
        self.0.meta().pack().memory.open()
    }

    /// Tells the observers that sites of this program have changed.
    pub(crate) fn tell_patched(&self, sites: &[Site]) {
        let store = self.0.store();
        if store.config.observers.is_empty() {
            return;
        }
        // SAFETY: the program's bytes, readable as long as `self` lives; and not written, since the process's batches
        // take turns and the caller's is under way.
        let code = unsafe { std::slice::from_raw_parts(self.entry(), self.len()) };
        let patch = |site: &Site| Patch { address: site.address, old: site.old, new: site.new };
        let patches: Vec<_> = sites.iter().map(patch).collect();
        let (name, functions) = (self.name(), self.0.meta().functions());
        let patched = Patched { name, address: self.address(), code, patches: &patches, functions };
        store.observe(|observer| observer.patched(&patched));
    }
}

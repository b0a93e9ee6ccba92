//! The crate `jit-allocator`, a port of asmjit's allocator: small programs share dual-mapped blocks, without huge
//! pages.

use super::{Loaded, Placer, foreign};
use crate::PlaceError;
use crate::machine::DualAllocator;

/// See the module.
pub(super) struct JitAllocatorPeer(DualAllocator);

impl JitAllocatorPeer {
    /// Without programs.
    pub(super) fn new() -> Self {
        Self(DualAllocator::new())
    }
}

impl Placer for JitAllocatorPeer {
    fn load(&mut self, code: &[u8]) -> Result<Loaded, PlaceError> {
        self.0.place(code).map(Loaded::Allocated)
    }

    fn free(&mut self, loaded: Loaded) -> Result<(), PlaceError> {
        match loaded {
            Loaded::Allocated(allocated) => self.0.release(allocated),
            _ => Err(foreign("jit_allocator")),
        }
    }
}

//! The peers' unsafe interfaces: writing to and releasing from `jit-allocator`; dropping a `cranelift-jit` module's
//! memory.

use std::ptr;

use cranelift_jit::JITModule;
use jit_allocator::{JitAllocator, JitAllocatorOptions, ResetPolicy, flush_instruction_cache};

use crate::PlaceError;

const JIT_ALLOCATOR: &str = "jit-allocator";

/// `jit-allocator` with its default options: two views of shared memory.
pub(crate) struct DualAllocator(Box<JitAllocator>);

/// A program in a [`DualAllocator`]; only that allocator's `release` ends it.
#[derive(Debug)]
pub(crate) struct Allocated {
    executable: *const u8,
}

impl Allocated {
    /// First byte of the program.
    pub(crate) fn entry(&self) -> *const u8 {
        self.executable
    }
}

impl DualAllocator {
    /// An allocator without programs.
    pub(crate) fn new() -> Self {
        Self(JitAllocator::new(JitAllocatorOptions::default()))
    }

    /// Copies `code` into memory of its own.
    pub(crate) fn place(&mut self, code: &[u8]) -> Result<Allocated, PlaceError> {
        let (executable, writable) = self.0.alloc(code.len()).map_err(|error| PlaceError::Peer {
            peer: JIT_ALLOCATOR,
            len: code.len(),
            reason: format!("{error:?}"),
        })?;
        // SAFETY: `alloc` returned `writable` as the view for writing of at least `code.len()` bytes that nobody else
        // has.
        unsafe { ptr::copy_nonoverlapping(code.as_ptr(), writable, code.len()) };
        flush_instruction_cache(executable, code.len());
        Ok(Allocated { executable })
    }

    /// Gives back the memory of a program.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "taking the program by value is what makes a second release impossible"
    )]
    pub(crate) fn release(&mut self, allocated: Allocated) -> Result<(), PlaceError> {
        // SAFETY: `executable` came from `alloc`, and taking `allocated` by value rules out a second release; a program
        // of another allocator is not found in this one's tree and answered by an error.
        let released = unsafe { self.0.release(allocated.executable) };
        released.map_err(|error| PlaceError::Peer { peer: JIT_ALLOCATOR, len: 0, reason: format!("{error:?}") })
    }
}

impl Drop for DualAllocator {
    fn drop(&mut self) {
        // SAFETY: whoever owns the allocator owns its programs too and has released them (`machine::Population`, the
        // suites), so nothing calls into the blocks that this unmaps.
        unsafe { self.0.reset(ResetPolicy::Hard) };
    }
}

/// A `JITModule` whose memory is freed with it; the module alone would leak it.
///
/// Its functions may not be called after the drop: `placers::cranelift_jit` replaces the module only when no program is
/// held.
pub(crate) struct OwnedModule(Option<JITModule>);

impl OwnedModule {
    /// Takes a module.
    pub(crate) fn new(module: JITModule) -> Self {
        Self(Some(module))
    }

    /// Returns the module. `None` only while it is being dropped.
    pub(crate) fn get(&mut self) -> Option<&mut JITModule> {
        self.0.as_mut()
    }
}

impl Drop for OwnedModule {
    fn drop(&mut self) {
        if let Some(module) = self.0.take() {
            // SAFETY: as this type's documentation demands, no program of the module is held, so that none is called
            // any more.
            unsafe { module.free_memory() };
        }
    }
}

//! Programs in place on every node.

use std::fmt;

use palimpsest_sys::numa::NodeId;

use super::nodes::PerNode;
use crate::pack::{OutsideProgram, Program};

/// A program with a copy on every node, ready to run. Dropping it *retires* all copies, as with a [`Program`]; calling
/// it is sound in the same [two ways](Program#calling-it) as calling a program.
pub struct ReplicatedProgram(PerNode<Program>);

impl ReplicatedProgram {
    pub(super) fn new(copies: PerNode<Program>) -> Self {
        Self(copies)
    }

    /// Returns the copy on the calling thread's node. When it is called, the thread may run elsewhere already: every
    /// copy does the same, a far one more slowly.
    #[inline]
    pub fn local(&self) -> &Program {
        self.0.local()
    }

    /// Returns the copy for threads that run on `node`.
    #[inline]
    pub fn on(&self, node: NodeId) -> &Program {
        self.0.on(node)
    }

    /// Returns all copies, in the order of their nodes: for [`Batch::add_to_all`](crate::poke::Batch::add_to_all).
    pub fn replicas(&self) -> impl Iterator<Item = &Program> + Clone {
        self.0.iter()
    }

    /// Returns the length of each copy in bytes.
    pub fn len(&self) -> usize {
        self.0.first().len()
    }

    /// Returns false: an empty program cannot be placed.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Returns the program's name, empty if it has none.
    pub fn name(&self) -> &str {
        self.0.first().name()
    }

    /// Returns the first instruction of the [`local`](Self::local) copy.
    #[inline]
    pub fn entry(&self) -> *const u8 {
        self.local().entry()
    }

    /// Returns the first instruction of the copy for threads that run on `node`.
    #[inline]
    pub fn entry_on(&self, node: NodeId) -> *const u8 {
        self.on(node).entry()
    }

    /// Returns the instruction at `offset` bytes of the [`local`](Self::local) copy.
    ///
    /// # Errors
    ///
    /// [`OutsideProgram`] if there is none.
    pub fn entry_at(&self, offset: usize) -> Result<*const u8, OutsideProgram> {
        self.local().entry_at(offset)
    }

    /// Returns the first instruction of the [`local`](Self::local) copy as a function pointer.
    ///
    /// # Safety
    ///
    /// As for [`Program::function`].
    #[inline]
    pub unsafe fn function<F: Copy>(&self) -> F {
        // SAFETY: 1. and 2. by the caller.
        unsafe { self.local().function() }
    }
}

impl fmt::Debug for ReplicatedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.with_nodes()).finish()
    }
}

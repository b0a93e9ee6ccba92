//! Instruction-cache maintenance: none.
//!
//! Stores are snooped by instruction caches by physical address, also those of another core and through another linear
//! address (AMD APM vol. 2, 7.6.1; Intel SDM vol. 3A, 10.1.3 "Handling Self- and Cross-Modifying Code"). What the
//! manuals ask for besides is that a core which may have *fetched ahead* of the store executes a serialising
//! instruction before it runs the new code. New code lies where every core has passed one since the place was last code
//! (`text`'s reclaim), and nobody can be sent there before the store, so that only a misprediction can have fetched the
//! traps in between; a store to a line of which instructions are in flight makes current CPUs discard them. Patching
//! code that may be running needs core synchronisation in any case.

use core::ops::Range;

use crate::arch::Coherence;

/// How this ISA's instruction fetch learns of stores.
pub const COHERENCE: Coherence = Coherence::Coherent;

/// Whether one write may store bytes again that other cores execute: storing the same bytes changes no instruction.
pub const MERGED_WRITES: bool = true;

/// Makes stores to `range` (addresses in the executable view) visible to instruction fetch: nothing to do here.
pub fn flush(_range: Range<usize>) {}

//! Instruction-cache maintenance: none.
//!
//! Instruction caches snoop stores by physical address, also those of another core and through another linear address
//! (AMD APM vol. 2, 7.6.1; Intel SDM vol. 3A, 10.1.3 "Handling Self- and Cross-Modifying Code"). In addition the
//! manuals demand that a core which may have *fetched ahead* of the store executes a serialising instruction before it
//! runs the new code. Every core has done so since the place was last code (`text`'s reclaim), and no thread knows the
//! address before the store, so that only a misprediction can have fetched the traps since; a store to a line with
//! instructions in flight makes current CPUs discard those. Patching code that may be running always needs core
//! synchronisation.

use core::ops::Range;

use crate::arch::Coherence;

/// How instruction fetch of this ISA sees stores.
pub const COHERENCE: Coherence = Coherence::Coherent;

/// Whether one write may store again bytes that other cores execute. It may: storing the same bytes changes no
/// instruction.
pub const MERGED_WRITES: bool = true;

/// Makes stores to `range` (addresses in the executable view) visible to instruction fetch: nothing to do here.
pub fn flush(_range: Range<usize>) {}

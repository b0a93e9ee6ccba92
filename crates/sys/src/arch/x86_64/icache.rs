//! Instruction-cache maintenance: none.
//!
//! Intel SDM vol. 3A, 13.6 "Self-Modifying Code" and AMD APM vol. 2, 7.6.1: stores are snooped by instruction fetch,
//! by physical address, also of another core and through another linear address.

use core::ops::Range;

use crate::arch::Coherence;

/// How this ISA's instruction fetch learns of stores.
pub const COHERENCE: Coherence = Coherence::Coherent;

/// Makes stores to `range` (addresses in the executable view) visible to instruction fetch: nothing to do here.
pub fn flush(_range: Range<usize>) {}

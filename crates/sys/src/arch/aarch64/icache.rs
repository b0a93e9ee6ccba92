//! Instruction-cache maintenance: clean to the point of unification, invalidate, synchronise.
//!
//! The sequence and its barriers: Arm ARM (DDI 0487) B2.4.4 "Concurrent modification and execution of instructions" and
//! D7.5 "Caches"; `CTR_EL0` tells line sizes and unneeded steps at run time, since they differ between the cores of one
//! big.LITTLE machine (there Linux traps the register and answers with the smallest).

use core::arch::asm;
use core::ops::Range;

use crate::arch::Coherence;

/// How instruction fetch of this ISA sees stores.
pub const COHERENCE: Coherence = Coherence::NeedsFlushAndSync;

/// Whether one write may store again bytes that other cores execute. Not here: each instruction needs a single aligned
/// store (Arm ARM, DDI 0487, B2.2.5), which a long copy does not promise.
pub const MERGED_WRITES: bool = false;

/// `CTR_EL0`: what the caches of this machine need.
#[derive(Clone, Copy)]
struct CacheType(u64);

impl CacheType {
    fn read() -> Self {
        let value: u64;
        // SAFETY: CTR_EL0 is readable at EL0 (Linux sets SCTLR_EL1.UCT or emulates the read); no memory is touched.
        unsafe { asm!("mrs {}, ctr_el0", out(reg) value, options(nomem, nostack, preserves_flags)) };
        Self(value)
    }

    /// Returns the bytes in the smallest data-cache line (`DminLine`, bits 19:16, log2 of 4-byte words).
    fn data_line(self) -> usize {
        4 << ((self.0 >> 16) & 0xF)
    }

    /// Returns the bytes in the smallest instruction-cache line (`IminLine`, bits 3:0, log2 of 4-byte words).
    fn instruction_line(self) -> usize {
        4 << (self.0 & 0xF)
    }

    /// Returns whether the data cache must be cleaned to the point of unification: `IDC` (bit 28) is clear.
    fn needs_clean(self) -> bool {
        self.0 & (1 << 28) == 0
    }

    /// Returns whether the instruction cache must be invalidated: `DIC` (bit 29) is clear.
    fn needs_invalidate(self) -> bool {
        self.0 & (1 << 29) == 0
    }
}

/// Makes stores to `range` visible to instruction fetch on every core of the inner-shareable domain.
///
/// `range` lies in the executable view, mapped and readable. Another core may still have old instructions in its
/// pipeline: a core sync must follow before it may enter the new code.
pub fn flush(range: Range<usize>) {
    let cache = CacheType::read();
    if cache.needs_clean() {
        for line in lines(&range, cache.data_line()) {
            // SAFETY: cleaning a line writes it back and changes no value; `line` lies in a mapped, readable line of
            // the caller's range.
            unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    }
    // Partner: the `ic ivau` below, here and by broadcast on other cores. Forbids that a line is refetched into an
    // instruction cache before the cleaned bytes have reached the point of unification.
    // SAFETY: a barrier only orders.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    if cache.needs_invalidate() {
        for line in lines(&range, cache.instruction_line()) {
            // SAFETY: invalidating an instruction line only forces a refetch; `line` is mapped as above.
            unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // Partner: the caller's publication of the code's address. Forbids that another core sees the address while
        // its instruction cache still holds the old line.
        // SAFETY: a barrier only orders.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    }
    // Partner: this core's own next branch into `range`. Forbids executing what it had prefetched. SAFETY: a barrier
    // only orders.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

fn lines(range: &Range<usize>, line: usize) -> impl Iterator<Item = usize> {
    let first = range.start & !(line - 1);
    (first..range.end).step_by(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_ctr_el0() {
        // Cortex-A72: DminLine = IminLine = 4 (64 bytes), neither IDC nor DIC.
        let cache = CacheType(0x8444_C004);
        assert_eq!((cache.data_line(), cache.instruction_line()), (64, 64));
        assert!(cache.needs_clean() && cache.needs_invalidate());
        let coherent = CacheType(0xB444_C004);
        assert!(!coherent.needs_clean() && !coherent.needs_invalidate());
    }

    #[test]
    fn every_touched_line_is_named_once() {
        assert_eq!(lines(&(70..130), 64).collect::<Vec<_>>(), [64, 128]);
        assert_eq!(lines(&(64..128), 64).collect::<Vec<_>>(), [64]);
    }
}

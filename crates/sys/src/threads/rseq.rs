//! Restartable sequences: memory that the kernel writes for a thread besides its stack (`rseq(2)`).

use std::ops::Range;

use crate::arch::thread_pointer;
use crate::global_symbol;

/// Returns the addresses of the calling thread's area of restartable sequences, which the kernel writes; empty if
/// neither glibc (2.35) nor tcmalloc has registered one.
#[inline]
pub fn area() -> Range<usize> {
    /// The size of `struct rseq` in the kernel's first version; later fields lie behind.
    const LEAST: usize = 32;
    let offset = global_symbol(c"__rseq_offset");
    let size = global_symbol(c"__rseq_size");
    if let (Some(offset), Some(size)) = (offset, size) {
        // SAFETY: glibc exports this as a `const unsigned int`.
        let size = unsafe { size.cast::<u32>().read() } as usize;
        if size > 0 {
            // SAFETY: glibc exports this as a `const ptrdiff_t`.
            let offset = unsafe { offset.cast::<isize>().read() };
            let start = thread_pointer().wrapping_add_signed(offset);
            return start..start + size.max(LEAST);
        }
    }
    global_symbol(c"__rseq_abi").map_or(0..0, |area| area.addr().get()..area.addr().get() + LEAST)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;

    #[test]
    fn the_kernel_keeps_the_core_number_in_the_area() {
        let area = area();
        if area.is_empty() {
            return println!("skipped: no area of restartable sequences is registered");
        }
        let (cpus, mut same) = (std::thread::available_parallelism().map_or(1, usize::from), false);
        for _ in 0..100 {
            // SAFETY: the area is mapped as long as this thread lives; its second word is the core's number.
            let core = unsafe { ptr::with_exposed_provenance::<u32>(area.start + 4).read_volatile() };
            let mut kernel = 0_u32;
            // SAFETY: the kernel writes the core's number to a local; `sched_getcpu` of glibc would read the area
            // itself.
            let answer = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut kernel, 0, 0) };
            same |= answer == 0 && kernel == core;
        }
        assert!(same, "none of 100 reads agreed with the kernel on {cpus} cores");
    }
}

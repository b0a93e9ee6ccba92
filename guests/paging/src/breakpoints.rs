//! A probe in the kernel's own text: a breakpoint in every node's copy, which counts who comes by.
//!
//! It replaces an instruction without effect, so that a trap continues behind it. The address is published before the
//! first trap is stored, and forgotten after all CPUs have been called: a CPU that has run into a trap answers no call
//! before it has asked [`hit`].

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use palimpsest_text::poke::{Site, arch::TRAP};

use crate::arch::cpu as hardware;
use crate::cpu::CPUS;
use crate::flush;
use crate::kernel_text_writer::{KernelTextWriter, Unmapped};

/// The breakpoint's address; 0 for none.
static AT: AtomicUsize = AtomicUsize::new(0);
/// The address behind it.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// How often each CPU has hit it.
static HITS: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];

/// Sets the breakpoint at a site that is an instruction without effect. At most one is set at a time.
pub(crate) fn set(writer: &KernelTextWriter, site: &Site) -> Result<(), Unmapped> {
    BEHIND.store(site.end(), Ordering::Relaxed);
    // Release, partner: the Acquire in `hit`. Forbids that a CPU finds the address and continues at another one's end.
    AT.store(site.address, Ordering::Release);
    store(writer, site.address, TRAP)
}

/// Removes the breakpoint.
pub(crate) fn remove(writer: &KernelTextWriter, site: &Site) -> Result<(), Unmapped> {
    store(writer, site.address, &site.old.as_slice()[..TRAP.len()])?;
    // Relaxed: all CPUs have answered since the last trap was overwritten.
    AT.store(0, Ordering::Relaxed);
    Ok(())
}

/// Stores bytes in all copies, and makes all CPUs run them.
fn store(writer: &KernelTextWriter, address: usize, bytes: &[u8]) -> Result<(), Unmapped> {
    writer.write_anywhere(address, bytes)?;
    flush::synchronize_all();
    // A second time, because of QEMU: see `KernelTextWriter::settle`.
    flush::forget_before_code();
    writer.write_anywhere(address, bytes)?;
    flush::settle_all();
    Ok(())
}

/// Returns where to continue after a trap at `address`, if that is the breakpoint's.
pub(crate) fn hit(address: u64) -> Option<u64> {
    // Acquire, partner: the Release in `set`.
    let is_it = AT.load(Ordering::Acquire) as u64 == address;
    is_it.then(|| {
        // Relaxed: a statistic.
        HITS[hardware::number()].fetch_add(1, Ordering::Relaxed);
        BEHIND.load(Ordering::Relaxed) as u64
    })
}

/// Returns how often each CPU has hit the breakpoint so far.
pub(crate) fn hits() -> [u64; CPUS] {
    core::array::from_fn(|cpu| HITS[cpu].load(Ordering::Relaxed))
}

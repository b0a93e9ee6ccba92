//! A probe in the text of the kernel or of a module: a breakpoint in every node's copy, which counts who comes by.
//!
//! | the probed instruction | after a trap |
//! |---|---|
//! | has no effect ([`set`]) | execution continues behind it |
//! | is an ordinary one ([`Probe::set`]) | the CPU single-steps a copy of it in the packs, and continues behind the original |
//! | has another effect elsewhere, such as a jump | the probe is refused |
//!
//! The addresses are published before the first trap is stored, and forgotten after all CPUs have been called: a CPU
//! that has run into a trap answers no call before it has asked [`hit`], nor before it has left the copy, which it runs
//! with interrupts off.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use palimpsest_paging::VirtAddr;
use palimpsest_text::poke::{Site, arch::TRAP};

use crate::arch::{cpu as hardware, ordinary};
use crate::cpu::CPUS;
use crate::flush;
use crate::kernel_space;
use crate::kernel_text_writer::{KernelTextWriter, Unmapped};
use crate::memory::alias;
use crate::modules::Module;
use crate::packs::{Full, Place};

/// Most bytes of an instruction: Intel SDM volume 2, 2.3.11.
const LONGEST: usize = 15;

/// The breakpoint's address; 0 for none.
static AT: AtomicUsize = AtomicUsize::new(0);
/// The address behind it.
static BEHIND: AtomicUsize = AtomicUsize::new(0);
/// Where the instruction runs instead; 0 if it has no effect.
static ASIDE: AtomicU64 = AtomicU64::new(0);
/// The state with which each CPU came to the breakpoint, while it steps.
static STATE: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];
/// How often each CPU has hit it.
static HITS: [AtomicU64; CPUS] = [const { AtomicU64::new(0) }; CPUS];

/// Sets the breakpoint at a site that is an instruction without effect. At most one is set at a time.
pub(crate) fn set(writer: &KernelTextWriter, site: &Site) -> Result<(), Unmapped> {
    publish(site.address, site.end(), 0);
    store(writer, site.address, TRAP)
}

/// Removes the breakpoint.
pub(crate) fn remove(writer: &KernelTextWriter, site: &Site) -> Result<(), Unmapped> {
    take_away(writer, site.address, &site.old.as_slice()[..TRAP.len()])
}

/// Why an instruction is not probed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Nothing is mapped there.
    Unmapped(Unmapped),
    /// It is none that does the same elsewhere.
    NotOrdinary {
        /// Its first bytes.
        code: [u8; 4],
    },
    /// There is no room for a copy of it.
    Full(Full),
}

/// A breakpoint at an ordinary instruction. At most one is set at a time.
#[derive(Debug)]
pub(crate) struct Probe {
    address: usize,
    /// The bytes that the trap has replaced.
    old: [u8; TRAP.len()],
    aside: Place,
    /// Keeps the module loaded that has the instruction.
    _module: Option<Arc<Module>>,
}

impl Probe {
    /// Sets it at an instruction of the kernel, or of `module`.
    pub(crate) fn set(writer: &KernelTextWriter, address: usize, module: Option<Arc<Module>>) -> Result<Self, Refused> {
        let code = bytes_at::<LONGEST>(address).map_err(Refused::Unmapped)?;
        let len = ordinary(&code).ok_or_else(|| Refused::NotOrdinary { code: core::array::from_fn(|at| code[at]) })?;
        // Behind it lie traps, which nobody reaches.
        let aside = Place::new(&code[..len], &[]).map_err(Refused::Full)?;
        // No CPU runs what it has fetched earlier from its place.
        flush::synchronize_all();
        publish(address, address + len, aside.entry().0);
        store(writer, address, TRAP).map_err(Refused::Unmapped)?;
        Ok(Self { address, old: core::array::from_fn(|at| code[at]), aside, _module: module })
    }

    /// Returns where the instruction runs instead.
    pub(crate) fn aside(&self) -> VirtAddr {
        self.aside.entry()
    }

    /// Removes it.
    pub(crate) fn remove(self, writer: &KernelTextWriter) -> Result<(), Unmapped> {
        take_away(writer, self.address, &self.old)
    }
}

/// Returns the bytes of code at an address, from the first copy; fewer, and then zeros, where nothing follows.
pub(crate) fn bytes_at<const COUNT: usize>(address: usize) -> Result<[u8; COUNT], Unmapped> {
    let byte = |offset: usize| {
        let copy = kernel_space::copies(VirtAddr((address + offset) as u64)).next()?;
        // SAFETY: a byte of the image, or of the packs. Volatile: code that may be changed by other addresses.
        Some(unsafe { alias(copy).read_volatile() })
    };
    byte(0).ok_or(Unmapped(address))?;
    Ok(core::array::from_fn(|offset| byte(offset).unwrap_or(0)))
}

fn publish(address: usize, behind: usize, aside: u64) {
    BEHIND.store(behind, Ordering::Relaxed);
    ASIDE.store(aside, Ordering::Relaxed);
    // Release, partner: the Acquire in `hit`. Forbids that a CPU finds the address and continues at another one's end.
    AT.store(address, Ordering::Release);
}

fn take_away(writer: &KernelTextWriter, address: usize, old: &[u8]) -> Result<(), Unmapped> {
    store(writer, address, old)?;
    // Relaxed: all CPUs have answered since the last trap was overwritten.
    AT.store(0, Ordering::Relaxed);
    ASIDE.store(0, Ordering::Relaxed);
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

/// How execution goes on after a hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Here.
    At(u64),
    /// By the one instruction here, with interrupts off; then [`stepped`] says where.
    Step(u64),
}

/// Returns how to go on after a trap at `address`, if that is the breakpoint's. `state` is what the CPU restores then.
pub(crate) fn hit(address: u64, state: u64) -> Option<Next> {
    // Acquire, partner: the Release in `publish`.
    let is_it = AT.load(Ordering::Acquire) as u64 == address;
    is_it.then(|| {
        let here = hardware::number();
        // Relaxed, here and below: a statistic; what `AT` has published; and the CPU's own.
        HITS[here].fetch_add(1, Ordering::Relaxed);
        match ASIDE.load(Ordering::Relaxed) {
            0 => Next::At(BEHIND.load(Ordering::Relaxed) as u64),
            aside => {
                STATE[here].store(state, Ordering::Relaxed);
                Next::Step(aside)
            }
        }
    })
}

/// Returns where to go on after a step that has ended at `address`, and the state to restore, if it was the
/// breakpoint's.
pub(crate) fn stepped(address: u64) -> Option<(u64, u64)> {
    // Relaxed: this CPU has come from the breakpoint, which stays until it has answered a call.
    let aside = ASIDE.load(Ordering::Relaxed);
    let (at, behind) = (AT.load(Ordering::Relaxed) as u64, BEHIND.load(Ordering::Relaxed) as u64);
    let is_it = aside != 0 && address == aside + (behind - at);
    is_it.then(|| (behind, STATE[hardware::number()].load(Ordering::Relaxed)))
}

/// Returns how often each CPU has hit the breakpoint so far.
pub(crate) fn hits() -> [u64; CPUS] {
    core::array::from_fn(|cpu| HITS[cpu].load(Ordering::Relaxed))
}

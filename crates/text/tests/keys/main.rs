//! Static keys, from outside. With `--cfg palimpsest_atomic_keys` the same tests run without patching.

mod calls;
mod environment;
mod folding;
mod forks;
mod golden;
mod masks;
mod names;
mod plugin_host;
mod toggling;

/// Tells the threads of a test to stop, also when it fails: the scope waits for them.
struct StopOnDrop<'s>(&'s std::sync::atomic::AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        // Relaxed: nothing is published with it.
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

/// Whether branches are patched, and not loads.
const PATCHED: bool = !cfg!(palimpsest_atomic_keys);
/// Core synchronisations of one switch, of any size.
const SYNCS: u64 = if PATCHED { isa::SYNCS } else { 0 };

#[cfg_attr(target_arch = "x86_64", path = "arch/x86_64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arch/aarch64.rs")]
mod isa;

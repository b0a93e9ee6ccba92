//! The CPU that interpreted programs run on.

use alloc::boxed::Box;
use core::fmt;

use super::HostBuilder;

/// Tells the number of the CPU that calls it.
pub(super) struct Cpu(Box<dyn Fn() -> u32 + Send + Sync>);

impl Cpu {
    pub(super) fn number(&self) -> u32 {
        (self.0)()
    }
}

impl fmt::Debug for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cpu")
    }
}

impl HostBuilder {
    /// Has interpreted programs ask `cpu` on which CPU they run, once at the beginning of each run. Kernels say it,
    /// since without `std` nobody else knows, and programs would all work on the first CPU's values of per-CPU maps.
    /// Each CPU has a number of its own, below `u32::MAX`, which owns the locks that its programs take.
    /// The program must not move to another CPU while it runs. Compiled programs ask
    /// [`Runner::cpu`](super::Runner::cpu).
    pub fn cpu(self, cpu: impl Fn() -> u32 + Send + Sync + 'static) -> Self {
        Self { cpu: Some(Cpu(Box::new(cpu))), ..self }
    }
}

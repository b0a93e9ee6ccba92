//! The machines that the guest runs on. QEMU's command line stands only here: a runner in `.cargo/config.toml` could
//! neither end a guest that hangs nor say what a status means.

use crate::need::Need;

/// An architecture of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Arch {
    #[value(name = "x86_64")]
    X86_64,
    #[value(name = "aarch64")]
    Aarch64,
}

/// The status with which QEMU ends if all checks passed, and if some did not. QEMU ends with neither for its own
/// reasons.
const PASSED: i32 = 33;
const FAILED: i32 = 35;

/// What the guest relies on: 4 CPUs, the first two on node 0; two nodes of 256 MiB. CPUs wait for one another in loops,
/// so that each needs a thread.
const MACHINE: &[&str] = &[
    "-accel",
    "tcg,thread=multi",
    "-cpu",
    "max",
    "-smp",
    "4,sockets=2,cores=2",
    "-m",
    "512M",
    "-object",
    "memory-backend-ram,id=m0,size=256M",
    "-object",
    "memory-backend-ram,id=m1,size=256M",
    "-numa",
    "node,nodeid=0,cpus=0-1,memdev=m0",
    "-numa",
    "node,nodeid=1,cpus=2-3,memdev=m1",
    "-numa",
    "dist,src=0,dst=1,val=21",
    "-display",
    "none",
    "-monitor",
    "none",
    "-serial",
    "stdio",
    "-nic",
    "none",
    "-no-reboot",
];

const X86_64_NEEDS: &[Need] =
    &[Arch::X86_64.target(), Need::Program { program: Arch::X86_64.emulator(), package: "qemu-system-x86" }];
const AARCH64_NEEDS: &[Need] =
    &[Arch::Aarch64.target(), Need::Program { program: Arch::Aarch64.emulator(), package: "qemu-system-arm" }];

impl Arch {
    pub(crate) const ALL: [Arch; 2] = [Arch::X86_64, Arch::Aarch64];

    /// Returns its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// Returns the target that the guest is built for. On AArch64, it has no floating point: the kernel would have to
    /// switch that on and save its registers.
    pub(crate) const fn triple(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64-unknown-none",
            Arch::Aarch64 => "aarch64-unknown-none-softfloat",
        }
    }

    /// Returns the need of the target's `core` and `alloc`.
    pub(crate) const fn target(self) -> Need {
        Need::Target { triple: self.triple() }
    }

    /// QEMU's program.
    pub(crate) const fn emulator(self) -> &'static str {
        match self {
            Arch::X86_64 => "qemu-system-x86_64",
            Arch::Aarch64 => "qemu-system-aarch64",
        }
    }

    /// Returns what building and running the guest needs.
    pub(crate) const fn needs(self) -> &'static [Need] {
        match self {
            Arch::X86_64 => X86_64_NEEDS,
            Arch::Aarch64 => AARCH64_NEEDS,
        }
    }

    /// Returns QEMU's arguments: the machine, its console, and the device by which the guest ends it.
    pub(super) fn machine(self) -> impl Iterator<Item = &'static str> {
        let own: &[_] = match self {
            Arch::X86_64 => &["-machine", "q35", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"],
            Arch::Aarch64 => &["-machine", "virt,gic-version=2", "-semihosting"],
        };
        own.iter().chain(MACHINE).copied()
    }

    /// Returns the first address of memory.
    pub(super) const fn memory_start(self) -> u64 {
        match self {
            Arch::X86_64 => 0,
            Arch::Aarch64 => 0x4000_0000,
        }
    }

    /// Returns the meaning of a status of QEMU.
    pub(super) const fn end(self, status: Option<i32>) -> End {
        match (self, status) {
            (_, Some(PASSED)) => End::Passed,
            (_, Some(FAILED)) => End::Failed,
            (Arch::X86_64, Some(0)) => End::Other("a triple fault, or somebody has ended QEMU"),
            (Arch::Aarch64, Some(0)) => End::Other("somebody has ended QEMU"),
            (_, Some(1)) => End::Other("QEMU refuses its command line"),
            (_, Some(_)) => End::Other("QEMU ended in another way than the guest asks for"),
            (_, None) => End::Other("a signal has ended QEMU"),
        }
    }
}

/// What a status of QEMU says about the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The guest says that all checks passed.
    Passed,
    /// The guest says that some did not.
    Failed,
    /// The guest did not end QEMU.
    Other(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_guests_own_statuses_are_its_verdict() {
        for arch in Arch::ALL {
            assert_eq!(arch.end(Some(33)), End::Passed);
            assert_eq!(arch.end(Some(35)), End::Failed);
            for other in [Some(0), Some(1), Some(124), None] {
                assert!(matches!(arch.end(other), End::Other(_)), "{other:?}");
            }
        }
    }

    #[test]
    fn each_architecture_names_its_packages() {
        let remedies =
            Arch::ALL.map(|arch| arch.needs().iter().map(|need| need.remedy()).collect::<Vec<_>>().join(", "));
        for (remedy, parts) in remedies.iter().zip([
            ["rustup target add x86_64-unknown-none", "qemu-system-x86"],
            ["rustup target add aarch64-unknown-none-softfloat", "qemu-system-arm"],
        ]) {
            assert!(parts.iter().all(|part| remedy.contains(part)), "{remedy}");
        }
    }
}

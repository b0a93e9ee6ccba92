//! `cargo xtask guest numa`: runs the NUMA tests of the host again, on a machine with several nodes.

use std::path::PathBuf;

use super::{Arch, GuestError, native, unmodified};
use crate::{
    aarch64::{self, build},
    linux::{self, Guest},
    need::Need,
    programs::TestProgram,
    runner::remedies,
    step::{Depth, Done, StepError},
    workspace::Workspace,
};

/// How the guest is run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// The architecture; both if none is given.
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// The image of the kernel, as for `guest forks`; Debian's 6.1 if none is given. Since 6.3, kernels tell each
    /// thread its node in its restartable sequence.
    #[arg(long, value_name = "VMLINUZ", requires = "arch")]
    kernel: Option<PathBuf>,
    /// Run only programs with this text in their names, such as `sys`.
    #[arg(long, value_name = "NAME", default_value = "")]
    only: String,
}

/// Returns QEMU's CPU model. `max` has protection keys on x86-64, and marked branches on AArch64, where pointer signing
/// is emulated by something cheaper than the architecture's proposal. QEMU 7 reads what IRET takes from a program's
/// stack with the kernel's rights, which SMAP forbids; and programs make their core drop fetched instructions by IRET.
const fn cpu(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "max,smap=off",
        Arch::Aarch64 => "max,pauth-impdef=on",
    }
}

/// Nodes 0 and 1 have two CPUs each, and memory. Node 2 has a CPU and no memory, and is nearest to node 1. Node 3 has a
/// CPU, and less memory than a test asks of it.
const MACHINE: &[&str] = &[
    "-accel",
    "tcg,thread=multi",
    "-smp",
    "6",
    "-m",
    "1088M",
    "-object",
    "memory-backend-ram,id=m0,size=512M",
    "-object",
    "memory-backend-ram,id=m1,size=512M",
    "-object",
    "memory-backend-ram,id=m3,size=64M",
    "-numa",
    "node,nodeid=0,cpus=0-1,memdev=m0",
    "-numa",
    "node,nodeid=1,cpus=2-3,memdev=m1",
    "-numa",
    "node,nodeid=2,cpus=4",
    "-numa",
    "node,nodeid=3,cpus=5,memdev=m3",
    "-numa",
    "dist,src=0,dst=1,val=21",
    "-numa",
    "dist,src=0,dst=2,val=31",
    "-numa",
    "dist,src=0,dst=3,val=31",
    "-numa",
    "dist,src=1,dst=2,val=15",
    "-numa",
    "dist,src=1,dst=3,val=31",
    "-numa",
    "dist,src=2,dst=3,val=31",
];

/// The nodes of [`MACHINE`] that should get a copy. Tests that need several nodes are skipped on other machines, and
/// fail here if they do not find these.
const HOMES: (&str, &str) = ("PALIMPSEST_TEST_HOMES", "0,1,3");
/// How often a test replaces all copies while they are read.
const UPDATES: (&str, &str) = ("PALIMPSEST_UPDATES", "20");

/// How often a test exchanges text between nodes while everything else goes on: the guest of CI, and the other one. An
/// exchange copies and compares some 25 MB, which takes 14 to 19 s in a guest.
const fn flips(arch: Arch) -> (&'static str, &'static str) {
    match arch {
        Arch::Aarch64 => ("PALIMPSEST_FLIPS", "4"),
        Arch::X86_64 => ("PALIMPSEST_FLIPS", "16"),
    }
}

/// The crates with tests that are about nodes.
const ABOUT_NODES: [&str; 3] = ["palimpsest-numa", "palimpsest-preload", "palimpsest-sys"];
/// The tests of the last one that are about nodes.
const OF_SYS: (&str, &str) = ("sys.lib", "numa::");

pub(crate) const X86_64_NEEDS: &[Need] = &[
    Need::Program { program: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need::Program { program: "cc", package: "gcc" },
    Need::Program { program: "strip", package: "binutils" },
    Need::GuestKernel(Arch::X86_64),
];
pub(crate) const AARCH64_NEEDS: &[Need] = &[
    Need::Aarch64Std,
    Need::Program { program: aarch64::LINKER, package: "gcc-aarch64-linux-gnu" },
    Need::File { path: "/usr/aarch64-linux-gnu/lib/crt1.o", package: "libc6-dev-arm64-cross" },
    Need::Program { program: "qemu-system-aarch64", package: "qemu-system-arm" },
    Need::GuestKernel(Arch::Aarch64),
];

const fn needs(arch: Arch) -> &'static [Need] {
    match arch {
        Arch::X86_64 => X86_64_NEEDS,
        Arch::Aarch64 => AARCH64_NEEDS,
    }
}

/// Runs the guest on the architectures that `arguments` names.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), GuestError> {
    let archs = arguments.arch.map_or_else(|| Arch::ALL.to_vec(), |arch| vec![arch]);
    for &arch in &archs {
        let is_given = |need: &Need| arguments.kernel.is_some() && matches!(need, Need::GuestKernel(_));
        let needs: Vec<Need> = needs(arch).iter().filter(|need| !is_given(need)).cloned().collect();
        let missing = remedies(workspace, &needs);
        if !missing.is_empty() {
            return Err(GuestError::Missing { arch, missing });
        }
    }
    for arch in archs {
        let passed = run_on(workspace, arch, arguments).map_err(|source| GuestError::Run { arch, source })?;
        println!("{}: {passed} test programs passed", arch.name());
    }
    Ok(())
}

/// Runs the step `numa-x86_64`.
pub(crate) fn x86_64(workspace: &Workspace) -> Result<Done, StepError> {
    step(workspace, Arch::X86_64)
}

/// Runs the step `numa-aarch64`.
pub(crate) fn aarch64(workspace: &Workspace) -> Result<Done, StepError> {
    step(workspace, Arch::Aarch64)
}

fn step(workspace: &Workspace, arch: Arch) -> Result<Done, StepError> {
    Ok(Done::PassedWith(format!("{} test programs", run_on(workspace, arch, &Arguments::default())?)))
}

/// Boots the guest, and returns how many programs passed.
fn run_on(workspace: &Workspace, arch: Arch, arguments: &Arguments) -> Result<usize, StepError> {
    let chosen = |built| about_nodes(built, &arguments.only);
    let (init, programs) = match arch {
        Arch::X86_64 => native::programs(workspace, &ABOUT_NODES, "numa-programs", chosen)?,
        // With the others, which are built: alone, these would have dependencies with other features.
        Arch::Aarch64 => (build::guest_init(workspace)?, chosen(build::test_programs(workspace, Depth::Short)?)),
    };
    let machine = [&["-cpu", cpu(arch)], MACHINE].concat();
    let variables = [HOMES, UPDATES, flips(arch), unmodified::FOLDER];
    let files = unmodified::files(workspace, arch)?;
    let kernel = arguments.kernel.as_deref();
    let guest = Guest { name: "numa", arch, kernel, machine: &machine, variables: &variables, files: &files };
    linux::boot_all(workspace, &init, &programs, &guest)
}

/// Returns the programs of `built` that are about nodes, and have this text in their names.
fn about_nodes(built: Vec<TestProgram>, only: &str) -> Vec<TestProgram> {
    let (of_sys, part) = OF_SYS;
    built
        .into_iter()
        .filter(|program| program.name.contains(only))
        .filter_map(|program| match program.name.as_str() {
            name if name == of_sys => Some(TestProgram { arguments: vec![part, "--show-output"], ..program }),
            // Shows which tests were skipped.
            name if build::needs_nodes(name) => Some(TestProgram { arguments: vec!["--show-output"], ..program }),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_about_nodes_is_left_out() {
        let program = |name: &str| TestProgram::new(name.to_owned(), name.into(), "/".into());
        let all = ["sys.lib", "sys.tracer", "numa.nodes", "fork.lib", "preload.suite", "preload.nodes"].map(program);
        let shown = |only| -> Vec<String> {
            let kept = about_nodes(all.to_vec(), only);
            kept.iter().map(|program| format!("{} {}", program.name, program.arguments.join(" "))).collect()
        };
        let of_sys = "sys.lib numa:: --show-output";
        assert_eq!(shown(""), [of_sys, "numa.nodes --show-output", "preload.nodes --show-output"]);
        assert_eq!(shown("sys"), [of_sys]);
    }
}

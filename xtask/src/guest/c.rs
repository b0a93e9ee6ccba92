//! `cargo xtask guest c`: the kernel in C of `guests/c/`, with the page tables of `palimpsest_paging.h`, in QEMU.

use std::{fs, path::PathBuf, time::Duration};

use super::{Arch, GuestError, boot, console};
use crate::{
    aarch64,
    need::Need,
    process,
    runner::remedies,
    step::{Done, StepError},
    workspace::Workspace,
};

/// The folder of its sources.
const SOURCES: &str = "guests/c";
/// It takes a second or two.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The architecture; both if none is given.
    #[arg(long, value_enum)]
    arch: Option<Arch>,
}

impl Arch {
    /// Returns the C compiler for the architecture.
    const fn compiler(self) -> &'static str {
        match self {
            Arch::X86_64 if cfg!(target_arch = "x86_64") => "cc",
            Arch::X86_64 => "x86_64-linux-gnu-gcc",
            Arch::Aarch64 => aarch64::LINKER,
        }
    }

    /// Returns the compiler's options: as the Rust target, without registers of floating point.
    const fn options(self) -> &'static [&'static str] {
        match self {
            // An exception uses the stack of what it interrupts.
            Arch::X86_64 => &["-mno-red-zone", "-fcf-protection=none"],
            Arch::Aarch64 => &["-mstrict-align"],
        }
    }
}

/// What compiles the kernel for `arch`.
const fn compiler_need(arch: Arch) -> Need {
    match arch {
        Arch::X86_64 => Need::Program { program: Arch::X86_64.compiler(), package: "gcc" },
        Arch::Aarch64 => Need::Program { program: Arch::Aarch64.compiler(), package: "gcc-aarch64-linux-gnu" },
    }
}

/// What the kernel is left out without, on one architecture.
pub(crate) const WANTS: [Need; 6] = {
    let (x86_64, aarch64) = (Arch::X86_64, Arch::Aarch64);
    [
        x86_64.target(),
        compiler_need(x86_64),
        Need::Program { program: x86_64.emulator(), package: "qemu-system-x86" },
        aarch64.target(),
        compiler_need(aarch64),
        Need::Program { program: aarch64.emulator(), package: "qemu-system-arm" },
    ]
};

/// Runs the kernel where `arguments` say.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), GuestError> {
    for arch in arguments.arch.map_or_else(|| Arch::ALL.to_vec(), |arch| vec![arch]) {
        let missing = missing(workspace, arch);
        if !missing.is_empty() {
            return Err(GuestError::Missing { arch, missing });
        }
        let passed = run_on(workspace, arch)?;
        println!("{}: {passed} checks passed", arch.name());
    }
    Ok(())
}

fn missing(workspace: &Workspace, arch: Arch) -> String {
    remedies(workspace, &[arch.needs(), &[compiler_need(arch)]].concat())
}

/// Runs the step `guest-c`, on each architecture for which all is there.
pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let mut remarks = Vec::new();
    let mut has_run = false;
    for arch in Arch::ALL {
        let missing = missing(workspace, arch);
        if missing.is_empty() {
            let passed = run_on(workspace, arch).map_err(|error| StepError::Guest(Box::new(error)))?;
            remarks.push(format!("{passed} checks on {}", arch.name()));
            has_run = true;
        } else {
            remarks.push(format!("not on {}: {missing}", arch.name()));
        }
    }
    let remark = remarks.join("; ");
    Ok(if has_run { Done::PassedWith(remark) } else { Done::Skipped(remark) })
}

/// Returns how many checks passed.
fn run_on(workspace: &Workspace, arch: Arch) -> Result<usize, GuestError> {
    let run = |source| GuestError::Run { arch, source };
    let image = build(workspace, arch).map_err(run)?;
    let mut qemu = process::program(arch.emulator(), workspace);
    qemu.args(arch.machine()).arg("-kernel").arg(image);
    let (ended, lines) = boot(&mut qemu, LIMIT).map_err(run)?;
    let status = ended.map_err(run)?;
    console::judge(arch, status, &lines).map(|report| report.passed)
}

/// Builds the library, and links the kernel with it.
fn build(workspace: &Workspace, arch: Arch) -> Result<PathBuf, StepError> {
    let mut cargo = process::cargo(workspace);
    cargo.args(["build", "--package", "palimpsest-paging-capi", "--no-default-features", "--target", arch.triple()]);
    process::stream(&mut cargo)?;
    let built = workspace.target.join(arch.triple()).join("debug");
    let folder = workspace.separate_target("guest-c");
    fs::create_dir_all(&folder).map_err(|source| StepError::File { action: "make", path: folder.clone(), source })?;
    let image = folder.join(arch.name());
    let sources = workspace.root.join(SOURCES);
    let own = |ending: &str| sources.join("arch").join(arch.name()).with_extension(ending);
    let mut compile = process::program(arch.compiler(), workspace);
    compile.args([
        "-std=c11",
        "-O2",
        "-g",
        "-ffreestanding",
        "-fno-pic",
        "-fno-stack-protector",
        "-mgeneral-regs-only",
    ]);
    compile.args(arch.options());
    compile.args(["-Wall", "-Wextra", "-Werror", "-nostdlib", "-static", "-no-pie", "-Wl,--build-id=none", "-I"]);
    compile.arg(workspace.root.join("crates/paging-capi/include"));
    compile.arg("-T").arg(own("ld")).args([own("S"), own("c")]);
    compile.args([sources.join("machine.c"), sources.join("checks.c")]);
    compile.arg(built.join("libpalimpsest_paging_capi.a")).arg("-o").arg(&image);
    process::stream(&mut compile)?;
    Ok(image)
}

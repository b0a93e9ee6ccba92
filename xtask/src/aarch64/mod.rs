//! The tests on AArch64: cross-compiled ([`build`]), then run in a guest with a kernel of its own ([`system`]); and a
//! program in C ([`capi`]). Not by QEMU's user mode: it ignores `MADV_WIPEONFORK`, keeps translated code that was
//! rewritten through another mapping, and has no seccomp, bare `clone` or pagemap, which is what the tests are about.

pub(crate) mod build;
pub(crate) mod capi;
pub(crate) mod left_out;
pub(crate) mod system;

use std::path::PathBuf;

use crate::{
    need::{Toolchain, target_folder},
    workspace::Workspace,
};

/// The target of every build here.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";
/// Its linker, from Debian's cross compiler.
pub(crate) const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Where Debian puts the target's C library.
pub(crate) const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";
/// Packages with a compiler and the target's standard library, for machines where rustup cannot fetch the latter.
pub(crate) const DEBIAN_STD: [&str; 2] = ["rustc-web", "libstd-rust-web-dev:arm64"];
/// The compiler in the first of [`DEBIAN_STD`], and its sysroot.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_SYSROOT: &str = "/usr";

/// The compiler that has a standard library for [`TARGET`].
pub(crate) enum Compiler {
    /// The one that cargo uses anyway.
    Active,
    /// Debian's, driven by the same cargo.
    Debian,
}

impl Compiler {
    /// Returns the first one that is installed.
    pub(crate) fn find(workspace: &Workspace) -> Option<Compiler> {
        let has_std = |sysroot: PathBuf| sysroot.join(target_folder(TARGET)).is_dir();
        if Toolchain::Active.sysroot(workspace).is_some_and(has_std) {
            Some(Compiler::Active)
        } else if has_std(PathBuf::from(DEBIAN_SYSROOT)) {
            Some(Compiler::Debian)
        } else {
            None
        }
    }
}

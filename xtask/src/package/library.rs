//! The libraries for C: puts their files where they belong.

use std::{
    env,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{Built, VERSION, copy, write};
use crate::{guest, process, step::StepError, workspace::Workspace};

/// Headers, with the folder of their crate or adapter.
const HEADERS: [(&str, &str); 6] = [
    ("crates/capi", "palimpsest.h"),
    ("crates/capi", "palimpsest_key.h"),
    ("crates/paging-capi", "palimpsest_paging.h"),
    ("adapters/llvm-orc", "palimpsest/orc.h"),
    ("adapters/llvm-orc", "palimpsest/orc_eh_frame.h"),
    ("adapters/asmjit", "palimpsest/asmjit.h"),
];

/// The library for kernels, and its folder below `lib`: linkers for ordinary programs do not look there.
const PAGING: &str = "libpalimpsest_paging_capi.a";
const FREESTANDING: &str = "palimpsest/freestanding";

/// Returns the name with a version. As long as the major version is 0, each minor one may be incompatible.
fn soname() -> String {
    let mut parts = VERSION.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if major == "0" { format!("libpalimpsest.so.0.{minor}") } else { format!("libpalimpsest.so.{major}") }
}

/// Lays out both forms below `tree`, with headers, and files for pkg-config and CMake. Returns what was left
/// out.
pub(super) fn lay_out(workspace: &Workspace, tree: &Path, origin: Built) -> Result<Option<String>, StepError> {
    let soname = soname();
    let built = match origin {
        Built::ToPublish => {
            let mut cargo = process::cargo(workspace);
            cargo.args(["rustc", "--release", "--package", "palimpsest-capi", "--lib", "--"]);
            // Signal handlers stay after `dlclose`, and so must the code.
            cargo.arg(format!("-Clink-arg=-Wl,-soname,{soname},-z,nodelete"));
            process::stream(&mut cargo)?;
            workspace.target.join("release")
        }
        // Built for the tests of palimpsest-capi, without that name.
        Built::ByTests => workspace.target.join("debug/deps"),
    };
    let library = tree.join("lib");
    copy(&built.join("libpalimpsest_capi.so"), &library.join(&soname))?;
    copy(&built.join("libpalimpsest_capi.a"), &library.join("libpalimpsest.a"))?;
    strip(workspace, &[library.join(&soname), library.join("libpalimpsest.a")])?;
    let link = library.join("libpalimpsest.so");
    symlink(&soname, &link).map_err(|source| StepError::File { action: "make", path: link, source })?;
    for (folder, header) in HEADERS {
        let from = workspace.root.join(folder).join("include").join(header);
        copy(&from, &tree.join("include").join(header))?;
    }
    write(&library.join("pkgconfig/palimpsest.pc"), pkg_config().as_bytes())?;
    let cmake = library.join("cmake/palimpsest");
    write(&cmake.join("palimpsest-config.cmake"), include_bytes!("cmake/palimpsest-config.cmake"))?;
    let version = include_str!("cmake/palimpsest-config-version.cmake").replace("VERSION_OF_THIS", VERSION);
    write(&cmake.join("palimpsest-config-version.cmake"), version.as_bytes())?;
    lay_out_paging(workspace, &library, origin)
}

/// Adds the library for kernels, if the target without an operating system is installed; or says that it is not.
fn lay_out_paging(workspace: &Workspace, library: &Path, origin: Built) -> Result<Option<String>, StepError> {
    let arch = if env::consts::ARCH == "aarch64" { guest::Arch::Aarch64 } else { guest::Arch::X86_64 };
    if !arch.target().is_met(workspace) {
        return Ok(Some(format!("palimpsest_paging.h comes without its library: {}", arch.target().remedy())));
    }
    let mut cargo = process::cargo(workspace);
    cargo.args(["build", "--package", "palimpsest-paging-capi", "--no-default-features", "--target", arch.triple()]);
    let profile = match origin {
        Built::ToPublish => {
            cargo.arg("--release");
            "release"
        }
        // As the step `no-std` builds it.
        Built::ByTests => "debug",
    };
    process::stream(&mut cargo)?;
    let placed = library.join(FREESTANDING).join(PAGING);
    copy(&workspace.target.join(arch.triple()).join(profile).join(PAGING), &placed)?;
    strip(workspace, &[placed])?;
    write(&library.join("pkgconfig/palimpsest-paging.pc"), paging_pkg_config().as_bytes())?;
    Ok(None)
}

/// Takes debug information out, where there is a program that does.
fn strip(workspace: &Workspace, files: &[PathBuf]) -> Result<(), StepError> {
    if !process::is_runnable("strip") {
        return Ok(());
    }
    process::stream(process::program("strip", workspace).arg("--strip-debug").args(files))
}

/// Returns the file for pkg-config. Its paths start from its own, so that the tree can be put anywhere.
fn pkg_config() -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\nName: palimpsest\nDescription: memory that is rewritten while it is in use\n\
         Version: {VERSION}\nCflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -lpalimpsest\n\
         Libs.private: -lpthread -ldl -lm\n"
    )
}

/// As [`pkg_config`], for the library for kernels.
fn paging_pkg_config() -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\nName: palimpsest-paging\nDescription: page tables for kernels, without a C \
         library\nVersion: {VERSION}\nCflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib/{FREESTANDING} \
         -lpalimpsest_paging_capi\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_says_what_programs_can_be_linked_with() {
        assert!(soname().starts_with("libpalimpsest.so."), "{}", soname());
        for made in [pkg_config(), paging_pkg_config()] {
            assert!(made.contains(&format!("\nVersion: {VERSION}\n")), "{made}");
        }
    }
}

//! The file system of the guest: its `/init`, the C library, the test programs.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::cpio::Archive;
use crate::{aarch64, guest::Arch, programs::TestProgram, step::StepError};

/// Libraries that Rust programs are linked with, besides the loader.
const SHARED: [&str; 3] = ["libc.so.6", "libgcc_s.so.1", "libm.so.6"];

/// Returns Debian's folder of the C library of `arch`, and the path of the loader: there, and in the guest.
const fn libraries(arch: Arch) -> (&'static str, &'static str, &'static str) {
    match arch {
        Arch::X86_64 => (X86_64_LIBRARIES, "ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"),
        Arch::Aarch64 => (aarch64::LIBRARIES, "ld-linux-aarch64.so.1", "lib/ld-linux-aarch64.so.1"),
    }
}

const X86_64_LIBRARIES: &str = "/lib/x86_64-linux-gnu";

/// Returns the initramfs in which `init` runs `programs`, with `files` in a folder of their own.
pub(super) fn build(
    arch: Arch,
    init: &Path,
    programs: &[TestProgram],
    files: &[(&str, PathBuf)],
) -> Result<Vec<u8>, StepError> {
    let mut archive = Archive::default();
    for folder in ["arguments", "bin", "dev", "lib", "lib64", "proc", "programs", "sys", "tests", "tmp"] {
        archive.folder(folder);
    }
    // The kernel opens it for /init before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    let (folder, loader, place) = libraries(arch);
    archive.program(place, &read(&Path::new(folder).join(loader))?);
    for library in SHARED {
        archive.program(&format!("lib/{library}"), &read(&Path::new(folder).join(library))?);
    }
    for program in programs {
        archive.program(&format!("tests/{}", program.name), &read(&program.path)?);
        archive.program(&format!("arguments/{}", program.name), program.arguments.join(" ").as_bytes());
    }
    for (name, path) in files {
        archive.program(&format!("programs/{name}"), &read(path)?);
    }
    let init = read(init)?;
    // The same program under other names; see its source.
    archive.program("bin/sleep", &init);
    archive.program("bin/true", &init);
    archive.program("init", &init);
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>, StepError> {
    fs::read(path).map_err(|source| StepError::File { action: "read", path: path.to_owned(), source })
}

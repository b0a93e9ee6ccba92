//! The file system of the guest: its `/init`, the C library, the test programs.

use std::{fs, path::Path};

use super::{LIBRARIES, cpio::Archive};
use crate::{programs::TestProgram, step::StepError};

/// What Rust programs are linked with; the first is the loader that their headers name.
const SHARED: [&str; 4] = ["ld-linux-aarch64.so.1", "libc.so.6", "libgcc_s.so.1", "libm.so.6"];

/// The initramfs that runs `programs` by `init`.
pub(super) fn build(init: &Path, programs: &[TestProgram]) -> Result<Vec<u8>, StepError> {
    let mut archive = Archive::default();
    for folder in ["arguments", "bin", "dev", "lib", "proc", "sys", "tests", "tmp"] {
        archive.folder(folder);
    }
    // The kernel opens it for /init before anything is mounted.
    archive.character_device("dev/console", 5, 1);
    for library in SHARED {
        archive.program(&format!("lib/{library}"), &read(&Path::new(LIBRARIES).join(library))?);
    }
    for program in programs {
        archive.program(&format!("tests/{}", program.name), &read(&program.path)?);
        archive.program(&format!("arguments/{}", program.name), program.arguments.join(" ").as_bytes());
    }
    let init = read(init)?;
    // The same program by other names; see its source.
    archive.program("bin/sleep", &init);
    archive.program("bin/true", &init);
    archive.program("init", &init);
    Ok(archive.finish())
}

fn read(path: &Path) -> Result<Vec<u8>, StepError> {
    fs::read(path).map_err(|source| StepError::File { action: "read", path: path.to_owned(), source })
}

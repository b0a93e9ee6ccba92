//! Programs in C for a guest with Debian's kernel, which has no compiler; and what `palimpsest run` is made of.

use std::{fs, path::PathBuf};

use super::Arch;
use crate::{
    aarch64::{self, build},
    process,
    step::StepError,
    workspace::Workspace,
};

/// The folder of the guest in which all these are, and the variable that tells tests so.
pub(super) const FOLDER: (&str, &str) = ("PALIMPSEST_TEST_PROGRAMS", "/programs");

/// Programs and libraries: their names, their sources, and how tests that have a compiler link them, too.
const IN_C: [(&str, &str, &[&str]); 2] = [
    ("libbig.so", "crates/numa/tests/text/big.c", &["-shared", "-fPIC"]),
    ("shared_text", "crates/preload/tests/suite/sources/shared_text.c", &["-no-pie"]),
];

/// Builds them for `arch`. Returns the files with their names.
pub(super) fn files(workspace: &Workspace, arch: Arch) -> Result<Vec<(&'static str, PathBuf)>, StepError> {
    let folder = workspace.separate_target("guest").join(arch.name()).join("programs");
    fs::create_dir_all(&folder).map_err(|source| StepError::File { action: "make", path: folder.clone(), source })?;
    let compiler = match arch {
        Arch::X86_64 => "cc",
        Arch::Aarch64 => aarch64::LINKER,
    };
    let mut files = Vec::new();
    for (name, source, options) in IN_C {
        let built = folder.join(name);
        let mut compile = process::program(compiler, workspace);
        compile.args(["-O1", "-w", "-pthread", "-o"]).arg(&built).arg(workspace.root.join(source)).args(options);
        process::stream(&mut compile)?;
        files.push((name, built));
    }
    let strip = |name, from: PathBuf| {
        let to = folder.join(name);
        process::stream(process::program("strip", workspace).arg("--strip-debug").arg("-o").arg(&to).arg(from))?;
        Ok::<_, StepError>((name, to))
    };
    const OBJECT: &str = "libpalimpsest_preload.so";
    match arch {
        Arch::Aarch64 => files.push((OBJECT, build::object(workspace))),
        Arch::X86_64 => {
            // With everything, as the step `test` builds it: alone, its dependencies would have other features.
            let mut build = process::cargo(workspace);
            build.args(["build", "--workspace", "--all-features", "--bin", "palimpsest", "--lib"]);
            process::stream(&mut build)?;
            files.push(strip(OBJECT, workspace.target.join("debug").join(OBJECT))?);
            files.push(strip("palimpsest", workspace.target.join("debug/palimpsest"))?);
        }
    }
    Ok(files)
}

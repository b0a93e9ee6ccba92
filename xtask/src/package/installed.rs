//! Compiles programs against the library for C as it is installed, and runs them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::remove;
use crate::{
    cmake,
    need::Need,
    process,
    step::{Depth, StepError},
    workspace::Workspace,
};

/// A program, its source's folder, and the [`WAYS`] in which it is compiled.
struct Program {
    folder: &'static str,
    name: &'static str,
    ways: &'static [usize],
}

/// Programs that are compiled as somebody would by hand, with the flags that pkg-config tells.
const PROGRAMS: [Program; 6] = [
    Program { folder: "examples/c", name: "jit", ways: &[0, 2] },
    Program { folder: "examples/c", name: "keys", ways: &[0, 2] },
    // Without a sanitizer, whose notes it would put back.
    Program { folder: "examples/c", name: "snapshot", ways: &[0] },
    Program { folder: "crates/capi/tests", name: "alloc", ways: &[1] },
    Program { folder: "crates/capi/tests", name: "arena", ways: &[1] },
    Program { folder: "crates/capi/tests", name: "lines", ways: &[1, 2] },
];

const WAYS: [&[&str]; 3] = [
    &["-O2", "-Wall", "-Wextra", "-Werror", "-x", "c", "-std=gnu99"],
    &["-O1", "-fsanitize=address", "-x", "c", "-std=gnu11"],
    &["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-x", "c++", "-std=gnu++20"],
];

/// The project of the examples, and with what it is configured: both forms of the library, under AddressSanitizer.
const PROJECT: &str = "examples/c";
const CONFIGURATIONS: [(&str, &[&str]); 2] =
    [("shared", &["-DLINK_STATICALLY=OFF"]), ("static", &["-DLINK_STATICALLY=ON"])];
const SANITIZED: &[&str] = &["-DCMAKE_C_FLAGS=-O1 -fsanitize=address", "-DCMAKE_CXX_FLAGS=-O1 -fsanitize=address"];

/// The adapters in C++, what they need besides CMake, and options: each finds the installed headers of its own.
const ADAPTERS: [(&str, &[Need], &[&str]); 2] =
    [("asmjit", &[cmake::ASMJIT], &[]), ("llvm-orc", &[cmake::LLVM], cmake::WITH_LLVM)];

/// Checks what is installed below `tree`. Returns a remark if something was left out.
pub(super) fn check(
    workspace: &Workspace,
    folder: &Path,
    tree: &Path,
    depth: Depth,
) -> Result<Option<String>, StepError> {
    let programs = folder.join("programs");
    remove(&programs)?;
    fs::create_dir_all(&programs).map_err(|source| StepError::File {
        action: "make",
        path: programs.clone(),
        source,
    })?;
    by_hand(workspace, &programs, tree)?;
    if !cmake::CMAKE.is_met(workspace) {
        return Ok(Some(cmake::CMAKE.remedy()));
    }
    for (name, options) in CONFIGURATIONS {
        by_cmake(workspace, PROJECT, &programs.join(name), tree, &[options, SANITIZED].concat())?;
    }
    let mut lacking = Vec::new();
    for (name, needs, options) in ADAPTERS.into_iter().filter(|_| depth == Depth::Exhaustive) {
        match needs.iter().find(|need| !need.is_met(workspace)) {
            Some(missing) => lacking.push(format!("{name}: {}", missing.remedy())),
            None => {
                let source = format!("adapters/{name}");
                by_cmake(workspace, &source, &programs.join(name), tree, &[options, INSTALLED].concat())?;
            }
        }
    }
    Ok((!lacking.is_empty()).then(|| lacking.join("; ")))
}

/// Tells the adapters to use the headers that are installed, and not those beside them.
const INSTALLED: &[&str] = &["-DPALIMPSEST_INSTALLED=ON", "-DCMAKE_BUILD_TYPE=Release"];

fn by_hand(workspace: &Workspace, programs: &Path, tree: &Path) -> Result<(), StepError> {
    let flags = flags(workspace, tree)?;
    for Program { folder, name, ways } in PROGRAMS {
        let source = workspace.root.join(folder).join(name).with_extension("c");
        for way in ways {
            let (arguments, program) = (WAYS[*way], programs.join(format!("{name}-{way}")));
            let mut compiler = process::program("cc", workspace);
            compiler.args(arguments).arg(&source).args(["-x", "none"]).args(&flags).arg("-o").arg(&program);
            if arguments.contains(&"c++") {
                compiler.arg("-lstdc++");
            }
            process::stream(&mut compiler)?;
            let mut run = process::program(&program, workspace);
            process::stream_within(run.env("LD_LIBRARY_PATH", tree.join("lib")), process::LIMIT)?;
        }
    }
    Ok(())
}

/// Configures, builds and tests a project that calls `find_package(palimpsest)`.
fn by_cmake(workspace: &Workspace, source: &str, built: &Path, tree: &Path, options: &[&str]) -> Result<(), StepError> {
    let mut configure = process::program("cmake", workspace);
    configure.arg("-S").arg(workspace.root.join(source)).arg("-B").arg(built);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", tree.display())).args(options);
    process::stream(&mut configure)?;
    process::stream(process::program("cmake", workspace).args(["--build"]).arg(built).args(["--parallel", "2"]))?;
    let mut tests = process::program("ctest", workspace);
    tests.args(["--output-on-failure", "--no-tests=error", "--test-dir"]).arg(built);
    process::stream_within(&mut tests, process::LIMIT)
}

fn flags(workspace: &Workspace, tree: &Path) -> Result<Vec<String>, StepError> {
    if !process::is_runnable("pkg-config") {
        println!("package: no pkg-config: its file is not tried");
        let (include, library): (PathBuf, PathBuf) = (tree.join("include"), tree.join("lib"));
        return Ok(vec![
            format!("-I{}", include.display()),
            format!("-L{}", library.display()),
            "-lpalimpsest".to_owned(),
        ]);
    }
    let mut ask = process::program("pkg-config", workspace);
    ask.env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig")).args(["--cflags", "--libs", "palimpsest"]);
    Ok(process::capture(&mut ask)?.split_whitespace().map(str::to_owned).collect())
}

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

const PKG_CONFIG: Need = Need::Program { program: "pkg-config", package: "pkg-config" };

/// A program, its source's folder, and the [`WAYS`] in which it is compiled.
struct Program {
    folder: &'static str,
    name: &'static str,
    ways: &'static [usize],
}

/// Programs that are compiled as somebody would by hand, with the flags that pkg-config tells.
static PROGRAMS: [Program; 6] = [
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

/// Checks what is installed below `tree`. Returns remarks on what was left out.
pub(super) fn check(workspace: &Workspace, folder: &Path, tree: &Path, depth: Depth) -> Result<Vec<String>, StepError> {
    if !cmake::CC.is_met(workspace) {
        return Ok(vec![cmake::CC.remedy()]);
    }
    let programs = folder.join("programs");
    remove(&programs)?;
    fs::create_dir_all(&programs).map_err(|source| StepError::File {
        action: "make",
        path: programs.clone(),
        source,
    })?;
    let mut lacking = by_hand(workspace, &programs, tree)?;
    // Each project is of C++ in part.
    if let Some(missing) = [cmake::CXX, cmake::CMAKE].into_iter().find(|need| !need.is_met(workspace)) {
        lacking.push(format!("nothing by CMake: {}", missing.remedy()));
        return Ok(lacking);
    }
    for (name, options) in CONFIGURATIONS {
        by_cmake(workspace, PROJECT, &programs.join(name), tree, &[options, SANITIZED].concat())?;
    }
    for (name, needs, options) in ADAPTERS.into_iter().filter(|_| depth == Depth::Exhaustive) {
        match needs.iter().find(|need| !need.is_met(workspace)) {
            Some(missing) => lacking.push(format!("{name}: {}", missing.remedy())),
            None => {
                let source = format!("adapters/{name}");
                by_cmake(workspace, &source, &programs.join(name), tree, &[options, INSTALLED].concat())?;
            }
        }
    }
    Ok(lacking)
}

/// Tells the adapters to use the headers that are installed, and not those beside them.
const INSTALLED: &[&str] = &["-DPALIMPSEST_INSTALLED=ON", "-DCMAKE_BUILD_TYPE=Release"];

/// Compiles and runs the programs in each way that this machine has. Returns remarks on what was left out.
fn by_hand(workspace: &Workspace, programs: &Path, tree: &Path) -> Result<Vec<String>, StepError> {
    let (flags, mut lacking) = flags(workspace, tree)?;
    let languages = if cmake::CXX.is_met(workspace) { Languages::Both } else { Languages::C };
    if languages == Languages::C {
        lacking.push(format!("nothing in C++ by hand: {}", cmake::CXX.remedy()));
    }
    for (Program { folder, name, .. }, way) in compiled(languages) {
        let source = workspace.root.join(folder).join(name).with_extension("c");
        let program = programs.join(format!("{name}-{way}"));
        let mut compiler = process::program("cc", workspace);
        compiler.args(WAYS[way]).arg(&source).args(["-x", "none"]).args(&flags).arg("-o").arg(&program);
        if is_cxx(way) {
            compiler.arg("-lstdc++");
        }
        process::stream(&mut compiler)?;
        let mut run = process::program(&program, workspace);
        process::stream_within(run.env("LD_LIBRARY_PATH", tree.join("lib")), process::LIMIT)?;
    }
    Ok(lacking)
}

/// What there is a compiler of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Languages {
    C,
    Both,
}

/// Returns each program with each of [`WAYS`] in which it is compiled here.
fn compiled(languages: Languages) -> impl Iterator<Item = (&'static Program, usize)> {
    let ways = PROGRAMS.iter().flat_map(|program| program.ways.iter().map(move |&way| (program, way)));
    ways.filter(move |&(_, way)| languages == Languages::Both || !is_cxx(way))
}

/// Returns whether this one of [`WAYS`] takes the program as C++.
fn is_cxx(way: usize) -> bool {
    WAYS[way].contains(&"c++")
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

/// Returns what links with the library, and a remark if its file for pkg-config was left out.
fn flags(workspace: &Workspace, tree: &Path) -> Result<(Vec<String>, Vec<String>), StepError> {
    if !PKG_CONFIG.is_met(workspace) {
        let (include, library): (PathBuf, PathBuf) = (tree.join("include"), tree.join("lib"));
        let flags =
            vec![format!("-I{}", include.display()), format!("-L{}", library.display()), "-lpalimpsest".to_owned()];
        return Ok((flags, vec![PKG_CONFIG.remedy()]));
    }
    let mut ask = process::program("pkg-config", workspace);
    ask.env("PKG_CONFIG_PATH", tree.join("lib/pkgconfig")).args(["--cflags", "--libs", "palimpsest"]);
    Ok((process::capture(&mut ask)?.split_whitespace().map(str::to_owned).collect(), Vec::new()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_compiler_of_cxx_each_program_is_compiled_as_c_alone() {
        assert!(compiled(Languages::Both).any(|(program, way)| program.name == "lines" && way == 2));
        assert!(compiled(Languages::C).all(|(_, way)| way != 2));
        assert!(PROGRAMS.iter().all(|program| compiled(Languages::C).any(|(other, _)| other.name == program.name)));
    }
}

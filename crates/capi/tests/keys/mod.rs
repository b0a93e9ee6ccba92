//! Static keys in C and C++, as compilers translate them: what the book says of compilers, of levels of optimisation,
//! of programs, libraries and inline functions. A short run tries some combinations, the ignored test all.

use std::env;
use std::path::Path;
use std::process::Command;

use super::built;

#[derive(Clone, Copy)]
enum Language {
    C,
    Cxx,
}

/// A way to compile the programs.
struct Way {
    compiler: &'static str,
    language: Language,
    options: &'static [&'static str],
}

/// Compiles the program and its library, and runs it. Returns false without the compiler, or if it cannot do what the
/// options ask for.
fn works(way: &Way) -> bool {
    let Way { compiler, language, options } = way;
    let asked = format!("{compiler} {}", options.join(" "));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("the temporary directory is writable");
    let compile = |files: &[&str], more: &[&str], to: &Path| {
        let mut command = Command::new(compiler);
        match language {
            Language::C => command.args(["-x", "c", "-std=gnu99"]),
            Language::Cxx => command.args(["-x", "c++", "-std=gnu++17"]),
        };
        command.args(*options).args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(sources.join("include")).args(more);
        if compiler.starts_with("clang") {
            // Those of programs mean nothing for a library.
            command.arg("-Wno-unused-command-line-argument");
        }
        command.args(files.iter().map(|file| sources.join("tests/keys").join(file))).args(["-x", "none"]);
        command.arg(built("libpalimpsest_capi.so")).arg("-o").arg(to);
        command
    };
    let [library, program] = ["libkeys.so", "keys"].map(|name| folder.path().join(name));
    let mut first = compile(&["library.c"], &["-fPIC", "-shared"], &library);
    let Ok(compiled) = first.output() else {
        println!("skipped: {asked}: no such compiler");
        return false;
    };
    let said = String::from_utf8_lossy(&compiled.stderr);
    if !compiled.status.success() && options.contains(&"-flto") && said.contains("LLVMgold") {
        println!("skipped: {asked}: this linker does not do that for this compiler");
        return false;
    }
    assert!(compiled.status.success(), "{asked}: {said}");
    let mut second = compile(&["main.c", "other.c"], &[], &program);
    let compiled = second.arg(&library).output().expect("it was started before");
    assert!(compiled.status.success(), "{asked}: {}", String::from_utf8_lossy(&compiled.stderr));
    let ours = built("libpalimpsest_capi.so");
    let folders = [&library, &ours].map(|file| file.parent().expect("a file is in a folder"));
    let ran = Command::new(&program).env("LD_LIBRARY_PATH", env::join_paths(folders).expect("no colons")).output();
    let ran = ran.expect("the program can be started");
    assert!(ran.status.success(), "{asked}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stdout));
    true
}

/// Fails on: an entry of a site that stays with a copy of a function which the linker drops; a branch of C++ that is no
/// function of its own for Clang.
#[test]
fn branches_are_switched_in_code_of_some_kinds() {
    let some: [(_, _, &[&str]); 3] = [
        ("gcc", Language::C, &["-O0"]),
        ("g++", Language::Cxx, &["-O3", "-ffunction-sections", "-Wl,--gc-sections"]),
        ("clang++", Language::Cxx, &["-O1"]),
    ];
    for (compiler, language, options) in some {
        works(&Way { compiler, language, options });
    }
}

/// Fails on: branches that do not say whose they are.
#[test]
fn functions_of_different_keys_are_not_folded() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("the temporary directory is writable");
    // The linker that comes with Rust's compiler, if it does.
    let libraries = Command::new("rustc").args(["--print", "target-libdir"]).output();
    let libraries = libraries.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let linker = Path::new(libraries.trim()).join("../bin/gcc-ld");
    for compiler in ["gcc", "clang"] {
        let program = folder.path().join(compiler);
        let mut command = Command::new(compiler);
        command.args(["-O2", "-ffunction-sections", "-fuse-ld=lld", "-Wl,--icf=all", "-Wall", "-Wextra", "-Werror"]);
        command.arg(format!("-B{}", linker.display())).arg("-I").arg(sources.join("include"));
        command.arg(sources.join("tests/keys/folded.c")).arg(built("libpalimpsest_capi.so")).arg("-o").arg(&program);
        let Ok(compiled) = command.output() else {
            println!("skipped: {compiler}: no such compiler");
            continue;
        };
        let said = String::from_utf8_lossy(&compiled.stderr);
        if said.contains("cannot find 'ld'") || said.contains("cannot find 'ld.lld'") || said.contains("invalid linker")
        {
            println!("skipped: {compiler}: there is no lld");
            continue;
        }
        assert!(compiled.status.success(), "{compiler}: {said}");
        let ours = built("libpalimpsest_capi.so");
        let ran = Command::new(&program).env("LD_LIBRARY_PATH", ours.parent().expect("a file is in a folder")).output();
        let ran = ran.expect("the program can be started");
        assert!(ran.status.success(), "{compiler}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stdout));
    }
}

const LEVELS: [&str; 6] = ["-O0", "-O1", "-O2", "-O3", "-Os", "-Og"];
const KINDS: [&[&str]; 5] = [
    &["-fPIE", "-pie"],
    &["-fno-pic", "-no-pie"],
    &["-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections"],
    &["-fvisibility=hidden", "-g"],
    &["-flto"],
];

#[test]
#[ignore = "120 programs: for exhaustive runs"]
fn branches_are_switched_in_code_of_every_kind() {
    let compilers = [("gcc", Language::C), ("g++", Language::Cxx), ("clang", Language::C), ("clang++", Language::Cxx)];
    let mut count = 0;
    for (compiler, language) in compilers {
        for level in LEVELS {
            for kind in KINDS {
                let options: Vec<&'static str> = [level].iter().chain(kind).copied().collect();
                count += usize::from(works(&Way { compiler, language, options: options.leak() }));
            }
        }
    }
    println!("{count} programs");
}

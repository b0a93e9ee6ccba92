//! Allocators other than the C library's, preloaded behind the object: what they believe to be zero must be zero.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{self, Mode};

/// Builds the torture program, once per test; or says why it cannot be built.
fn build(folder: &Path) -> Result<PathBuf, String> {
    let compiler = support::installed(&["cc", "gcc", "clang"]).ok_or("no C compiler is installed")?;
    let program = folder.join("torture");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/torture.c");
    let build =
        Command::new(compiler).args(["-O2", "-o"]).arg(&program).arg(source).output().expect("the compiler starts");
    assert!(build.status.success(), "{}", String::from_utf8_lossy(&build.stderr));
    Ok(program)
}

/// Finds a library by its file name, where the loader looks for it.
fn library(name: &str) -> Option<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    [multiarch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"]
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.exists())
}

/// Runs it in both modes with an allocator.
fn torture(name: &str, beside: Option<&Path>) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = match build(folder.path()) {
        Ok(program) => program,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let run = |mode| support::output(&mut support::command(&program, mode, &folder, beside));
    let plain = run(Mode::Plain);
    let frozen = run(Mode::Frozen("stop"));
    let report = support::report(&folder);
    assert_eq!(support::facts(&plain), support::facts(&frozen), "{name}\n{report}");
    let (plain, frozen) = (support::figures(&plain, "pte"), support::figures(&frozen, "pte"));
    println!("{name}");
    support::assert_few_tables(plain[0], frozen[0], &report);
}

#[test]
fn the_c_librarys() {
    torture("glibc", None);
}

/// As [`torture`], if the library is installed.
fn torture_with(package: &str, name: &str) {
    match library(name) {
        Some(library) => torture(name, Some(&library)),
        None => println!("skipped: {name} is not installed; Debian has it in {package}"),
    }
}

#[test]
fn jemalloc() {
    torture_with("libjemalloc2", "libjemalloc.so.2");
}

#[test]
fn mimalloc() {
    torture_with("libmimalloc2.0", "libmimalloc.so.2");
}

#[test]
fn tcmalloc() {
    torture_with("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4");
}

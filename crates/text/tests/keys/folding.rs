//! Linkers that fold identical code (`--icf=all`).

use std::process::Command;

use super::golden::{Library, read};
use super::isa::TARGET;

/// Fails on: branches, or on AArch64 entries of calls, that do not say whose they are.
#[test]
fn functions_of_different_keys_are_not_folded() {
    if !super::PATCHED {
        return;
    }
    let Some(library) = Library::build(TARGET) else {
        return eprintln!("skipped: no standard library for {TARGET}, or no cargo");
    };
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("folded");
    let mut rustc = library.rustc("tests/keys/folded/main.rs");
    rustc.args(["--crate-name=folded", "--crate-type=bin", "-Clink-arg=-fuse-ld=lld", "-Clink-arg=-Wl,--icf=all"]);
    // The linker that comes with the compiler, if it does.
    let sysroot = read(Command::new("rustc").args(["--print", "sysroot"]));
    rustc.arg(format!("-Clink-arg=-B{}/lib/rustlib/{TARGET}/bin/gcc-ld", sysroot.trim()));
    let linked = rustc.arg("-o").arg(&program).output().unwrap();
    let told = String::from_utf8_lossy(&linked.stderr);
    if !linked.status.success() && (told.contains("cannot find 'ld'") || told.contains("invalid linker name")) {
        return eprintln!("skipped: there is no lld");
    }
    assert!(linked.status.success(), "{told}");
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
}

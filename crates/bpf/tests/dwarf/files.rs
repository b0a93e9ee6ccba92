//! Debug information apart from the program.

use std::fs;
use std::path::Path;
use std::process::Command;

use palimpsest_bpf::dwarf::{DebugInfo, DwarfError};

use super::{HOST, compiled};

/// Runs `objcopy`; says so if it is not there.
fn objcopy(folder: &Path, arguments: &[&str]) -> bool {
    match Command::new("objcopy").args(arguments).current_dir(folder).status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("skipped: no objcopy ({error})");
            false
        }
    }
}

/// Parts the debug information of `host.so` from it, into a file that this names.
fn part(folder: &Path, name: &str) -> bool {
    let link = format!("--add-gnu-debuglink={name}");
    objcopy(folder, &["--only-keep-debug", "host.so", name]) && objcopy(folder, &["--strip-debug", &link, "host.so"])
}

#[test]
fn debug_information_beside_a_program_must_belong_to_it() {
    for id in ["-Wl,--build-id", "-Wl,--build-id=none"] {
        let library = compiled("clang", &["-g", "-DHOST", "-shared", "-nostdlib", id, "fields.c"]);
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        let (Some(library), program) = (library, folder.join("host.so")) else { return };
        fs::write(&program, library).expect("room");
        let types = || DebugInfo::open(&program).and_then(|debug| debug.types(["inner_t"]));
        let whole = types().expect("with -g");
        assert_eq!(whole.missing(), [""; 0]);
        if !part(folder, "host.debug") {
            return;
        }
        assert_eq!(types().expect("beside it"), whole);
        let below = folder.join(".debug/host.debug");
        fs::create_dir_all(folder.join(".debug")).expect("room");
        fs::rename(folder.join("host.debug"), &below).expect("a folder");
        assert_eq!(types().expect("below it"), whole);
        // That of another build, with another build id, or with another checksum where there is none.
        let mut other = fs::read(&below).expect("there");
        let changed = match id {
            "-Wl,--build-id" => other.windows(4).position(|bytes| bytes == b"GNU\0").expect("a note") + 4,
            _ => other.len() - 1,
        };
        other[changed] ^= 1;
        fs::write(&below, other).expect("room");
        let Err(DwarfError::Absent { tried, .. }) = types() else { panic!("it is another one's") };
        assert!(tried.contains(&below), "{tried:?}");
    }
}

#[test]
fn a_link_leads_nowhere_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).expect("room");
    fs::write(inner.join("host.so"), HOST).expect("room");
    if !part(&inner, "hostdebug") {
        return;
    }
    let limits = || DebugInfo::open(&inner.join("host.so"))?.types(["Limits"]);
    assert!(limits().is_ok());
    let mut bytes = fs::read(inner.join("host.so")).expect("there");
    let name = bytes.windows(10).position(|bytes| bytes == b"hostdebug\0").expect("the link");
    bytes[name..name + 9].copy_from_slice(b"../hostde");
    fs::write(inner.join("host.so"), bytes).expect("room");
    fs::rename(inner.join("hostdebug"), folder.path().join("hostde")).expect("a folder");
    let Err(DwarfError::Absent { tried, .. }) = limits().map(drop) else { panic!("it went outside") };
    assert!(!tried.iter().any(|path| path.ends_with("hostde")), "{tried:?}");
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let error = DebugInfo::open(folder.path()).map(drop).expect_err("a folder");
    assert!(matches!(error, DwarfError::Open(_)), "{error}");
    let error = DebugInfo::open(&folder.path().join("nothing")).map(drop).expect_err("nothing");
    assert!(matches!(error, DwarfError::Open(_)), "{error}");
    // The test itself is compiled with lines only: it has debug information, and no such type.
    match DebugInfo::of_this_process() {
        Ok(debug) => assert_eq!(debug.types(["no such type"]).expect("right").missing(), ["no such type"]),
        Err(error) => assert!(matches!(error, DwarfError::Absent { .. }), "{error}"),
    }
}

//! Types in `.dwo` files, and in packages of these.

use std::fs;
use std::path::Path;
use std::process::Command;

use palimpsest_bpf::dwarf::{DebugInfo, DwarfError};
use palimpsest_bpf::elf::Object;

use super::damage::Random;
use super::{FIELDS, SESSION, run, session, value_of};

/// Runs a tool in `folder`; says so if it is not there, or cannot do that.
fn tool(folder: &Path, name: &str, arguments: &str) -> bool {
    let output = Command::new(name).args(arguments.split(' ')).current_dir(folder).env_remove("RUSTFLAGS").output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            eprintln!("skipped: {name} {arguments}: {}", said.lines().next().unwrap_or("no reason given"));
            false
        }
        Err(error) => {
            eprintln!("skipped: no {name} ({error})");
            false
        }
    }
}

/// A folder with the sources.
fn folder() -> Option<tempfile::TempDir> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dwarf");
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["fields.c", "host.rs"] {
        if let Err(error) = fs::copy(sources.join(name), folder.path().join(name)) {
            eprintln!("skipped: {name} is not here ({error})");
            return None;
        }
    }
    fs::write(folder.path().join("other.c"), "struct inner { int unlike; } other;").expect("room");
    Some(folder)
}

/// Compiles the host in C to `host.so`, with its types in `host.dwo`, or in itself.
fn build(folder: &Path, compiler: &str, flags: &str) -> bool {
    tool(folder, compiler, &format!("-g -DHOST -fPIC {flags} -c fields.c -o host.o"))
        && tool(folder, compiler, "-shared -nostdlib host.o -o host.so")
}

/// Adapts the program in C to the types of the host.
fn adapted(program: &Path) -> Result<Vec<u8>, DwarfError> {
    let types = DebugInfo::open(program)?.types(Object::asks(FIELDS).expect("an object"))?;
    assert_eq!(types.missing(), [""; 0]);
    let object = Object::parse_for(FIELDS, Some(&types.btf().expect("types"))).expect("it is adapted");
    Ok(object.programs()[0].bytes().to_vec())
}

#[test]
fn types_are_found_in_dwo_files_and_in_packages() {
    let Some(folder) = folder() else { return };
    let folder = folder.path();
    let program = folder.join("host.so");
    for compiler in ["clang", "gcc"] {
        let versions = [
            "-gdwarf-4",
            "-gdwarf-5",
            "-gdwarf-5 -gz",
            "-gdwarf-4 -fdebug-types-section",
            "-gdwarf-5 -fdebug-types-section",
        ];
        for version in versions {
            if !build(folder, compiler, version) {
                continue;
            }
            let expected = adapted(&program).expect("with -g");
            if !build(folder, compiler, &format!("{version} -gsplit-dwarf")) {
                continue;
            }
            let dwo = folder.join("host.dwo");
            assert_eq!(adapted(&program).expect("beside it"), expected, "{compiler} {version}");
            // The bytes of the program alone do not tell where.
            let bytes = fs::read(&program).expect("there");
            let alone = DebugInfo::parse(&bytes).and_then(|debug| debug.types(["inner_t"])).expect_err("elsewhere");
            let DwarfError::Split { file } = alone else { panic!("{alone}") };
            assert!(file.ends_with("host.dwo"), "{file}");
            // Moved with the program.
            let moved = tempfile::tempdir().expect("a folder");
            for name in ["host.so", "host.dwo"] {
                fs::copy(folder.join(name), moved.path().join(name)).expect("room");
            }
            let away = folder.join("away");
            fs::rename(&dwo, &away).expect("a folder");
            assert_eq!(adapted(&moved.path().join("host.so")).expect("beside it"), expected, "{compiler} {version}");
            assert!(matches!(adapted(&program), Err(DwarfError::Split { .. })), "{compiler} {version}");
            // In a package. Debian's tools know no more than this: `dwp` loses units of version 5, and `llvm-dwp` does
            // not end for those of gcc.
            let packer = match (compiler, version.contains("dwarf-4")) {
                ("clang", _) => Some("llvm-dwp"),
                (_, true) => Some("dwp"),
                (_, false) => None,
            };
            let package = folder.join("host.so.dwp");
            if packer.is_some_and(|packer| tool(folder, packer, "away -o host.so.dwp")) {
                assert_eq!(adapted(&program).expect("beside it"), expected, "{compiler} {version}");
                fs::remove_file(&package).expect("there");
            }
            // Another file of this name is not its own.
            if tool(folder, compiler, &format!("-g {version} -gsplit-dwarf -c other.c -o other.o")) {
                fs::rename(folder.join("other.dwo"), &dwo).expect("a folder");
                assert!(matches!(adapted(&program), Err(DwarfError::Split { .. })), "{compiler} {version}");
                if compiler == "clang" && tool(folder, "llvm-dwp", "host.dwo -o host.so.dwp") {
                    assert!(matches!(adapted(&program), Err(DwarfError::Split { .. })), "{compiler} {version}");
                    fs::remove_file(package).expect("there");
                }
            }
        }
    }
}

#[test]
fn types_of_rust_are_found_in_dwo_files_and_in_packages() {
    let Some(folder) = folder() else { return };
    let program = folder.path().join("libhost.so");
    for split in ["unpacked", "packed"] {
        let flags = format!(
            "--edition 2024 -g -C opt-level=2 -C panic=abort --crate-type cdylib -C link-arg=-nostdlib \
             -C split-debuginfo={split} -o libhost.so host.rs"
        );
        if !tool(folder.path(), "rustc", &flags) {
            return;
        }
        let types = DebugInfo::open(&program).and_then(|debug| debug.types([session()])).expect("with -g");
        assert_eq!(types.missing(), [""; 0], "{split}");
        let mut asked: Vec<_> = Object::asks(SESSION).expect("an object").into_iter().map(Into::into).collect();
        asked[1] = session();
        let types = DebugInfo::open(&program).and_then(|debug| debug.types(asked)).expect("with -g");
        let object = Object::parse_for(SESSION, Some(&types.btf().expect("types"))).expect("it is adapted");
        let context = value_of(&fs::read(&program).expect("there"), "SESSION");
        assert_eq!(run(&object, "values", &context), 0x7f_ffff_ffff - 3, "{split}");
    }
}

#[test]
fn damaged_files_are_errors_or_types() {
    let Some(folder) = folder() else { return };
    let folder = folder.path();
    let (program, mut random) = (folder.join("host.so"), Random::new());
    let (mut right, mut wrong) = (0, 0);
    for version in ["-gdwarf-4 -fdebug-types-section", "-gdwarf-5 -fdebug-types-section"] {
        if !build(folder, "clang", &format!("{version} -gsplit-dwarf")) {
            return;
        }
        for name in ["host.so", "host.dwo", "host.so.dwp"] {
            if name.ends_with("dwp") {
                fs::rename(folder.join("host.dwo"), folder.join("away")).expect("a folder");
                if !tool(folder, "llvm-dwp", "away -o host.so.dwp") {
                    continue;
                }
            }
            let good = fs::read(folder.join(name)).expect("there");
            for round in 0..150 {
                fs::write(folder.join(name), random.damaged(&good, round, 12)).expect("room");
                match DebugInfo::open(&program).and_then(|debug| debug.types(["host", "inner_t"])) {
                    Ok(types) => right += usize::from(types.btf().is_ok()),
                    Err(_) => wrong += 1,
                }
            }
            fs::write(folder.join(name), good).expect("room");
        }
        let _ = fs::remove_file(folder.join("host.so.dwp"));
    }
    assert!(right > 50 && wrong > 50, "{right} right, {wrong} wrong: the damage tells nothing");
}

#[test]
fn all_files_together_have_no_more_bytes_than_allowed() {
    let Some(folder) = folder() else { return };
    let (folder, program) = (folder.path(), folder.path().join("host.so"));
    if !build(folder, "clang", "-gdwarf-5 -gsplit-dwarf") {
        return;
    }
    let within = |most| DebugInfo::open_within(&program, most).and_then(|debug| debug.types(["inner_t"]));
    let enough = (0..).map(|power| 1 << power).find(|most| within(*most).is_ok()).expect("it is finite");
    // The file by itself is within the limit, and says that it is longer than what is left.
    let error = (0..enough).rev().step_by(64).find_map(|most| match within(most) {
        Err(DwarfError::Apart { path, source }) => Some((path, source)),
        _ => None,
    });
    let (path, source) = error.expect("the .dwo file no longer fits");
    assert!(path.ends_with("host.dwo"), "{path:?}");
    assert!(matches!(*source, DwarfError::Long { .. } | DwarfError::Memory { .. }), "{source}");
}

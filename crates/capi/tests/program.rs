//! C programs, linked with each form of the library, and branches on static keys as compilers translate them.

mod keys;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Returns a file that Cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let own = env::current_exe().expect("a test has a path");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("Cargo builds {name} for this test"))
}

/// Links `source` with `library` and runs it.
fn runs_with(source: &str, library: &Path) {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let form = library.extension().and_then(|form| form.to_str()).expect("`so` or `a`");
    // Each test has its own, which the other does not remove.
    let folder = env::temp_dir().join(format!("palimpsest-capi-program-{}-{form}", std::process::id()));
    fs::create_dir_all(&folder).expect("the temporary directory is writable");
    let name = Path::new(source).file_name().expect("a file");
    let program = folder.join(name).with_extension(form);
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(sources.join("include"));
    compiler.arg(sources.join(source)).arg(library).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    let Ok(compiled) = compiler.output() else {
        return println!("skipped: no C compiler `cc`");
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new(&program).env("LD_LIBRARY_PATH", library.parent().expect("a file is in a folder")).output();
    let ran = ran.expect("the program can be started");
    assert!(ran.status.success(), "{}: {}", ran.status, String::from_utf8_lossy(&ran.stdout));
    fs::remove_file(&program).expect("it is ours");
    fs::remove_dir(&folder).expect("it is empty");
}

/// From this crate's folder.
const TESTS: [&str; 5] = ["tests/alloc.c", "tests/arena.c", "tests/mistakes.c", "tests/packs.c", "tests/snapshot.c"];

/// The book's. With the static library the step `package` runs them.
const EXAMPLES: [&str; 5] = [
    "../../examples/c/jit.c",
    "../../examples/c/keys.c",
    "../../examples/c/fork.c",
    "../../examples/c/ranges.c",
    "../../examples/c/snapshot.c",
];

#[test]
fn c_programs_run_with_the_shared_library() {
    for source in TESTS.into_iter().chain(EXAMPLES) {
        runs_with(source, &built("libpalimpsest_capi.so"));
    }
}

#[test]
fn c_programs_run_with_the_static_library() {
    for source in TESTS {
        runs_with(source, &built("libpalimpsest_capi.a"));
    }
}

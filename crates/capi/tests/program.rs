//! C programs, linked with each form of the library, and branches on static keys as compilers translate them.

mod keys;
mod tools;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Returns a file that Cargo has built beside this test.
fn built(name: &str) -> PathBuf {
    let own = env::current_exe().expect("a test has a path");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name));
    found.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("Cargo builds {name} for this test"))
}

/// A program, in a folder that goes with it.
struct Compiled {
    folder: TempDir,
    program: PathBuf,
}

impl Compiled {
    /// Links `source` with `library`. `None` without a compiler.
    fn new(source: &str, library: &Path, flags: &[&str]) -> Option<Self> {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
        let name = Path::new(source).file_stem().and_then(|name| name.to_str()).expect("a file");
        let folder = tempfile::tempdir().expect("the temporary directory is writable");
        let program = folder.path().join(name);
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu99", "-O1", "-Wall", "-Wextra", "-Werror"]).args(flags);
        compiler.arg("-I").arg(sources.join("include")).arg(sources.join(source)).arg(library);
        compiler.args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
        let made = Self { folder, program };
        let Ok(compiled) = compiler.output() else {
            println!("skipped: no C compiler `cc`");
            return None;
        };
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        Some(made)
    }
}

/// Links `source` with `library` and runs it.
fn runs_with(source: &str, library: &Path) {
    let Some(compiled) = Compiled::new(source, library, &[]) else { return };
    let library = library.parent().expect("a file is in a folder");
    let ran = Command::new(&compiled.program).env("LD_LIBRARY_PATH", library).output();
    let ran = ran.expect("the program can be started");
    assert!(ran.status.success(), "{source}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stdout));
}

/// From this crate's folder.
const TESTS: [&str; 6] =
    ["tests/alloc.c", "tests/arena.c", "tests/lines.c", "tests/mistakes.c", "tests/packs.c", "tests/snapshot.c"];

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

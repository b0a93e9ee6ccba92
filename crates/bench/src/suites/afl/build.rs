//! Builds the targets: SQLite's amalgamation from a crate's source, with AFL++'s compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::suites::programs::{ProgramError, doing, finish};

/// The crate whose source contains the amalgamation. Cargo checks what it fetches.
const PACKAGE: &str = "libsqlite3-sys";
const VERSION: &str = "0.39.1";

/// Without threads and without libraries loaded at run time: neither belongs in a fuzzed process.
const FLAGS: [&str; 3] = ["-DSQLITE_THREADSAFE=0", "-DSQLITE_OMIT_LOAD_EXTENSION", "-DSQLITE_DEFAULT_MEMSTATUS=0"];

/// The sources of this crate, from which the targets are built.
const SOURCES: &str = env!("CARGO_MANIFEST_DIR");

/// What was built.
pub(super) struct Built {
    /// The target that forks.
    pub(super) plain: PathBuf,
    /// The target that resets itself.
    pub(super) reset: PathBuf,
    /// The target that runs again and again in one process and restores nothing.
    pub(super) persistent: PathBuf,
    /// The preload object.
    pub(super) preload: PathBuf,
    /// A folder for what campaigns leave.
    pub(super) scratch: PathBuf,
}

/// What a build is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Figures: everything is optimised.
    Measuring,
    /// Equal behaviour.
    Comparing,
}

fn harness() -> PathBuf {
    Path::new(SOURCES).join("src/suites/afl/harness")
}

/// Inputs to start with.
pub(super) fn seeds() -> PathBuf {
    harness().join("seeds")
}

/// Returns what to do if the source tree is not where this program was built.
pub(super) fn missing() -> Option<String> {
    let folder = harness();
    let reason =
        || format!("the targets are built from {}, which is not there: run it in the source tree", folder.display());
    (!folder.is_dir()).then(reason)
}

/// Builds everything that does not exist yet.
pub(super) fn all(purpose: Purpose) -> Result<Built, ProgramError> {
    let target = target_folder()?;
    let folder = target.join("bench-afl");
    fs::create_dir_all(&folder).map_err(doing(format!("make {}", folder.display())))?;
    let (preload, library) = ours(&target, purpose)?;
    let sqlite = amalgamation(&folder)?;
    // To optimise SQLite takes a minute, and behaves no differently.
    let level = if purpose == Purpose::Measuring { "-O2" } else { "-O0" };
    let compiler = || {
        let mut compiler = Command::new("afl-clang-fast");
        compiler.env("AFL_QUIET", "1").arg(level).args(FLAGS);
        if purpose == Purpose::Comparing {
            // Else it adds a level of its own.
            compiler.env("AFL_DONT_OPTIMIZE", "1");
        }
        compiler
    };
    let object = folder.join(format!("sqlite3-{VERSION}{level}.o"));
    if !object.exists() {
        let mut compiler = compiler();
        compiler.arg("-c").arg(sqlite.join("sqlite3.c"));
        finish(compiler.arg("-o").arg(&object))?;
    }
    let [plain, reset, persistent] = ["plain", "reset", "persistent"].map(|name| folder.join(name));
    let built = Built { plain, reset, persistent, preload, scratch: folder.join("campaigns") };
    // The harness is not instrumented: with no edges of its own, both targets number SQLite's edges alike.
    let deny = folder.join("not-instrumented");
    fs::write(&deny, "src: *sqlite_harness.c\n").map_err(doing(format!("write {}", deny.display())))?;
    let targets: [(_, &[&str], _); 3] = [
        (&built.plain, &[], None),
        (&built.reset, &["-DRESET"], Some(&library)),
        (&built.persistent, &["-DPERSISTENT"], None),
    ];
    for (target, defined, library) in targets {
        let mut compiler = compiler();
        compiler.env("AFL_LLVM_DENYLIST", &deny).arg("-I").arg(&sqlite);
        compiler.args(defined).arg(harness().join("sqlite_harness.c")).arg(&object);
        if let Some(library) = library {
            compiler.arg(library).arg("-lgcc_s");
        }
        compiler.args(["-lm", "-lpthread", "-ldl", "-o"]).arg(target);
        finish(&mut compiler)?;
    }
    Ok(built)
}

/// Returns a `cargo` command in the source tree, without the library path that `cargo run` sets for this program.
fn cargo() -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(SOURCES).env_remove("LD_LIBRARY_PATH");
    command
}

/// Cargo's folder for what it builds.
fn target_folder() -> Result<PathBuf, ProgramError> {
    let answer = answer(cargo().args(["metadata", "--format-version=1", "--no-deps"]))?;
    let folder = answer["target_directory"].as_str().map(PathBuf::from);
    folder.ok_or_else(|| ProgramError::NoSource { package: "palimpsest", found: answer.to_string() })
}

/// Builds the preload object and the library of a target that resets itself, and returns their paths.
fn ours(target: &Path, purpose: Purpose) -> Result<(PathBuf, PathBuf), ProgramError> {
    let (profile, folder) = match purpose {
        Purpose::Measuring => ("release", "release"),
        Purpose::Comparing => ("dev", "debug"),
    };
    for what in [&["--package", "palimpsest-preload"][..], &["--package", "palimpsest-fork", "--example", "reset"]] {
        finish(cargo().args(["build", "--profile", profile]).args(what))?;
    }
    let folder = target.join(folder);
    Ok((folder.join("libpalimpsest_preload.so"), folder.join("examples/libreset.a")))
}

/// The folder of `sqlite3.c`, fetched by Cargo through a manifest of its own below `folder`.
fn amalgamation(folder: &Path) -> Result<PathBuf, ProgramError> {
    let package = folder.join("sqlite");
    fs::create_dir_all(&package).map_err(doing(format!("make {}", package.display())))?;
    let manifest = package.join("Cargo.toml");
    let text = format!(
        "[package]\nname = \"sqlite-source\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [workspace]\n\n[dependencies]\n{PACKAGE} = \"={VERSION}\"\n"
    );
    fs::write(&manifest, text).map_err(doing(format!("write {}", manifest.display())))?;
    let library = package.join("lib.rs");
    fs::write(&library, "").map_err(doing(format!("write {}", library.display())))?;
    let answer = answer(cargo().args(["metadata", "--format-version=1", "--manifest-path"]).arg(&manifest))?;
    let none = || ProgramError::NoSource { package: PACKAGE, found: answer["packages"].to_string() };
    source_of(&answer).ok_or_else(none)
}

fn answer(command: &mut Command) -> Result<Value, ProgramError> {
    let output = finish(command)?;
    serde_json::from_slice(&output.stdout).map_err(|error| doing("read cargo's answer")(error.into()))
}

fn source_of(metadata: &Value) -> Option<PathBuf> {
    let package = metadata["packages"].as_array()?.iter().find(|package| package["name"] == PACKAGE)?;
    Some(Path::new(package["manifest_path"].as_str()?).parent()?.join("sqlite3"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_source_lies_beside_the_manifest() {
        let metadata = json!({ "packages": [
            { "name": "cc", "manifest_path": "/a/cc/Cargo.toml" },
            { "name": PACKAGE, "manifest_path": "/a/sys/Cargo.toml" },
        ]});
        assert_eq!(source_of(&metadata), Some(PathBuf::from("/a/sys/sqlite3")));
        assert_eq!(source_of(&json!({})), None);
    }

    #[test]
    fn the_harness_and_its_seeds_lie_beside_the_suite() {
        if !Path::new(SOURCES).is_dir() {
            println!("skipped: the source tree is not here");
            return;
        }
        assert_eq!(missing(), None);
        assert!(harness().join("sqlite_harness.c").is_file() && seeds().join("select.sql").is_file());
    }
}

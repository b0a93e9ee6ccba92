//! Building the targets: SQLite's amalgamation out of a crate's source, with AFL++'s compiler.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::{
    bench::BenchError,
    process::{self, program},
    step::StepError,
    workspace::Workspace,
};

/// The crate whose source holds the amalgamation. Cargo checks what it fetches.
const PACKAGE: &str = "libsqlite3-sys";
const VERSION: &str = "0.39.1";

/// Without threads and without libraries loaded at run time: neither belongs in a fuzzed process.
const FLAGS: [&str; 3] = ["-DSQLITE_THREADSAFE=0", "-DSQLITE_OMIT_LOAD_EXTENSION", "-DSQLITE_DEFAULT_MEMSTATUS=0"];

/// What was built.
pub(super) struct Built {
    /// The target that forks.
    pub(super) plain: PathBuf,
    /// The target that resets itself.
    pub(super) reset: PathBuf,
    /// The preload object.
    pub(super) preload: PathBuf,
    /// For what campaigns leave.
    pub(super) scratch: PathBuf,
}

/// What a build is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Figures: everything is optimised.
    Measuring,
    /// Equal behaviour: what the tests have built serves again.
    Comparing,
}

/// Builds everything that is not there yet.
pub(super) fn all(workspace: &Workspace, purpose: Purpose) -> Result<Built, BenchError> {
    let folder = workspace.target.join("bench-afl");
    fs::create_dir_all(&folder).map_err(file("make", &folder))?;
    let (preload, library) = ours(workspace, purpose)?;
    let sqlite = amalgamation(workspace, &folder)?;
    let level = if purpose == Purpose::Measuring { "-O2" } else { "-O1" };
    let object = folder.join(format!("sqlite3-{VERSION}{level}.o"));
    if !object.exists() {
        let mut compiler = program("afl-clang-fast", workspace);
        compiler.env("AFL_QUIET", "1").arg(level).args(FLAGS).arg("-c").arg(sqlite.join("sqlite3.c"));
        process::stream(compiler.arg("-o").arg(&object))?;
    }
    let built =
        Built { plain: folder.join("plain"), reset: folder.join("reset"), preload, scratch: folder.join("campaigns") };
    // The harness is not fuzzed: without edges of its own, both targets number those of SQLite alike.
    let harness = workspace.root.join("bench/afl/sqlite_harness.c");
    let deny = folder.join("not-instrumented");
    fs::write(&deny, "src: *sqlite_harness.c\n").map_err(file("write", &deny))?;
    for (target, extra) in [(&built.plain, None), (&built.reset, Some(&library))] {
        let mut compiler = program("afl-clang-fast", workspace);
        compiler.env("AFL_QUIET", "1").env("AFL_LLVM_DENYLIST", &deny).arg(level).args(FLAGS).arg("-I").arg(&sqlite);
        compiler.arg(&harness).arg(&object);
        if let Some(library) = extra {
            compiler.arg("-DRESET").arg(library).arg("-lgcc_s");
        }
        compiler.args(["-lm", "-lpthread", "-ldl", "-o"]).arg(target);
        process::stream(&mut compiler)?;
    }
    Ok(built)
}

/// Builds the preload object and the library of a target that resets itself, and returns their paths.
fn ours(workspace: &Workspace, purpose: Purpose) -> Result<(PathBuf, PathBuf), StepError> {
    if purpose == Purpose::Comparing {
        process::stream(process::cargo(workspace).args(["test", "--workspace", "--all-features", "--no-run"]))?;
        let debug = workspace.target.join("debug");
        return Ok((debug.join("deps/libpalimpsest_preload.so"), debug.join("examples/libreset.a")));
    }
    for what in [&["--package", "palimpsest-preload"][..], &["--package", "palimpsest-fork", "--example", "reset"]] {
        process::stream(process::cargo(workspace).args(["build", "--release"]).args(what))?;
    }
    let release = workspace.target.join("release");
    Ok((release.join("libpalimpsest_preload.so"), release.join("examples/libreset.a")))
}

/// The folder of `sqlite3.c`, fetched by Cargo through a manifest of its own below `folder`.
fn amalgamation(workspace: &Workspace, folder: &Path) -> Result<PathBuf, BenchError> {
    let package = folder.join("sqlite");
    fs::create_dir_all(&package).map_err(file("make", &package))?;
    let manifest = package.join("Cargo.toml");
    let text = format!(
        "[package]\nname = \"sqlite-source\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[lib]\npath = \"lib.rs\"\n\n\
         [workspace]\n\n[dependencies]\n{PACKAGE} = \"={VERSION}\"\n"
    );
    fs::write(&manifest, text).map_err(file("write", &manifest))?;
    let library = package.join("lib.rs");
    fs::write(&library, "").map_err(file("write", &library))?;
    let mut metadata = process::cargo(workspace);
    let json = process::capture(metadata.args(["metadata", "--format-version=1", "--manifest-path"]).arg(&manifest))?;
    let json: Value =
        serde_json::from_str(&json).map_err(|source| BenchError::Json { what: "cargo metadata", source })?;
    source_of(&json).ok_or_else(|| BenchError::NoSource { package: PACKAGE, found: json["packages"].to_string() })
}

fn source_of(metadata: &Value) -> Option<PathBuf> {
    let package = metadata["packages"].as_array()?.iter().find(|package| package["name"] == PACKAGE)?;
    Some(Path::new(package["manifest_path"].as_str()?).parent()?.join("sqlite3"))
}

fn file(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StepError {
    let path = path.to_owned();
    move |source| StepError::File { action, path, source }
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
}

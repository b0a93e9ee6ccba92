//! Builds the object that `run` puts before the C library, and leaves its bytes where the program includes them.
//!
//! Stable cargo cannot make a `cdylib` a dependency whose file is known, so a second cargo builds it. It has a target
//! folder of its own, since this one is locked, and shares the lock file, the vendored or downloaded sources and the
//! job server. What this build is instrumented with (sanitizers, coverage, LTO, `--cfg loom`) does not reach the object:
//! it stands in other people's processes, and LTO would undo its `--wrap`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// What cargo names it.
const NAME: &str = "libpalimpsest_preload.so";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    // A single package out of a registry has no neighbours, and docs.rs no network to build them with.
    let manifest = fs::canonicalize(package.join("../preload/Cargo.toml"));
    let object = if let Ok(manifest) = manifest
        && env::var_os("DOCS_RS").is_none()
    {
        fs::read(build(&manifest, &out)?)?
    } else {
        println!(
            "cargo::warning=built without the object of `palimpsest run`, whose sources are not here; build from the \
             source tree, or name one in PALIMPSEST_PRELOAD when it runs"
        );
        Vec::new()
    };
    fs::write(out.join(NAME), &object)?;
    // A name for the folder that it is put in; its bytes are compared when it is used.
    let mut hasher = DefaultHasher::new();
    object.hash(&mut hasher);
    println!("cargo::rustc-env=PALIMPSEST_OBJECT_ID={}-{:016x}", variable("CARGO_PKG_VERSION")?, hasher.finish());
    Ok(())
}

fn variable(name: &str) -> Result<String, Box<dyn Error>> {
    env::var(name).map_err(|error| format!("{name}: {error}; is this run by cargo?").into())
}

/// Builds the package at `manifest` as a shared object and returns its path.
fn build(manifest: &Path, out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    // A program that is linked with musl can start programs of glibc, which the object is for.
    let target = variable("TARGET")?.replace("-linux-musl", "-linux-gnu");
    let profile = if variable("PROFILE")? == "release" { "release" } else { "debug" };
    let folder = shared(out);
    let mut cargo = Command::new(variable("CARGO")?);
    cargo.args(["rustc", "--quiet", "--lib", "--crate-type", "cdylib", "--target", &target, "--manifest-path"]);
    cargo.arg(manifest).arg("--target-dir").arg(&folder);
    // What it is built of is what was tested, and nothing that has appeared in the registry since.
    if manifest.ancestors().skip(1).any(|folder| folder.join("Cargo.lock").is_file()) {
        cargo.arg("--locked");
    }
    let section = if profile == "release" {
        cargo.arg("--release");
        "RELEASE"
    } else {
        "DEV"
    };
    // Panics are caught in the object; names stay, for debuggers and profilers.
    for (key, value) in [("PANIC", "unwind"), ("LTO", "off"), ("DEBUG", "0"), ("STRIP", "debuginfo")] {
        cargo.env(format!("CARGO_PROFILE_{section}_{key}"), value);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags()).env("CARGO_INCREMENTAL", "0");
    for name in ["RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        cargo.env_remove(name);
    }
    let output = cargo.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("cannot build {NAME} for {target} ({}):\n{said}", output.status).into());
    }
    let object = folder.join(target).join(profile).join(NAME);
    watch(&object, manifest)?;
    Ok(object)
}

/// The folder of the second cargo: one for all builds of this target folder, whose root has a CACHEDIR.TAG.
fn shared(out: &Path) -> PathBuf {
    let root = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    root.unwrap_or(out).join("preload-object")
}

/// The flags of this build that the object needs too: how to link, and for which CPU.
fn flags() -> OsString {
    const BETWEEN: char = '\u{1f}';
    let given = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut kept: Vec<String> = Vec::new();
    let mut words = given.split(BETWEEN);
    while let Some(word) = words.next() {
        let option = match word {
            "-C" | "--codegen" => words.next().unwrap_or_default(),
            other => other.strip_prefix("-C").unwrap_or_default(),
        };
        let name = option.split('=').next().unwrap_or_default();
        if ["linker", "linker-flavor", "link-arg", "link-args", "target-cpu", "target-feature"].contains(&name) {
            kept.push(format!("-C{option}"));
        }
    }
    kept.join(&BETWEEN.to_string()).into()
}

/// Has cargo run this again when a source of the object changes: those that the second cargo lists, and the versions.
fn watch(object: &Path, manifest: &Path) -> Result<(), Box<dyn Error>> {
    let listed = fs::read_to_string(object.with_extension("d"))?;
    let sources = listed.split_once(": ").map(|(_, sources)| sources).unwrap_or_default();
    // Blanks within a path have a backslash before them.
    for source in sources.trim_end().replace("\\ ", "\0").split(' ') {
        println!("cargo::rerun-if-changed={}", source.replace('\0', " "));
    }
    println!("cargo::rerun-if-changed={}", manifest.display());
    let root = manifest.ancestors().nth(3).unwrap_or(manifest);
    for name in ["Cargo.toml", "Cargo.lock"] {
        let file = root.join(name);
        if file.is_file() {
            println!("cargo::rerun-if-changed={}", file.display());
        }
    }
    Ok(())
}

//! Finds or builds the object that `run` puts before the C library, whose bytes the program includes.
//!
//! The package palimpsest-preload builds it as a `cdylib`. Stable cargo does not tell where that is; but the package is
//! a dependency of this one, so that cargo has built it before the program, and cargo puts no hash into the name of a
//! source tree's `cdylib`: it is `deps/libpalimpsest_preload.so` of this very build.
//!
//! Where that would be the wrong object, a second cargo builds it, with a target folder of its own, since this one is
//! locked. What this build is instrumented with (sanitizers, coverage, `--cfg loom`), and `panic = "abort"`, must not
//! reach the object: it runs in other people's processes, and catches its panics. A program linked with musl starts
//! programs linked with glibc, for which the object is. LTO does not reach a package that is an `rlib` as well; it
//! would undo the object's `--wrap`.

#![forbid(unsafe_code)]

use std::error::Error;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Cargo's name for it.
const NAME: &str = "libpalimpsest_preload.so";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let flags = Flags::of(&env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default());
    // A single package from a registry has no neighbours, and docs.rs has no network to build them with.
    let manifest = fs::canonicalize(package.join("../preload/Cargo.toml"));
    let object = if let Ok(manifest) = manifest
        && env::var_os("DOCS_RS").is_none()
    {
        match of_this_build(&manifest, &out, &flags)? {
            Some(object) => object,
            None => build(&manifest, &out, &flags)?,
        }
    } else {
        println!(
            "cargo::warning=built without the object of `palimpsest run`, whose sources are not here; build from the \
             source tree, or name one in PALIMPSEST_PRELOAD when it runs"
        );
        let none = out.join(NAME);
        fs::write(&none, "")?;
        none
    };
    println!("cargo::rustc-env=PALIMPSEST_OBJECT={}", object.display());
    Ok(())
}

fn variable(name: &str) -> Result<String, Box<dyn Error>> {
    env::var(name).map_err(|error| format!("{name}: {error}; is this run by cargo?").into())
}

/// Returns where this build puts the object, if that is the one to include.
fn of_this_build(manifest: &Path, out: &Path, flags: &Flags) -> Result<Option<PathBuf>, Box<dyn Error>> {
    let is_plain = flags.others == Others::None
        && variable("CARGO_CFG_PANIC")? == "unwind"
        && !variable("TARGET")?.contains("-linux-musl");
    // Packages of a git repository have a hash in their names (cargo's own checkouts are below `git/checkouts`).
    let names: Vec<_> = manifest.components().map(|component| component.as_os_str()).collect();
    let is_checkout = names.windows(2).any(|pair| pair == ["git", "checkouts"]);
    // PROFILE/build/PACKAGE-HASH/out beside PROFILE/deps.
    let deps = out.ancestors().nth(3).map(|profile| profile.join("deps")).filter(|deps| deps.is_dir());
    let Some(object) = deps.filter(|_| is_plain && !is_checkout).map(|deps| deps.join(NAME)) else { return Ok(None) };
    // `cargo check` builds no object, and needs a file to include.
    match File::create_new(&object) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error.into()),
        _ => Ok(Some(object)),
    }
}

/// Builds the package at `manifest` as a shared object and returns its path.
fn build(manifest: &Path, out: &Path, flags: &Flags) -> Result<PathBuf, Box<dyn Error>> {
    let target = variable("TARGET")?.replace("-linux-musl", "-linux-gnu");
    let profile = if variable("PROFILE")? == "release" { "release" } else { "debug" };
    let folder = shared(out);
    let mut cargo = Command::new(variable("CARGO")?);
    cargo.args(["rustc", "--quiet", "--lib", "--crate-type", "cdylib", "--target", &target, "--manifest-path"]);
    cargo.arg(manifest).arg("--target-dir").arg(&folder);
    // Built from what was tested, and nothing that has appeared in the registry since.
    if manifest.ancestors().skip(1).any(|folder| folder.join("Cargo.lock").is_file()) {
        cargo.arg("--locked");
    }
    let section = if profile == "release" {
        cargo.arg("--release");
        "RELEASE"
    } else {
        "DEV"
    };
    // Names are kept, for debuggers and profilers.
    for (key, value) in [("PANIC", "unwind"), ("LTO", "off"), ("DEBUG", "0"), ("STRIP", "debuginfo")] {
        cargo.env(format!("CARGO_PROFILE_{section}_{key}"), value);
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.kept.join(BETWEEN)).env("CARGO_INCREMENTAL", "0");
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

/// Returns the folder of the second cargo: one for all builds of this target folder, whose root has a CACHEDIR.TAG.
fn shared(out: &Path) -> PathBuf {
    let root = out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    root.unwrap_or(out).join("preload-object")
}

/// Separates flags.
const BETWEEN: &str = "\u{1f}";

/// The flags of this build.
struct Flags {
    /// Those that the object needs too: how to link, and for which CPU.
    kept: Vec<String>,
    others: Others,
}

/// Flags that must not reach the object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Others {
    None,
    Some,
}

impl Flags {
    fn of(given: &str) -> Self {
        let mut flags = Self { kept: Vec::new(), others: Others::None };
        let mut words = given.split(BETWEEN).filter(|word| !word.is_empty());
        while let Some(word) = words.next() {
            let option = match word {
                "-C" | "--codegen" => words.next().unwrap_or_default(),
                other => other.strip_prefix("-C").unwrap_or_default(),
            };
            let name = option.split('=').next().unwrap_or_default();
            if ["linker", "linker-flavor", "link-arg", "link-args", "target-cpu", "target-feature"].contains(&name) {
                flags.kept.push(format!("-C{option}"));
            } else {
                flags.others = Others::Some;
            }
        }
        flags
    }
}

/// Makes cargo run this again when a source of the object changes: those that the second cargo lists, and the versions.
fn watch(object: &Path, manifest: &Path) -> Result<(), Box<dyn Error>> {
    let listed = fs::read_to_string(object.with_extension("d"))?;
    let sources = listed.split_once(": ").map(|(_, sources)| sources).unwrap_or_default();
    // Blanks in a path have a backslash before them.
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

//! Runs every fuzz target for a short time, with libFuzzer and AddressSanitizer, as cargo-fuzz would build them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    process,
    step::{Depth, Done, LeftOut, StepError},
    ubpf,
    workspace::Workspace,
};

/// A package in cargo-fuzz's layout: one binary for each target.
const MANIFEST: &str = "fuzz/Cargo.toml";
/// Inputs to begin with; a folder for each target that would need long to find such inputs itself.
const SEEDS: &str = "fuzz/seeds";
/// Folders of other tests whose files are inputs to begin with, too, by the target.
const OTHER_SEEDS: [(&str, &str); 2] =
    [("bpf_dwarf", "crates/bpf/tests/dwarf/golden"), ("bpf_object", "crates/bpf/tests/objects/golden")];
/// The target folder.
pub(super) const FOLDER: &str = "fuzz";
/// Sanitizer flags must not reach build scripts, so the host is named as a target.
const HOST: &str = "x86_64-unknown-linux-gnu";
/// Coverage and sanitizer flags of cargo-fuzz.
const RUSTFLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
    -Ccodegen-units=1 -Cdebug-assertions --cfg fuzzing \
    -Zsanitizer=address -Cunsafe-allow-abi-mismatch=sanitizer";
/// The level of optimisation if targets run for so short a time that the compiler is what takes long.
const SHORT_LEVEL: &str = "0";
/// Time for one target: enough to read every seed and to find what breaks a parser close to them.
const SECONDS: u64 = 1;
/// How much longer a target may take: it ends a hang.
const HANG: Duration = Duration::from_secs(900);
/// Time for one target in an exhaustive run.
const EXHAUSTIVE_SECONDS: u64 = 60;

pub(super) const LEFT_OUT: &[LeftOut] = &[
    LeftOut {
        what: "59 of 60 s for each target",
        reason: "each seed is played in any case, and random ones close to them; more is a campaign's work",
    },
    LeftOut { what: "uBPF in bpf_run", reason: "it is built from C, with bindings made by libclang" },
];

pub(super) fn fuzz(workspace: &Workspace, depth: Depth) -> Result<Done, StepError> {
    let seconds = if depth == Depth::Exhaustive { EXHAUSTIVE_SECONDS } else { SECONDS };
    let manifest = workspace.root.join(MANIFEST);
    if !manifest.is_file() {
        return Ok(Done::Skipped(format!("there is no {MANIFEST}")));
    }
    let mut metadata = process::nightly_cargo(workspace);
    metadata.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(&manifest);
    let targets = binaries(&process::capture(&mut metadata)?, &manifest)?;
    let folder = workspace.separate_target(FOLDER);
    let mut build = process::nightly_cargo(workspace);
    build.args(["build", "--release", "--target", HOST, "--manifest-path"]).arg(&manifest);
    build.env("RUSTFLAGS", RUSTFLAGS);
    if depth == Depth::Short {
        build.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", SHORT_LEVEL);
    } else if ubpf::missing(workspace).is_none() {
        ubpf::optimised(build.args(["--features", "ubpf"]), workspace);
    }
    process::stream(process::apart(&mut build, workspace, FOLDER))?;
    let mut failed = Vec::new();
    for target in &targets {
        let mut run = process::program(folder.join(HOST).join("release").join(target), workspace);
        let seeds = seeds(&workspace.root, target);
        if !seeds.is_empty() {
            // libFuzzer writes what it finds to the first folder.
            let found = folder.join("found").join(target);
            std::fs::create_dir_all(&found).map_err(|source| StepError::File {
                action: "create",
                path: found.clone(),
                source,
            })?;
            run.arg(found).args(seeds);
        }
        run.arg("-verbosity=0")
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/{target}-", folder.display()));
        if depth == Depth::Exhaustive {
            // Of two tables in uBPF's code that are alike the linker makes one, which AddressSanitizer takes for two
            // of a name.
            run.env("ASAN_OPTIONS", "detect_odr_violation=0");
        }
        if depth == Depth::Short {
            // Whoever sees it fail can see it again.
            run.arg("-seed=1");
        }
        // On a busy machine, reading the seeds may take any time.
        if let Err(error) = process::stream_within(&mut run, HANG + Duration::from_secs(6 * seconds)) {
            failed.push(error.to_string());
        }
    }
    if failed.is_empty() {
        Ok(Done::PassedWith(format!("{} targets, {seconds} s each", targets.len())))
    } else {
        Err(StepError::Programs { failed, total: targets.len() })
    }
}

/// Returns the folders of inputs that `target` begins with.
fn seeds(root: &Path, target: &str) -> Vec<PathBuf> {
    let others = OTHER_SEEDS.iter().filter(|(of, _)| *of == target).map(|(_, folder)| root.join(folder));
    [root.join(SEEDS).join(target)].into_iter().chain(others).filter(|folder| folder.is_dir()).collect()
}

/// Returns the binaries of the package at `manifest`, from cargo's metadata.
fn binaries(metadata: &str, manifest: &Path) -> Result<Vec<String>, StepError> {
    let unexpected = || StepError::CargoOutput { found: metadata.chars().take(200).collect() };
    let metadata: serde_json::Value = serde_json::from_str(metadata).map_err(|_| unexpected())?;
    let packages = metadata["packages"].as_array().ok_or_else(unexpected)?;
    let package = packages.iter().find(|package| package["manifest_path"].as_str().map(Path::new) == Some(manifest));
    let targets = package.and_then(|package| package["targets"].as_array()).ok_or_else(unexpected)?;
    let binaries = targets
        .iter()
        .filter(|target| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "bin")));
    Ok(binaries.filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_tests_are_seeds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder of the workspace");
        assert_eq!(seeds(root, "maps"), [root.join("fuzz/seeds/maps")]);
        assert!(seeds(root, "layout").is_empty());
        for (target, folder) in OTHER_SEEDS {
            assert_eq!(seeds(root, target), [root.join(folder)], "{target}");
        }
    }

    #[test]
    fn the_binaries_of_the_package_are_the_targets() {
        let metadata = r#"{"packages":[
            {"manifest_path":"/a/Cargo.toml","targets":[{"kind":["bin"],"name":"other"}]},
            {"manifest_path":"/fuzz/Cargo.toml",
             "targets":[{"kind":["bin"],"name":"packs"},{"kind":["lib"],"name":"shared"}]}]}"#;
        assert_eq!(binaries(metadata, Path::new("/fuzz/Cargo.toml")).expect("valid metadata"), ["packs"]);
        assert!(binaries("{}", Path::new("/fuzz/Cargo.toml")).is_err());
    }
}

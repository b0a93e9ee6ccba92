//! The step `crates`, which checks that each crate that can be published is complete; and `cargo xtask release-check`,
//! which also asks for what only the publisher knows.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    process,
    step::{Done, StepError},
    workspace::Workspace,
};

/// Files that a package must contain besides its sources.
const FILES: [&str; 4] = ["README.md", "LICENSE-APACHE", "LICENSE-MIT", "Cargo.toml"];
/// Names in the registry that belong to others.
const TAKEN: [&str; 2] = ["palimpsest", "palimpsest-cli"];

/// Why crates are checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To work on them.
    Work,
    /// To publish them now.
    Release,
}

pub(crate) fn step(workspace: &Workspace) -> Result<Done, StepError> {
    let (count, undecided) = check(workspace, Purpose::Work)?;
    let remark = if undecided == 0 { "" } else { "; not to be published yet: no repository" };
    Ok(Done::PassedWith(format!("{count} crates{remark}")))
}

/// Checks what [`step`] does, and that every crate names its repository; returns the number of crates.
pub(crate) fn release(workspace: &Workspace) -> Result<usize, StepError> {
    check(workspace, Purpose::Release).map(|(count, _)| count)
}

/// Returns how many crates there are, and how many of them do not name their repository.
fn check(workspace: &Workspace, purpose: Purpose) -> Result<(usize, usize), StepError> {
    let mut cargo = process::cargo(workspace);
    let metadata = process::capture(cargo.args(["metadata", "--format-version", "1", "--no-deps"]))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|_| StepError::CargoOutput { found: metadata })?;
    let all = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    // `publish = false` is an empty list of registries.
    let published = all.iter().filter(|package| package["publish"].as_array().is_none_or(|list| !list.is_empty()));
    let (mut count, mut undecided, mut lacking) = (0, Vec::new(), Vec::new());
    for package in published {
        count += 1;
        lacking.extend(lacks(package));
        let name = package["name"].as_str().unwrap_or_default();
        if package["repository"].as_str().is_none_or(str::is_empty) {
            undecided.push(format!("{name}: no repository (CONTRIBUTING.md, \"To publish\")"));
        }
        let mut list = process::cargo(workspace);
        list.args(["package", "--list", "--quiet", "--allow-dirty", "--package", name]);
        let files = process::capture(&mut list)?;
        let has = |wanted: &str| files.lines().any(|file| file == wanted);
        lacking.extend(FILES.into_iter().filter(|file| !has(file)).map(|file| format!("{name}: no {file}")));
        let folder = Path::new(package["manifest_path"].as_str().unwrap_or_default()).parent();
        for file in files.lines().filter(|file| file.ends_with(".rs")) {
            let text = folder.and_then(|folder| fs::read_to_string(folder.join(file)).ok()).unwrap_or_default();
            lacking.extend(strays(file, &text).map(|stray| format!("{name}: {file} includes {stray}")));
        }
    }
    // None is a decision that is still open; some is a mistake.
    if purpose == Purpose::Release || undecided.len() < count {
        lacking.append(&mut undecided);
    }
    if lacking.is_empty() {
        return Ok((count, undecided.len()));
    }
    lacking.iter().for_each(|line| println!("{line}"));
    Err(StepError::Crates { lacking: lacking.len() })
}

/// Returns what the manifest of a package lacks.
fn lacks(package: &Value) -> Vec<String> {
    let name = package["name"].as_str().unwrap_or_default();
    let mut lacks = Vec::new();
    for key in ["description", "license", "readme", "rust_version"] {
        if package[key].as_str().is_none_or(str::is_empty) {
            lacks.push(format!("{name}: no {key}"));
        }
    }
    for key in ["keywords", "categories", "authors"] {
        if package[key].as_array().is_none_or(Vec::is_empty) {
            lacks.push(format!("{name}: no {key}"));
        }
    }
    if package["metadata"]["docs"]["rs"].is_null() {
        lacks.push(format!("{name}: no [package.metadata.docs.rs]"));
    }
    if TAKEN.contains(&name) {
        lacks.push(format!("{name}: the name is another's in the registry"));
    }
    lacks
}

/// Returns what a source file includes from outside its package: paths with more steps up than the file is deep.
fn strays<'a>(file: &'a str, text: &'a str) -> impl Iterator<Item = &'a str> {
    let depth = file.matches('/').count();
    let paths = ["include_str!(\"", "include_bytes!(\"", "include!(\"", "#[path = \""];
    let included = paths.into_iter().flat_map(move |call| text.split(call).skip(1));
    included.filter_map(|rest| rest.split('"').next()).filter(move |path| path.matches("../").count() > depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_from_outside_the_package_is_found() {
        let text = "#[doc = include_str!(\"../docs/a.md\")]\ninclude_bytes!(\"../../b\"); include_str!(\"c\")";
        assert_eq!(strays("src/lib.rs", text).collect::<Vec<_>>(), ["../../b"]);
        assert_eq!(strays("src/a/b.rs", text).count(), 0);
    }

    #[test]
    fn an_empty_manifest_lacks_everything() {
        let bare = serde_json::json!({ "name": "palimpsest", "keywords": [] });
        let lacks = lacks(&bare);
        for what in ["description", "readme", "keywords", "docs.rs", "another's"] {
            assert!(lacks.iter().any(|line| line.contains(what)), "{what}: {lacks:?}");
        }
    }
}

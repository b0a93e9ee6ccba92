//! Every example runs and ends well.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the names of the examples in the manifest; cargo has built them beside these tests.
fn names() -> Vec<String> {
    let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).expect("the manifest");
    let sections = manifest.split("[[example]]").skip(1);
    let name = |section: &str| section.split('"').nth(1).map(str::to_owned);
    sections.filter_map(name).collect()
}

#[test]
fn every_example_runs() {
    let own = std::env::current_exe().expect("a test has a path");
    let folder = own.parent().and_then(Path::parent).expect("below the target folder").join("examples");
    let names = names();
    assert!(names.len() >= 16, "{names:?}");
    for name in names {
        let mut command = Command::new(folder.join(&name));
        let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{name}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name}: {}: {said}", output.status);
        println!("--- {name}\n{}", String::from_utf8_lossy(&output.stdout));
    }
}

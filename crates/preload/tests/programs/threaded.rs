//! Node and Go: runtimes with threads, which are refused or served correctly, and must not change.

use std::path::Path;
use std::process::Command;

use crate::support::{self, Mode};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");

/// Node starts programs and has no fork.
#[test]
fn node_is_left_alone() {
    let node = support::need!("nodejs", "node");
    let run = |mode| {
        let folder = tempfile::tempdir().expect("a folder");
        let output = support::output(support::command(&node, mode, &folder, None).arg(format!("{SOURCES}/spawn.js")));
        (output, support::report(&folder))
    };
    let (plain, _) = run(Mode::Plain);
    let (frozen, report) = run(Mode::Frozen("refuse"));
    assert_eq!(plain, frozen);
    assert!(!report.contains("froze process"), "a process with threads was frozen:\n{report}");
}

#[test]
fn go_is_refused_or_right() {
    let go = support::need!("golang-go", "go");
    let _: std::path::PathBuf = support::need!("gcc", "cc", "gcc");
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("threads");
    let mut build = Command::new(go);
    // Nothing is fetched: the program uses only the standard library.
    build.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1");
    build.env_remove("LD_PRELOAD").current_dir(&folder).arg("build").arg("-o").arg(&program);
    let build = build.arg(Path::new(SOURCES).join("threads.go")).output().expect("go starts");
    if !build.status.success() {
        println!("skipped: go cannot build with cgo: {}", String::from_utf8_lossy(&build.stderr));
        return;
    }
    let run = |threads: &Mode| support::output(&mut support::command(&program, *threads, &folder, None));
    let plain = run(&Mode::Plain);
    for threads in ["refuse", "stop"] {
        assert_eq!(plain, run(&Mode::Frozen(threads)), "with other threads: {threads}\n{}", support::report(&folder));
    }
}

//! `palimpsest tour`, as its users see it, and what has to be built for it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::process::{Command, Output};

fn tour(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    command.args(["tour", "--check"]).args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output(command: &mut Command) -> Output {
    let output = command.output().expect("the program was built");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    output
}

#[test]
fn every_part_is_shown_and_recorded_or_left_out_with_a_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (json, html) = (folder.path().join("t.json"), folder.path().join("t.html"));
    let (json_text, html_text) = (json.display().to_string(), html.display().to_string());
    let shown = text(&output(&mut tour(&["--json", &json_text, "--html", &html_text])).stdout);
    assert!(shown.starts_with("palimpsest tour: 7 things"), "{shown}");
    for part in 1..=7 {
        assert_eq!(shown.lines().filter(|line| line.starts_with(&format!("{part}  "))).count(), 1, "{part}: {shown}");
    }
    let record = std::fs::read_to_string(json).expect("the record was written");
    let record: serde_json::Value = serde_json::from_str(&record).expect("it is JSON");
    assert_eq!(record["version"], 1);
    let ids = |list: &str| -> Vec<String> {
        let list = record[list].as_array().expect("a list");
        list.iter().map(|entry| entry["id"].as_str().expect("an id").to_owned()).collect()
    };
    let (measured, skipped) = (ids("results"), ids("skipped"));
    for id in
        ["fork.512m", "python.fork.140m", "reset.16", "keys.toggle.56", "pack.call.5000", "bpf.hook", "paging.fork.1g"]
    {
        let told = measured.iter().chain(&skipped).filter(|of| of.starts_with(id)).count();
        assert!(told > 0, "{id}: {measured:?} {skipped:?}");
    }
    let page = std::fs::read_to_string(html).expect("the page was written");
    assert!(measured.iter().all(|id| page.contains(id)));
    assert!(!page.contains("http"), "it needs nothing else");
}

#[test]
fn python_is_frozen_before_its_forks_are_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let report = folder.path().join("report");
    let output = output(tour(&["--json", "-"]).env("PALIMPSEST_REPORT", &report));
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    let skipped = record["skipped"].as_array().expect("a list").iter().find_map(|skip| {
        skip["id"].as_str().is_some_and(|id| id.starts_with("python")).then(|| skip["reason"].to_string())
    });
    if let Some(reason) = skipped {
        return println!("skipped: {reason}");
    }
    // There were two forks; in slices it takes some forty.
    let told = std::fs::read_to_string(&report).unwrap_or_default();
    assert!(told.contains("froze process") && told.contains("(python3)"), "{told}");
}

#[test]
fn a_part_that_cannot_run_says_why_and_the_others_go_on() {
    let shown = text(&output(tour(&[]).env("PALIMPSEST_PRELOAD", "/nonexistent.so")).stdout);
    let python = shown.split("\n2  ").nth(1).and_then(|rest| rest.split("\n3  ").next()).expect("part 2 and 3");
    assert!(python.contains("left out: "), "{shown}");
    // If there is no python3, that is the reason.
    assert!(python.contains("/nonexistent.so") || python.contains("there is no "), "{python}");
    assert!(shown.contains("Next: "), "{shown}");
}

#[test]
fn a_record_on_standard_output_stands_there_alone() {
    let output = output(&mut tour(&["--json", "-"]));
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!(record["version"], 1);
}

/// Names of the crates that `cargo run --release` compiles, including the object inside the program; `None` without
/// cargo.
fn crates() -> Option<BTreeSet<String>> {
    let mut cargo = Command::new(option_env!("CARGO").unwrap_or("cargo"));
    cargo.args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--format", "{p}"]);
    cargo.args(["--package", env!("CARGO_PKG_NAME"), "--package", "palimpsest-preload"]);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().ok()?;
    assert!(output.status.success(), "{}", text(&output.stderr));
    let listed = text(&output.stdout);
    let names = listed.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty());
    Some(names.map(str::to_owned).collect())
}

#[test]
fn the_first_build_has_sixty_crates_at_most_and_no_compiler() {
    let Some(crates) = crates() else {
        println!("skipped: there is no cargo here");
        return;
    };
    assert!(crates.contains(env!("CARGO_PKG_NAME")) && crates.contains("palimpsest-preload"), "{crates:?}");
    assert!(crates.len() <= 60, "{} crates: {crates:?}", crates.len());
    let heavy = crates.iter().find(|name| name.starts_with("cranelift") || *name == "xtask");
    assert_eq!(heavy, None);
}

//! The exit codes and streams of `palimpsest bench`, as other programs see them.
#![forbid(unsafe_code)]

use std::process::{Command, Output};

fn palimpsest(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_palimpsest")).args(arguments).output().expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn listing_prints_ids_and_succeeds() {
    let output = palimpsest(&["bench", "--list"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("pack.call.20000.packed"));
    assert!(output.stderr.is_empty());
}

#[test]
fn suites_of_other_programs_are_listed_and_say_that_they_have_to_be_named() {
    let output = text(&palimpsest(&["bench", "--list"]).stdout);
    for suite in ["afl", "redis", "python", "mix", "programs"] {
        let line = output.lines().find(|line| line.starts_with(&format!("{suite}: "))).expect("it is listed");
        assert!(line.ends_with("(only if it is named)"), "{line}");
    }
    for id in [
        "afl.sqlite.512m.frozen",
        "redis.fork.set100k.thp",
        "fork.mix.20.p999.frozen",
        "fork.programs.make.plain",
        "fork.programs.afl.frozen",
    ] {
        assert!(output.contains(id), "{id}");
    }
}

/// Fails on: a line about something else that ends the program when it cannot be written.
#[test]
fn a_standard_error_that_is_full_changes_no_exit_code() {
    let code = |arguments: &[&str]| {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device of Linux");
        let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        command.args(arguments).stderr(full).output().expect("the program was built").status.code()
    };
    assert_eq!(code(&["run", "no-such-program"]), Some(127));
    assert_eq!(code(&["run", "/"]), Some(126));
    assert_eq!(code(&["bench", "nosuch"]), Some(2));
    assert_eq!(code(&["run", "--local-text", "--", "true"]), Some(0));
}

/// Returns the root of the source tree; a guest has none.
fn tree() -> Option<&'static str> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    if std::path::Path::new(root).join("docs/records").is_dir() {
        return Some(root);
    }
    println!("skipped: the source tree is not here");
    None
}

#[test]
fn the_records_of_the_book_are_read_and_shown() {
    let Some(root) = tree() else { return };
    let records = format!("{root}/docs/records/2026-11-20-epyc-2cpu");
    let mut arguments = vec!["bench".to_owned(), "--csv".to_owned(), "-".to_owned()];
    for record in std::fs::read_dir(records).expect("they are in the tree") {
        let path = record.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "json") {
            arguments.extend(["--from".to_owned(), path.display().to_string()]);
        }
    }
    assert_eq!(arguments.len(), 3 + 2 * 9);
    let output = palimpsest(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    for id in ["pack.call.20000.packed", "keys.toggle.56.batched.t1", "afl.sqlite.512m.frozen", "redis.fork.idle.thp"] {
        assert!(lines.lines().any(|line| line.starts_with(&format!("{id},"))), "{id} is missing");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let other = folder.path().join("other.json");
    std::fs::write(&other, "{}").expect("it is written");
    let output = palimpsest(&["bench", "--from", &other.display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("other.json is no record"), "{}", text(&output.stderr));
}

#[test]
fn the_picture_of_the_readme_is_that_of_the_records() {
    let Some(root) = tree() else { return };
    let records = ["pack", "keys", "fork", "fork4g", "paging"]
        .map(|name| format!("{root}/docs/records/2026-11-20-epyc-2cpu/{name}.json"));
    let mut arguments = vec!["bench", "--svg", "-"];
    records.iter().for_each(|record| arguments.extend(["--from", record]));
    let picture = text(&palimpsest(&arguments).stdout);
    assert_eq!(picture.matches("class=\"caption\"").count(), 4, "{picture}");
    assert!(!picture.contains("NaN"));
    let kept = std::fs::read_to_string(format!("{root}/docs/figures.svg")).unwrap_or_default();
    let way = "for f in pack keys fork fork4g paging; do echo --from docs/records/2026-11-20-epyc-2cpu/$f.json; done | \
               xargs cargo run -q -- bench --svg docs/figures.svg";
    assert!(picture == kept, "docs/figures.svg is not what the records say: {way}");
}

#[test]
fn unknown_suites_flags_and_empty_selections_are_usage_errors() {
    for arguments in [
        &["bench", "nosuch"][..],
        &["bench", "--list", "nosuch"],
        &["bench", "--nosuch"],
        &["bench", "--filter", "nosuch"],
        &["bench", "pack", "--json", "-", "--csv", "-"],
        &["nosuch"],
    ] {
        let output = palimpsest(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure_before_anything_is_measured() {
    for flag in ["--json", "--html", "--svg", "--markdown", "--csv"] {
        let output = palimpsest(&["bench", "--quick", flag, "/nonexistent/file"]);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("/nonexistent/file"));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn json_and_html_hold_what_was_measured() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (json, html) = (folder.path().join("a.json"), folder.path().join("a.html"));
    let (json_text, html_text) = (json.display().to_string(), html.display().to_string());
    let output =
        palimpsest(&["bench", "pack", "--quick", "--filter", "mappings", "--json", &json_text, "--html", &html_text]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let record = std::fs::read_to_string(json).expect("the record was written");
    let record: serde_json::Value = serde_json::from_str(&record).expect("it is JSON");
    assert_eq!(record["version"], 1);
    assert!(record["machine"]["kernel"].is_string());
    let results = record["results"].as_array().expect("a list");
    let ours =
        results.iter().find(|entry| entry["id"] == "pack.mappings_per_program.packed").expect("ours was measured");
    assert_eq!(ours["unit"], "mappings");
    assert_eq!(ours["baseline"], "pack.mappings_per_program.page_each");
    assert!(ours["backing"].is_string());
    let page = std::fs::read_to_string(html).expect("the page was written");
    assert!(page.contains("pack.mappings_per_program.packed"));
    // A build without the peers says which are missing and how to get them.
    if !cfg!(feature = "peers") {
        let table = text(&output.stdout);
        assert!(table.contains("pack.mappings_per_program.jit_allocator"), "{table}");
        assert!(table.contains("--features peers"), "{table}");
    }
}

#[test]
fn json_on_standard_output_is_json_alone() {
    let output = palimpsest(&["bench", "pack", "numa", "--quick", "--filter", "mappings", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("nothing but JSON");
    assert_eq!(record["version"], 1);
}

#[test]
fn an_engine_in_a_process_of_its_own_is_measured_beside_the_others() {
    let figures = ["bpf.load.20", "bpf.call.trivial", "bpf.roundrobin.1000"];
    for group in figures {
        let output = palimpsest(&["bench", "bpf", "--check", "--filter", group, "--json", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let record: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let apart = |list: &str| {
            let entries = record[list].as_array().into_iter().flatten();
            entries.filter(|entry| entry["id"] == format!("{group}.async_ebpf")).count()
        };
        let expected = if cfg!(feature = "peers") { (1, 0) } else { (0, 1) };
        assert_eq!((apart("results"), apart("skipped")), expected, "{group}: {record}");
    }
}

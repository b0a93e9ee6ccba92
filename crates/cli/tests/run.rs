//! `palimpsest run`, as its users see it.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The object, which Cargo has built beside this test.
fn object() -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    let mut found = own.ancestors().skip(1).take(2).map(|folder| folder.join("libpalimpsest_preload.so"));
    found.find(|path| path.is_file()).expect("a dependency of the tests")
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    command.arg("run").env("PALIMPSEST_PRELOAD", object()).env_remove("LD_PRELOAD");
    command
}

fn run(arguments: &[&str]) -> Output {
    command().args(arguments).output().expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_runs_with_its_arguments_and_its_status_is_passed_on() {
    let output = run(&["--freeze", "--", "sh", "-c", "echo \"$0 $1\"; (exit 3); exit $?", "zero", "one two"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "zero one two\n".to_owned()));
    assert_eq!(text(&output.stderr), "");
    let killed = run(&["--freeze", "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), None);
}

#[test]
fn a_report_tells_of_the_fork() {
    let output = run(&["--freeze", "--at", "fork", "--report", "--", "sh", "-c", "(exit 3); echo here"]);
    assert_eq!(text(&output.stdout), "here\n");
    assert!(text(&output.stderr).starts_with("palimpsest: froze process "), "{}", text(&output.stderr));
    let output = run(&["--freeze", "--at", "fork", "--dry-run", "--", "sh", "-c", "(exit 3); echo here"]);
    assert!(text(&output.stderr).starts_with("palimpsest: would freeze process "), "{}", text(&output.stderr));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report");
    let output = run(&["--freeze", &format!("--report={}", file.display()), "--at", "fork:2", "sh", "-c", "(:); (:)"]);
    assert_eq!(text(&output.stderr), "");
    assert!(fs::read_to_string(file).expect("it was written").starts_with("palimpsest: froze process "));
}

#[test]
fn what_is_preloaded_already_stays_behind_the_object() {
    let output = command()
        .env("LD_PRELOAD", "libm.so.6")
        .args(["--freeze", "sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .expect("the program was built");
    assert_eq!(text(&output.stdout), format!("{}:libm.so.6\n", object().display()));
}

#[test]
fn programs_that_cannot_be_served_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let write = |name: &str, content: &[u8], mode: u32| {
        fs::write(at(name), content).expect("it can be written");
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let mut shell = fs::read("/bin/sh").expect("there is a shell");
    // No program headers (`e_phnum`): no dynamic linker.
    shell[56..58].fill(0);
    write("static", &shell, 0o755);
    // `e_machine`: RISC-V.
    shell[18] = 243;
    write("foreign", &shell, 0o755);
    write("script", format!("#!{}\n", at("static")).as_bytes(), 0o755);
    write("text", b"hello\n", 0o755);
    write("plain", b"hello\n", 0o644);
    for (name, code, reason) in [
        (at("static"), 125, "statically linked"),
        (at("foreign"), 125, "another architecture"),
        (at("script"), 125, "statically linked"),
        (at("text"), 125, "neither an ELF program nor a script"),
        (at("plain"), 126, "not executable"),
        (at("missing"), 127, "not found"),
        ("no-such-program-anywhere".to_owned(), 127, "not found"),
    ] {
        let output = run(&["--freeze", "--", &name]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{name}: {error}");
        assert!(error.starts_with("palimpsest: ") && error.contains(reason), "{name}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn a_missing_object_and_wrong_lines_are_errors() {
    let missing = |path: &Path| {
        let mut command = command();
        command.env("PALIMPSEST_PRELOAD", path).args(["--freeze", "true"]);
        command.output().expect("the program was built")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let output = missing(&folder.path().join("none.so"));
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("PALIMPSEST_PRELOAD"), "{}", text(&output.stderr));
    let blank = folder.path().join("with blank.so");
    fs::write(&blank, "").expect("it can be written");
    let output = missing(&blank);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("a colon or a blank"), "{}", text(&output.stderr));
    for line in [&["true"][..], &["--freeze"], &["--freeze", "--at", "noon", "true"], &["--freeze", "--nosuch", "true"]]
    {
        assert_eq!(run(line).status.code(), Some(2), "{line:?}");
    }
}

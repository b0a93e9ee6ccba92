//! `palimpsest run --local-text` of programs into which nothing can be loaded: static ones, those of another C library,
//! and those of Go. Their text is in huge pages of their own file.
#![forbid(unsafe_code)]

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Attempts at what the kernel may undo at once while it lacks memory.
const ATTEMPTS: usize = 50;

fn run(arguments: &[&str], program: &[&str]) -> Output {
    command(arguments, program).output().expect("it was built")
}

fn command(arguments: &[&str], program: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    for variable in ["LD_PRELOAD", "PALIMPSEST_PRELOAD", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command.args([&["run", "--local-text"], arguments, &["--"], program].concat());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Compiles the program with much text; `None` if that cannot be done here.
fn compile(compiler: &str, flags: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/local_text/big.c");
    // Each test's own: huge pages stay with the file.
    let program = tempfile::Builder::new().prefix("big").tempfile_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let (_, path) = program.keep().expect("it stays");
    match Command::new(compiler).args(["-O1", "-w", "-o"]).arg(&path).arg(source).args(flags).output() {
        Ok(output) if output.status.success() => return Some(path),
        Ok(output) => println!("skipped: {compiler} cannot build it: {}", text(&output.stderr)),
        Err(error) => println!("skipped: no {compiler} (Debian packages gcc, musl-tools): {error}"),
    }
    fs::remove_file(path).expect("this test's own");
    None
}

/// Returns the first number of a line.
fn number(line: &str) -> u64 {
    line.split(' ').find_map(|word| word.parse().ok()).unwrap_or_else(|| panic!("a number in {line:?}"))
}

/// Returns how much of the text of a copy of `built` the kernel maps by huge pages when the copy itself asks, in KiB.
fn judged(built: &Path, folder: &Path) -> u64 {
    let judge = folder.join("judge");
    copy(built, &judge);
    let ran = Command::new(&judge).arg("collapse").output().expect("it runs");
    fs::remove_file(&judge).expect("this test's own");
    println!("a program that asks the kernel itself: {}{}", text(&ran.stdout), text(&ran.stderr));
    number(&text(&ran.stdout))
}

/// Copies a program by another process: while this one has it open for writing, a child that another test's thread has
/// just forked does, too, and nobody may execute it.
fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").args([from, to]).status().expect("cp").success(), "copied");
}

/// Runs such a program from a file in memory, where kernels from 6.1 on make huge pages when they are asked to. Whether
/// this one does is not for `run` to tell: a copy of the program asks, too.
///
/// Fails on: a `run` that asks the kernel for nothing.
fn from_huge_pages(compiler: &str, flags: &[&str], why: &str) {
    let Some(built) = compile(compiler, flags) else { return };
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return println!("skipped: no folder in memory") };
    let program = folder.path().join("program");
    let path = program.to_str().expect("UTF-8");
    let (mut last, mut refused) = (None, None);
    for _ in 0..ATTEMPTS {
        // Another file each time, that no other process has in huge pages.
        let _ = fs::remove_file(&program);
        copy(&built, &program);
        let plain = match Command::new(&program).output() {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                println!("skipped: nothing in /dev/shm may be executed: {error}");
                break;
            }
            ran => text(&ran.expect("it runs").stdout),
        };
        if number(&plain) > 0 {
            println!("skipped: files in memory are in huge pages without being asked for (shmem_enabled)");
            break;
        }
        assert_eq!(plain, "0 KiB in huge pages, 1 arguments, right\n");
        let ran = run(&["--no-freeze", "--report"], &[path, "a", "b"]);
        let (said, told) = (text(&ran.stdout), text(&ran.stderr));
        assert!(said.ends_with("3 arguments, right\n") && ran.status.code() == Some(3), "{said}{told}");
        assert!(told.starts_with("palimpsest: ") && told.lines().count() == 1 && told.contains(why), "{told}");
        if number(&said) == 0 {
            refused = Some(told);
            if judged(&built, folder.path()) == 0 {
                println!("skipped: the kernel makes no huge pages of files in memory");
                refused = None;
                break;
            }
            continue;
        }
        // The text has three whole huge pages wherever it begins, and `run` has said how much.
        assert!(number(&said) >= 3 * 2048 && told.contains(" KiB of the text of "), "{said}{told}");
        // Nothing is loaded, and whoever executes it now has the same.
        let next = text(&Command::new(&program).output().expect("it runs").stdout);
        last = Some((number(&said), number(&next)));
        if number(&next) > 0 {
            break;
        }
    }
    fs::remove_file(built).expect("this test's own");
    match (last, refused) {
        (Some((here, next)), _) => assert_eq!(here, next, "the next process, without Palimpsest"),
        (None, Some(told)) => panic!("a program that asks the kernel itself gets huge pages: {told}"),
        (None, None) => {}
    }
}

#[test]
fn a_static_program_runs_from_huge_pages_of_its_file() {
    from_huge_pages("cc", &["-static", "-no-pie"], "statically linked");
}

#[test]
fn a_program_of_musl_runs_from_huge_pages_of_its_file() {
    from_huge_pages("musl-gcc", &["-no-pie"], "not that of glibc");
}

#[test]
fn a_program_of_go_runs_as_before_and_its_text_is_told() {
    // The tool itself is such a program: static, with 6 MiB of text at the place that the file has it.
    let Ok(plain) = Command::new("go").arg("version").output() else {
        return println!("skipped: no go (Debian package golang-go)");
    };
    let ran = run(&["--no-freeze", "--report"], &["go", "version"]);
    assert_eq!((text(&ran.stdout), ran.status), (text(&plain.stdout), plain.status), "{}", text(&ran.stderr));
    let told = text(&ran.stderr);
    assert!(told.lines().count() == 1 && told.contains("statically linked"), "{told}");
}

/// Position-independent and static: the kernel chooses its place. It runs, and what is told is one line.
#[test]
fn a_static_position_independent_program_runs() {
    let Some(built) = compile("cc", &["-static-pie"]) else { return };
    let ran = run(&["--no-freeze", "--report"], &[built.to_str().expect("UTF-8")]);
    fs::remove_file(&built).expect("this test's own");
    let (said, told) = (text(&ran.stdout), text(&ran.stderr));
    assert!(said.ends_with("1 arguments, right\n") && told.lines().count() == 1, "{said}{told}");
}

#[test]
fn whoever_asks_for_what_needs_the_object_is_refused() {
    let Some(built) = compile("cc", &["-static", "-no-pie"]) else { return };
    let path = built.to_str().expect("UTF-8");
    // Whoever is told nothing there would wait for it in vain.
    let report = &["--no-freeze", "--report=/nonexistent/report"][..];
    for flags in
        [&[][..], &["--no-freeze", "--copies"], &["--no-freeze", "--heirs"], &["--no-freeze", "--shared"], report]
    {
        let ran = run(flags, &[path]);
        let told = text(&ran.stderr);
        assert!(ran.status.code() == Some(125) && told.contains("statically linked"), "{flags:?}: {told}");
        assert_eq!(text(&ran.stdout), "", "{flags:?}");
    }
    fs::remove_file(built).expect("this test's own");
}

/// Fails on: a machine with one node that is not told; more than one line of it, for a shell and what it executes.
#[test]
fn a_machine_with_one_node_is_told_once() {
    let ran = run(&["--no-freeze", "--heirs"], &["sh", "-c", "sh -c :; exec true"]);
    let told = text(&ran.stderr);
    if !palimpsest_numa::Topology::read().is_one_node() {
        return assert_eq!((told.as_str(), ran.status.code()), ("", Some(0)));
    }
    let is_one = ["palimpsest: this machine has one node: ", "palimpsest: this machine is taken for one node: "];
    let is_told = is_one.iter().any(|is_one| told.starts_with(is_one)) && told.lines().count() == 1;
    assert!(is_told && ran.status.code() == Some(0), "{told}");
    assert_eq!(text(&run(&["--no-freeze", "--quiet"], &["true"]).stderr), "");
    let reported = text(&run(&["--no-freeze", "--report"], &["true"]).stderr);
    let is_one =
        reported.contains(" KiB of text on node 0, the only one") || reported.contains("taken for the only one");
    assert!(is_one && reported.lines().count() == 1, "{reported}");
}

/// Fails on: a report that is asked for elsewhere than on standard error, and comes nowhere.
#[test]
fn a_report_goes_to_the_file_that_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("r.txt");
    let ran = run(&["--no-freeze", &format!("--report={}", report.display())], &["true"]);
    assert_eq!((text(&ran.stderr).as_str(), ran.status.code()), ("", Some(0)));
    let told = fs::read_to_string(report).expect("it was made");
    assert!(told.starts_with("palimpsest: ") && told.contains(" KiB of text on node "), "{told}");
}

/// Fails on: a node that this machine does not have, and nobody says so.
#[test]
fn a_node_that_is_absent_is_refused_by_its_number() {
    if matches!(palimpsest_numa::Topology::read().basis(), palimpsest_numa::Basis::Assumed { .. }) {
        return println!("skipped: nothing is known of this machine's nodes");
    }
    let ran = run(&["--no-freeze", "--node=1023", "--quiet"], &["echo", "started"]);
    let (said, told) = (text(&ran.stdout), text(&ran.stderr));
    assert_eq!((said.as_str(), ran.status.code()), ("", Some(125)), "{told}");
    assert!(told.starts_with("palimpsest: --node 1023: this machine has no node 1023 with memory; there is node "));
}

/// Fails on: a dry run that changes the program's text.
#[test]
fn a_dry_run_leaves_text_where_it_is_and_says_so() {
    let ran = run(&["--copies", "--dry-run"], &["cat", "/proc/self/maps"]);
    let (maps, told) = (text(&ran.stdout), text(&ran.stderr));
    assert!(maps.contains("libc") && !maps.contains("palimpsest-constant"), "{maps}");
    let is_told =
        told.lines().any(|line| line == "palimpsest: this is a dry run: text stays in the program's own file");
    assert!(is_told && ran.status.code() == Some(0), "{told}");
}

#[test]
fn nothing_is_told_unless_it_is_asked_for() {
    let Some(built) = compile("cc", &["-static", "-no-pie"]) else { return };
    let ran = run(&["--no-freeze", "--quiet"], &[built.to_str().expect("UTF-8")]);
    fs::remove_file(built).expect("this test's own");
    assert_eq!((text(&ran.stderr), ran.status.code()), (String::new(), Some(3)));
}

/// Fails on: variables that are not looked at while the flags are.
#[test]
fn what_the_environment_says_of_reports_counts_as_the_flags_do() {
    let Some(built) = compile("cc", &["-static", "-no-pie"]) else { return };
    let path = built.to_str().expect("UTF-8");
    let with = |variable: &str, value: &str| {
        let ran = command(&["--no-freeze"], &[path]).env(variable, value).output().expect("it was built");
        (ran.status.code(), text(&ran.stderr))
    };
    let (reported, quiet) = (with("PALIMPSEST_REPORT", "stderr"), with("PALIMPSEST_QUIET", "1"));
    let elsewhere = with("PALIMPSEST_REPORT", "/dev/null/report");
    fs::remove_file(&built).expect("this test's own");
    assert!(reported.0 == Some(3) && reported.1.lines().count() == 1, "{reported:?}");
    assert_eq!(quiet, (Some(3), String::new()));
    assert!(elsewhere.0 == Some(125) && elsewhere.1.contains("statically linked"), "{elsewhere:?}");
}

/// Fails on: the object of a `run` above, which another C library's dynamic linker may not load, and for which this one
/// answers: the programs below are none of ours.
#[test]
fn a_program_from_its_own_file_gets_no_object_from_a_run_above() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("shows.c"), folder.path().join("shows"));
    let lines = "#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { const char *p = getenv(\"LD_PRELOAD\"); puts(p ? p : \"none\"); return 0; }\n";
    fs::write(&source, lines).expect("the folder is ours");
    let built = Command::new("cc").args(["-static", "-o"]).args([&program, &source]).output();
    if !built.is_ok_and(|output| output.status.success()) {
        return println!("skipped: no cc that links statically");
    }
    for (above, expected) in [(None, "none\n"), (Some("libm.so.6"), "libm.so.6\n")] {
        let own = env!("CARGO_BIN_EXE_palimpsest");
        let line = "exec \"$0\" run --local-text --no-freeze --quiet \"$1\"";
        let mut outer = Command::new(own);
        outer.env_remove("LD_PRELOAD").env_remove("PALIMPSEST_PRELOAD").envs(above.map(|above| ("LD_PRELOAD", above)));
        outer.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
        let ran = outer.args(["run", "sh", "-c", line, own]).arg(&program).output().expect("it was built");
        assert_eq!((text(&ran.stdout).as_str(), ran.status.code()), (expected, Some(0)), "{}", text(&ran.stderr));
    }
}

//! Programs whose text is in huge pages on one node.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::common::{PLAIN, Ran, compile, frozen, localized, object, own_lines, run, started};

fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/big_text.c");
    PROGRAM.get_or_init(|| compile(Path::new(source), "big_text", &[])).as_deref()
}

fn with(variables: &[(&str, &str)]) -> Option<Ran> {
    let object = object();
    Some(run(&[program()?.to_str()?], frozen(object.to_str()?, variables)))
}

/// Attempts at what the kernel may undo at once while it lacks memory.
const ATTEMPTS: usize = 20;

const RUNS: &str = "thread: right\nchild: 0\n";

#[test]
fn an_unmodified_program_runs_from_memory() {
    let Some(program) = program() else { return };
    let plain = run(&[program.to_str().expect("UTF-8")], PLAIN);
    assert_eq!(plain.stdout, format!("text in memory: 0\n{RUNS}"), "{}", plain.stderr);
    for variables in [
        &[("PALIMPSEST_TEXT", "local,copies"), ("PALIMPSEST_FREEZE", "off")][..],
        &[("PALIMPSEST_TEXT", "local:0,copies"), ("PALIMPSEST_FREEZE", "fork")],
    ] {
        let ran = with(variables).expect("compiled above");
        let expected = (format!("text in memory: 1\n{RUNS}"), Some(0));
        assert_eq!((ran.stdout, ran.status), expected, "{variables:?}: {}", ran.stderr);
        assert_eq!(ran.stderr, "", "{variables:?}");
    }
}

/// Fails on: heads and tails that are left in the program's own file.
#[test]
fn all_of_a_program_can_be_in_memory() {
    let Some(program) = program().and_then(Path::to_str) else { return };
    let object = object();
    let kib = |text| {
        let variables = [("PALIMPSEST_TEXT", text), ("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_REPORT", "stderr")];
        let ran = run(&[program], frozen(object.to_str().expect("UTF-8"), &variables));
        assert_eq!((ran.stdout, ran.status), (format!("text in memory: 1\n{RUNS}"), Some(0)), "{text}: {}", ran.stderr);
        localized(&ran.stderr)
    };
    let (huge, all) = (kib("local,huge,copies"), kib("local,all"));
    // Three huge pages at least; and the 8 MiB with what other libraries have.
    assert!(huge >= 6 << 10 && huge.is_multiple_of(2 << 10) && all >= (8 << 10) + 64, "{huge} and {all} KiB");
}

#[test]
fn it_can_be_off_and_what_is_not_understood_is_told_in_one_line() {
    for (value, told) in
        [("", ""), ("off", ""), ("here", "palimpsest: PALIMPSEST_TEXT=here: not understood; allowed: ")]
    {
        let variables = [("PALIMPSEST_TEXT", value), ("PALIMPSEST_FREEZE", "off")];
        let Some(ran) = with(&variables) else { return };
        assert_eq!((ran.stdout, ran.status), (format!("text in memory: 0\n{RUNS}"), Some(0)), "{value}");
        assert!(ran.stderr.starts_with(told) && ran.stderr.lines().count() == usize::from(!told.is_empty()), "{value}");
    }
}

#[test]
fn what_is_refused_leaves_the_program_in_its_own_file() {
    let Some(program) = program() else { return };
    // No memory object of that size may be made.
    let line = format!("ulimit -f 100; exec {}", program.display());
    let object = object();
    let variables = [("PALIMPSEST_TEXT", "local,copies"), ("PALIMPSEST_FREEZE", "off")];
    let ran = run(&["sh", "-c", &line], frozen(object.to_str().expect("UTF-8"), &variables));
    assert_eq!((ran.stdout, ran.status), (format!("text in memory: 0\n{RUNS}"), Some(0)), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("RLIMIT_FSIZE") && ran.stderr.contains("runs from its own file"), "{}", ran.stderr);
}

/// Fails on: text on another node than the named one, and nobody is told.
#[test]
fn a_node_that_cannot_be_had_is_told_in_one_line_without_a_report() {
    for text in ["local:1023,copies", "local:1023,all"] {
        let variables = [("PALIMPSEST_TEXT", text), ("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_REPORT", "")];
        let Some(ran) = with(&variables) else { return };
        assert_eq!((ran.stdout, ran.status), (format!("text in memory: 0\n{RUNS}"), Some(0)), "{}", ran.stderr);
        assert!(ran.stderr.starts_with("palimpsest: ") && ran.stderr.lines().count() == 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("node 1023") && ran.report.is_empty(), "{}", ran.stderr);
    }
}

/// Where nothing is known of the nodes, a copy is made, and whether it is on the named one shows then.
///
/// Fails on: a copy on another node than the named one, and nobody is told; a machine that is said to have one node.
#[test]
fn a_node_that_was_not_asked_is_told_in_one_line_without_a_report() {
    let Some(program) = program().and_then(Path::to_str) else { return };
    let (object, line) = (object(), "mount -t tmpfs none /sys/devices/system/node || exit 77; exec env \"$@\"");
    let preload = format!("LD_PRELOAD={}", object.display());
    let ran = |report: &str| {
        let variables = ["PALIMPSEST_TEXT=local:1023,copies", "PALIMPSEST_FREEZE=off", report, &preload];
        run(&[&["unshare", "-rm", "sh", "-c", line, "sh"], &variables[..], &[program]].concat(), PLAIN)
    };
    let silent = ran("PALIMPSEST_REPORT=");
    if silent.status != Some(0) {
        return println!("skipped: nodes cannot be hidden: {}", silent.stderr);
    }
    assert_eq!(silent.stdout, format!("text in memory: 1\n{RUNS}"), "{}", silent.stderr);
    assert!(silent.stderr.starts_with("palimpsest: text is not kept on node 1023: mbind"), "{}", silent.stderr);
    assert_eq!(silent.stderr.lines().count(), 1, "{}", silent.stderr);
    let reported = ran("PALIMPSEST_REPORT=stderr").stderr;
    assert!(reported.contains(" KiB of text meant for node 1023, taken for the only one ("), "{reported}");
}

/// Fails on: copies in a dry run; one that says nothing of it.
#[test]
fn a_dry_run_leaves_the_program_in_its_own_file() {
    const TOLD: &str = "palimpsest: this is a dry run: text stays in the program's own file\n";
    let variables = [("PALIMPSEST_TEXT", "local,copies"), ("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_DRY_RUN", "1")];
    let Some(ran) = with(&variables) else { return };
    assert_eq!(
        (ran.stdout, ran.stderr.as_str(), ran.report.as_str()),
        (format!("text in memory: 0\n{RUNS}"), "", TOLD)
    );
    let unreported = with(&[&variables[..], &[("PALIMPSEST_REPORT", "")]].concat()).expect("compiled above");
    assert_eq!((unreported.stderr.as_str(), unreported.report.as_str()), (TOLD, ""));
}

/// Fails on: a report that only standard error gets.
#[test]
fn what_is_done_is_reported_where_the_freeze_is() {
    let Some(program) = program().and_then(Path::to_str) else { return };
    let variables = |text| [("PALIMPSEST_TEXT", text), ("PALIMPSEST_FREEZE", "off")];
    let ran = with(&variables("local,copies")).expect("compiled above");
    assert!(localized(&ran.report) >= 6 << 10 && ran.stderr.is_empty(), "{}{}", ran.report, ran.stderr);
    let object = object();
    let line = format!("exec 7>&1; exec {program} 7>&7");
    let to_descriptor = [&variables("local,copies")[..], &[("PALIMPSEST_REPORT", "fd:7")]].concat();
    let shell = started(&["sh", "-c", &line], &to_descriptor);
    assert!(localized(&shell.stdout) >= 6 << 10, "{}{}", shell.stdout, shell.stderr);
    let closed = [&variables("local,copies")[..], &[("PALIMPSEST_REPORT", "fd:77")]].concat();
    let ran = run(&[program], frozen(object.to_str().expect("UTF-8"), &closed));
    assert!(
        ran.stderr.contains("fd:77: no such descriptor is open") && ran.stderr.lines().count() == 1,
        "{}",
        ran.stderr
    );
}

/// Copies a program by another process: while this one has it open for writing, a child that another test's thread has
/// just forked does, too, and nobody may execute it.
fn copy(from: &Path, to: &Path) {
    let paths = [from, to].map(|path| path.to_str().expect("UTF-8"));
    assert_eq!(run(&["cp", paths[0], paths[1]], PLAIN).status, Some(0), "copied");
}

/// Fails on: an object that asks the kernel for nothing.
#[test]
fn a_program_whose_file_can_have_huge_pages_keeps_its_file() {
    // Not position-independent, so that its text is at the same place in a huge page as in its file.
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/big_text.c");
    let Some(built) = compile(Path::new(source), "big_text_fixed", &["-no-pie"]) else { return };
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return println!("skipped: no folder in memory") };
    let (program, object) = (folder.path().join("program"), object());
    let (path, object) = (program.to_str().expect("UTF-8"), object.to_str().expect("UTF-8"));
    let variables = |text| [("PALIMPSEST_TEXT", text), ("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_REPORT", "stderr")];
    let expected = |in_memory: usize| (format!("text in memory: {in_memory}\n{RUNS}"), Some(0));
    for attempt in 1.. {
        // Of this attempt alone: huge pages stay with the file.
        let _ = std::fs::remove_file(&program);
        copy(&built, &program);
        let copied = run(&[path], frozen(object, &variables("local,copies")));
        assert_eq!((copied.stdout, copied.status), expected(1), "{}", copied.stderr);
        // The second process finds what the first has made, whether it asks the kernel to read the file again or not.
        let mut ran = ["local", "local,reread"].map(|text| run(&[path], frozen(object, &variables(text))));
        let is_own = |ran: &Ran| ran.stderr.contains("of these the file's own");
        if ran.iter().all(is_own) {
            return ran.iter_mut().for_each(|ran| {
                assert_eq!((std::mem::take(&mut ran.stdout), ran.status), expected(0), "{}", ran.stderr);
            });
        }
        let other = ran.into_iter().find(|ran| !is_own(ran)).expect("one of them");
        assert_eq!((other.stdout, other.status), expected(1), "{}", other.stderr);
        // Whether this kernel makes such pages is not for the object to tell: another copy asks, too.
        let judge = folder.path().join("judge");
        copy(&built, &judge);
        let judged = run(&[judge.to_str().expect("UTF-8"), "collapse"], PLAIN);
        if judged.stdout == "0\n" {
            return println!("skipped: this kernel does not put a file in memory into huge pages: {}", judged.stderr);
        }
        assert!(attempt < ATTEMPTS, "a program that asks gets {} KiB: {}", judged.stdout, other.stderr);
    }
}

/// Runs the program from copies, executed by `confined` with this word.
fn confined(word: &str) -> Option<Ran> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/confined.c");
    let confined = compile(Path::new(source), "confined", &[])?;
    let object = object();
    let variables = [("PALIMPSEST_TEXT", "local,copies"), ("PALIMPSEST_FREEZE", "off")];
    let command = [confined.to_str()?, word, program()?.to_str()?];
    let ran = run(&command, frozen(object.to_str()?, &variables));
    if ran.status == Some(77) {
        println!("skipped: the kernel does not confine by {word}");
        return None;
    }
    Some(ran)
}

#[test]
fn a_program_that_may_never_make_memory_executable_runs_from_copies() {
    // No page is ever made executable that was not mapped so.
    let Some(ran) = confined("mdwe") else { return };
    let expected = (format!("text in memory: 1\n{RUNS}"), String::new(), Some(0));
    assert_eq!((ran.stdout, ran.stderr, ran.status), expected);
}

#[test]
fn whatever_call_a_filter_refuses_the_program_runs_and_tells_in_one_line() {
    for (call, number) in [
        ("memfd_create", libc::SYS_memfd_create),
        ("ftruncate", libc::SYS_ftruncate),
        ("madvise", libc::SYS_madvise),
        ("fcntl", libc::SYS_fcntl),
        ("fchmod", libc::SYS_fchmod),
        ("mremap", libc::SYS_mremap),
    ] {
        let Some(ran) = confined(&number.to_string()) else { return };
        assert_eq!((ran.stdout, ran.status), (format!("text in memory: 0\n{RUNS}"), Some(0)), "{call}: {}", ran.stderr);
        let is_told = ran.stderr.contains("runs from its own file") && ran.stderr.lines().count() == 1;
        assert!(is_told, "{call}: {}", ran.stderr);
    }
    // These have another way: text is in memory all the same.
    for (call, number) in [("ioctl", libc::SYS_ioctl), ("mbind", libc::SYS_mbind)] {
        let Some(ran) = confined(&number.to_string()) else { return };
        assert_eq!((ran.stdout, ran.status), (format!("text in memory: 1\n{RUNS}"), Some(0)), "{call}: {}", ran.stderr);
        // Nobody has tried the filter, so a child has written it.
        assert!(localized(&ran.report) > 0, "{call}: {}", ran.report);
    }
}

#[test]
fn python_computes_the_same() {
    let command =
        ["python3", "-c", "import hashlib,json;print(json.dumps([hashlib.sha256(b'x').hexdigest(),sum(range(9))]))"];
    let plain = run(&command, PLAIN);
    if plain.status != Some(0) {
        return println!("skipped: no python3: {}", plain.stderr);
    }
    let object = object();
    let text = ("PALIMPSEST_TEXT", "local,all");
    let variables = [text, ("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_REPORT", "stderr")];
    let ran = run(&command, frozen(object.to_str().expect("UTF-8"), &variables));
    assert!(localized(&ran.stderr) > 0, "{}", ran.stderr);
    assert_eq!((ran.stdout, own_lines(&ran.stderr), ran.status), (plain.stdout, plain.stderr, Some(0)));
}

#[test]
fn gdb_stops_in_exchanged_text() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/hot.c");
    let Some(program) = compile(Path::new(source), "hot", &["-g", "-fno-toplevel-reorder"]) else { return };
    if run(&["gdb", "--version"], PLAIN).status != Some(0) {
        return println!("skipped: no gdb");
    }
    let preload = format!("set environment LD_PRELOAD {}", object().display());
    let lines = [
        "set startup-with-shell off",
        "set environment PALIMPSEST_TEXT local,copies",
        "set environment PALIMPSEST_FREEZE off",
        &preload,
        // Nothing is exchanged before the object starts: the second breakpoint is set in the old text.
        "break main",
        "run short",
        "break hot",
        "continue",
        "info symbol $pc",
        "info proc mappings",
        "continue",
    ];
    let mut command = vec!["gdb", "-q", "-batch"];
    lines.iter().for_each(|line| command.extend(["-ex", line]));
    command.push(program.to_str().expect("UTF-8"));
    let ran = run(&command, PLAIN);
    assert!(ran.stdout.contains("Breakpoint 2, hot"), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("hot + ") || ran.stdout.contains("hot in section"), "{}", ran.stdout);
    assert!(ran.stdout.contains("/memfd:palimpsest-constant"), "{}", ran.stdout);
    assert!(ran.stdout.contains("exited normally"), "{}", ran.stdout);
}

#[test]
fn only_the_program_that_was_started_is_localised_and_tells_unless_heirs_are_named() {
    let Some(program) = program().and_then(Path::to_str) else { return };
    let run_in_shell = |value: &str, quiet: &str, line: &str| {
        let variables = [("PALIMPSEST_TEXT", value), ("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_QUIET", quiet)];
        started(&["sh", "-c", &format!("exec {line}")], &variables)
    };
    let executed = format!("sh -c 'exec {program}'");
    let started = format!("sh -c '{program}; :'");
    for (value, line, in_memory) in
        [("local", program, 1), ("local", &executed, 1), ("local", &started, 0), ("local,heirs", &started, 1)]
    {
        let value = &format!("{value},copies");
        let ran = run_in_shell(value, "0", line);
        assert_eq!(ran.stdout, format!("text in memory: {in_memory}\n{RUNS}"), "{value} {line}: {}", ran.stderr);
    }
    // The first process, twice, since it becomes another shell; not what that starts.
    assert_eq!(run_in_shell("here", "0", &started).stderr.lines().count(), 2);
    assert_eq!(run_in_shell("here", "1", &started).stderr, "");
}

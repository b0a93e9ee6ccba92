//! What the user can ask for.

use std::path::Path;

use crate::common::{PLAIN, Ran, STARTED, assert_same, compile, frozen, object, other_object, run, scenarios};

fn count(ran: &Ran) -> usize {
    ran.report.matches("palimpsest: froze process").count()
}

#[test]
fn invalid_values_are_told_in_one_line_and_nothing_is_frozen() {
    for (variable, value) in [
        ("PALIMPSEST_FREEZE", "always"),
        ("PALIMPSEST_EXTENT", "1"),
        ("PALIMPSEST_HUGE", "1"),
        ("PALIMPSEST_THREADS", "none"),
        ("PALIMPSEST_PAYS_AFTER", "0"),
        ("PALIMPSEST_TRUST", "me"),
        ("PALIMPSEST_QUIET", "maybe"),
        ("PALIMPSEST_INHERIT", "maybe"),
        ("PALIMPSEST_REPORT", "fd:x"),
        ("PALIMPSEST_DRY_RUN", "2"),
        ("PALIMPSEST_ONLY", "/"),
    ] {
        let Some(ran) = assert_same("dontneed", &[(variable, value)]) else { return };
        let expected = format!("palimpsest: {variable}={value}: not understood; allowed: ");
        assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
        assert!(ran.stderr.ends_with("; the program runs unfrozen\n"), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        assert_eq!(count(&ran), 0);
    }
}

/// Fails on: a line that stops the program, or is kept back for that.
#[test]
fn a_line_to_a_terminal_stops_no_program_in_the_background() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/background.c");
    let Some(program) = compile(Path::new(source), "background", &[]) else { return };
    let preload = format!("LD_PRELOAD={}", object().display());
    let served = ["/usr/bin/env", "PALIMPSEST_HUGE=1", &preload, "true"];
    let ran = run(&[&[program.to_str().expect("UTF-8")][..], &served].concat(), PLAIN);
    if ran.status == Some(77) {
        return println!("skipped: no terminal can be made here");
    }
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "ended with 0\ntold\n"), "{}", ran.stderr);
}

#[test]
fn off_does_nothing() {
    let Some(ran) = assert_same("dontneed", &[("PALIMPSEST_FREEZE", "off")]) else { return };
    assert_eq!((ran.stderr.as_str(), count(&ran)), ("", 0));
}

#[test]
fn the_moment_can_be_a_fork_a_size_or_a_signal() {
    for (scenario, moment, times) in [
        ("many_forks", "fork:300", 1),
        ("many_forks", "fork:303", 0),
        ("nested", "fork:2", 2),
        ("dontneed", "size:4M", 1),
        ("dontneed", "size:1G", 0),
        ("signalled", "signal:WINCH", 1),
        ("signalled", "signal:USR1", 0),
    ] {
        let Some(ran) = assert_same(scenario, &[("PALIMPSEST_FREEZE", moment)]) else { return };
        assert_eq!((ran.stderr.as_str(), count(&ran)), ("", times), "{scenario} {moment}: {}", ran.report);
    }
}

#[test]
fn small_processes_are_left_alone_unless_the_fork_is_named() {
    let object = object();
    let command = ["sh", "-c", "(exit 3); echo $?"];
    for (variables, times) in [(&[][..], 0), (&[("PALIMPSEST_FREEZE", "fork")], 1)] {
        let ran = run(&command, frozen(object.to_str().expect("UTF-8"), variables));
        assert_eq!((ran.stdout.as_str(), ran.stderr.as_str(), count(&ran)), ("3\n", "", times));
        let is_told = ran.report.contains("it was not frozen: none of its memory can be, for the reasons above");
        assert_eq!(is_told, times == 1, "{}", ran.report);
    }
}

#[test]
fn a_dry_run_reports_and_changes_nothing() {
    let Some(ran) = assert_same("dontneed", &[("PALIMPSEST_DRY_RUN", "1")]) else { return };
    assert!(ran.report.starts_with("palimpsest: would freeze process "), "{}", ran.report);
    assert_eq!(count(&ran), 0);
}

#[test]
fn refusals_can_be_silent() {
    let Some(ran) = assert_same("threads", &[("PALIMPSEST_QUIET", "1")]) else { return };
    assert_eq!((ran.stderr.as_str(), count(&ran)), ("", 0));
}

#[test]
fn the_report_goes_where_it_is_sent() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let object = object();
    let object = object.to_str().expect("UTF-8");
    let ran = run(&[program, "protect"], frozen(object, &[("PALIMPSEST_REPORT", "stderr")]));
    assert!(ran.stderr.starts_with("palimpsest: froze process "), "{}", ran.stderr);
    let script = format!("exec 7>&2; exec {program} protect");
    let ran =
        run(&["sh", "-c", &script], frozen(object, &[("PALIMPSEST_REPORT", "fd:7"), ("PALIMPSEST_FREEZE", "size:4M")]));
    // The shell has no such descriptor when it starts; the program has.
    assert!(ran.stderr.contains("PALIMPSEST_REPORT=fd:7: no such descriptor is open"), "{}", ran.stderr);
    assert!(ran.stderr.contains("palimpsest: froze process "), "{}", ran.stderr);
    let nowhere = [("PALIMPSEST_REPORT", "/dev/null/report")];
    let ran = run(&[program, "protect"], frozen(object, &nowhere));
    assert!(
        ran.stderr.starts_with(
            "palimpsest: PALIMPSEST_REPORT=/dev/null/report: not written: cannot open it: Not a directory"
        ),
        "{}",
        ran.stderr
    );
}

/// Nobody reads it, and the program must not wait.
#[test]
fn a_report_to_a_fifo_without_a_reader_is_refused() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let object = object();
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("coreutils are there");
    assert!(made.success());
    let fifo = fifo.to_str().expect("UTF-8");
    let ran = run(&[program, "protect"], frozen(object.to_str().expect("UTF-8"), &[("PALIMPSEST_REPORT", fifo)]));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("not written: cannot open it"), "{}", ran.stderr);
}

/// In `/tmp` another user can have made the link.
#[test]
fn a_report_does_not_follow_links() {
    let Some(program) = scenarios().and_then(|path| path.to_str()) else { return };
    let object = object();
    let folder = tempfile::tempdir().expect("a folder");
    let (precious, report) = (folder.path().join("precious"), folder.path().join("report"));
    std::fs::write(&precious, "precious\n").expect("it can be written");
    std::os::unix::fs::symlink(&precious, &report).expect("a link");
    let report = report.to_str().expect("UTF-8");
    let ran = run(&[program, "protect"], frozen(object.to_str().expect("UTF-8"), &[("PALIMPSEST_REPORT", report)]));
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "precious\n");
    let expected = format!("palimpsest: PALIMPSEST_REPORT={report}: not written: it is a symbolic link; ");
    assert!(ran.stderr.starts_with(&expected), "{}", ran.stderr);
}

#[test]
fn executed_programs_are_served_unless_that_is_declined() {
    let object = object();
    let object = object.to_str().expect("UTF-8");
    let command = ["sh", "-c", "echo \"[$LD_PRELOAD]\"; env | grep -c LD_PRELOAD; true"];
    let ran = run(&command, frozen(object, &[]));
    assert_eq!(ran.stdout, format!("[{object}]\n1\n"));
    let ran = run(&command, frozen(object, &[("PALIMPSEST_INHERIT", "no")]));
    assert_eq!(ran.stdout, "[]\n0\n");
}

#[test]
fn an_environment_that_another_constructor_has_made_is_left_too() {
    let (object, Some(other)) = (object(), other_object("setenv_first")) else { return };
    let (object, other) = (object.to_str().expect("UTF-8"), other.to_str().expect("UTF-8"));
    let both = format!("{object}:{other}");
    let command = ["sh", "-c", "echo \"[$LD_PRELOAD] $SET_FIRST\""];
    let ran = run(&command, frozen(&both, &[("PALIMPSEST_INHERIT", "no")]));
    assert_eq!(ran.stdout, "[] 1\n", "{}", ran.stderr);
}

#[test]
fn the_moment_is_used_once_by_a_process_and_its_children() {
    let Some(ran) = assert_same("nested", &[]) else { return };
    assert_eq!(count(&ran), 1, "{}", ran.report);
}

#[test]
fn the_report_tells_why_the_program_that_was_started_was_not_frozen() {
    let object = object();
    let object = object.to_str().expect("UTF-8");
    let Some(scenarios) = scenarios() else { return };
    let started = |program: &str, variable: &str| {
        let script = format!("{variable} PALIMPSEST_STARTED={STARTED} LD_PRELOAD={object} exec {program}");
        run(&["sh", "-c", &script], PLAIN)
    };
    let protect = format!("{} protect", scenarios.display());
    for (program, variable, reason) in [
        ("true", "", "it has never called fork (vfork "),
        (protect.as_str(), "PALIMPSEST_FREEZE=size:1G", "at none of its "),
        (protect.as_str(), "PALIMPSEST_FREEZE=fork:1000", "it has forked "),
        (protect.as_str(), "PALIMPSEST_ONLY=other", "--only (PALIMPSEST_ONLY) names other, and it is called scenarios"),
    ] {
        let ran = started(program, variable);
        assert!(ran.report.starts_with("palimpsest: froze nothing in process "), "{program}: {}", ran.report);
        let line = ran.report.lines().nth(1).and_then(|line| line.strip_prefix("it was not frozen: "));
        assert!(line.is_some_and(|line| line.starts_with(reason)), "{program}: {}", ran.report);
        assert_eq!((ran.report.lines().count(), ran.stderr.as_str()), (2, ""), "{program}: {}", ran.report);
    }
    // A later process with the same number is a different one.
    let script = format!("PALIMPSEST_STARTED=$$-1 LD_PRELOAD={object} exec true");
    assert_eq!(run(&["sh", "-c", &script], PLAIN).report, "");
    // A frozen one reports that, and others report nothing.
    let ran = started(&protect, "");
    assert_eq!((count(&ran), ran.report.contains("froze nothing")), (1, false), "{}", ran.report);
    assert_eq!(run(&["true"], frozen(object, &[])).report, "");
}

/// A shell, a script and a program below it, each of which forks.
#[test]
fn only_programs_that_are_named_freeze() {
    let Some(scenarios) = scenarios().and_then(|path| path.to_str()) else { return };
    let object = object();
    let object = object.to_str().expect("UTF-8");
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("a,script");
    std::fs::write(&script, format!("#!/bin/sh\n(exit 3); {scenarios} protect\n")).expect("it can be written");
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("it is ours");
    let line = format!("(exit 3); {}; true", script.display());
    let frozen_are = |only: &str| {
        let variables = [("PALIMPSEST_FREEZE", "fork"), ("PALIMPSEST_ONLY", only)];
        let ran = run(&["sh", "-c", &line], frozen(object, &variables));
        assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{only}");
        let lines = ran.report.lines().filter(|line| line.starts_with("palimpsest: froze process "));
        lines.filter_map(|line| Some(line.split_once('(')?.1.trim_end_matches(')').to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(frozen_are(""), ["sh", "a,script", "scenarios"]);
    assert_eq!(frozen_are("scenarios"), ["scenarios"]);
    assert_eq!(frozen_are("other/a,script"), ["a,script"]);
    assert_eq!(frozen_are("sh"), ["sh", "a,script"]);
    assert!(frozen_are("a").is_empty() && frozen_are("script").is_empty());
}

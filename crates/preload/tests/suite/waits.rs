//! Waits while a freeze in slices is under way: the program sees what it would see without the object.

use std::path::Path;

use crate::common::{PLAIN, compile, frozen, object, run};

/// Runs the program plainly and with slices that copy the least that they may. Returns their reports.
fn compare(name: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Option<String> {
    let sources = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources"));
    let source = match name.split('-').next() {
        Some("waits") => "waits.c",
        Some("confined") => "confined_waits.c",
        Some("ignored") => "ignored_waits.c",
        _ => "full_report.c",
    };
    let program = compile(&sources.join(source), name, &[])?;
    let command = [&[program.to_str().expect("a path in UTF-8")], arguments].concat();
    let object = object();
    let plain = run(&command, PLAIN);
    let ran = run(&command, frozen(object.to_str().expect("a path in UTF-8"), variables));
    assert_eq!(ran.stdout, plain.stdout, "{}{}", ran.stderr, ran.report);
    assert_eq!((ran.status, plain.status), (Some(0), Some(0)), "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
    Some(ran.report)
}

/// Returns the number of slices in the report.
fn slices(report: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix("slices")).expect("told");
    line.split(',').next().and_then(|number| number.trim().parse().ok()).expect("a number")
}

#[test]
fn every_wait_is_as_without_the_object_and_the_freeze_ends_in_them() {
    // Each kind of wait is the first one once, in which most slices are taken.
    for first in ["0", "1", "2", "3", "4", "5", "6", "7"] {
        let Some(report) = compare("waits-least", &[first], &[("PALIMPSEST_PAUSE", "1ns")]) else { return };
        // 64 MiB in parts of 128 KiB; the program forks a few times.
        assert!(slices(&report) >= 512, "{report}");
        assert!(!report.contains("under way") && report.matches("froze process").count() == 1, "{report}");
    }
}

#[test]
fn so_it_is_at_any_pause() {
    for pause in ["100us", "1ms", "1s"] {
        if let Some(report) = compare("waits-more", &[], &[("PALIMPSEST_PAUSE", pause)]) {
            assert!(slices(&report) >= 1 && !report.contains("under way"), "{report}");
        }
    }
}

#[test]
fn threads_are_held_in_slices_and_can_be_canceled_in_waits() {
    let variables = [("PALIMPSEST_PAUSE", "1ns"), ("PALIMPSEST_THREADS", "stop")];
    let Some(report) = compare("waits-threads", &["thread"], &variables) else { return };
    assert!(slices(&report) >= 1, "{report}");
}

#[test]
fn the_main_thread_can_be_canceled_in_waits() {
    let variables = [("PALIMPSEST_PAUSE", "1ns"), ("PALIMPSEST_THREADS", "stop")];
    // One each of `epoll_wait`, `poll`, `select` and `nanosleep`.
    for way in ["0", "2", "4", "6"] {
        let _ = compare("waits-canceled", &["0", way], &variables);
    }
}

#[test]
fn ignored_signals_end_no_wait() {
    for pause in ["1ns", "2ms"] {
        if let Some(report) = compare("ignored", &[], &[("PALIMPSEST_PAUSE", pause)]) {
            assert!(slices(&report) >= 1, "{report}");
        }
    }
}

#[test]
fn nobody_waits_for_the_reader_of_a_report() {
    let _ = compare("full", &[], &[("PALIMPSEST_PAUSE", "1ns")]);
}

#[test]
fn a_filter_that_ends_the_program_for_calls_that_it_does_not_make_leaves_its_waits() {
    for who in ["self", "child"] {
        for trust in ["", "seccomp"] {
            let name = format!("confined-{who}-{trust}");
            let variables = [("PALIMPSEST_PAUSE", "1ns"), ("PALIMPSEST_TRUST", trust)];
            let _ = compare(&name, &[who], &variables);
        }
    }
}

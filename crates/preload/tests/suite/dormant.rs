//! Programs that another has executed below `palimpsest run`, and that sleep until they have a use for the object.

use std::fs;
use std::path::Path;
use std::process::Command;

use palimpsest_defer::{DeferError, deferred};

use crate::common::{compile, linked_object, object};

/// Returns a command that runs a part of the program as `palimpsest run` would have let it start.
fn command(what: &str, object: &Path) -> Option<Command> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/sources/dormant.c");
    let mut command = Command::new(compile(&source, "dormant", &[])?);
    command.arg(what).env("LD_PRELOAD", object).env("PALIMPSEST_STARTED", "1-2").env("PALIMPSEST_FILTERS", "0,tried");
    Some(command)
}

fn passes(command: &mut Command) {
    let output = command.output().expect("it can be executed");
    let (said, complained) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}: {}\n{said}{complained}", command, output.status);
}

/// Fails on: an address among constants or variables that is used before it is there, as by a formatted text in a call
/// of a program that sleeps; a program that wakes at a call which needs nothing.
#[test]
fn every_call_is_passed_on_while_the_program_sleeps() {
    let Some(mut command) = command("calls", &object()) else { return };
    passes(&mut command);
}

/// Fails on: a panic for what is no such object; one that is changed twice.
#[test]
fn what_cannot_be_deferred_is_refused() {
    let linked = fs::read(linked_object()).expect("it is a file");
    let deferred = deferred(&linked).expect("an object of this package");
    assert_eq!(palimpsest_defer::deferred(&deferred), Err(DeferError::Done));
    for length in (0..linked.len()).step_by(4099).chain(0..200) {
        assert!(palimpsest_defer::deferred(&linked[..length]).is_err(), "{length} bytes");
    }
    // Each byte of the header is another one.
    for place in 0..64 {
        for value in [0, 0x7f, 0xff] {
            let mut other = linked.clone();
            other[place] = value;
            // Some mean nothing.
            let _ = palimpsest_defer::deferred(&other);
        }
    }
}

/// Fails on: a program that sleeps on when it has grown; settings that are read when it wakes, from variables that it
/// has written over.
#[test]
fn who_has_grown_wakes_at_a_fork_with_the_settings_of_the_start() {
    let Some(mut command) = command("grows", &object()) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let others = [("PALIMPSEST_PAUSE", "none"), ("PALIMPSEST_HUGE", "off"), ("PALIMPSEST_PAYS_AFTER", "any")];
    passes(command.env("PALIMPSEST_REPORT", &report).envs(others));
    let told = fs::read_to_string(&report).expect("it has reported");
    assert!(told.contains("frozen"), "{told}");
}

/// Fails on: a child of a program that sleeps, which takes its memory for its parent's, and never wakes.
#[test]
fn who_goes_on_in_the_background_wakes_there() {
    let Some(mut command) = command("daemon", &object()) else { return };
    passes(&mut command);
}

/// Fails on: large memory that is mapped unseen; a filter under which nobody could wake.
#[test]
fn who_maps_much_or_confines_itself_wakes() {
    for what in ["maps", "confines", "handles"] {
        let Some(mut command) = command(what, &object()) else { return };
        passes(&mut command);
    }
}

/// Fails on: a thread that takes the process for awake before its settings are read; a discard beside the waking that
/// shows old bytes.
#[test]
fn threads_and_handlers_wake_it_all_at_once() {
    for _ in 0..5 {
        let Some(mut command) = command("races", &object()) else { return };
        passes(&mut command);
    }
}

/// Fails on: a child of `vfork` that wakes its parent, or by whose filter its parent is taken for confined.
#[test]
fn a_child_in_the_same_memory_wakes_nobody() {
    let Some(mut command) = command("borrows", &object()) else { return };
    passes(&mut command);
}

/// Fails on: a program that sleeps although something is asked of its start, or that was started by nobody.
#[test]
fn who_has_other_variables_does_not_sleep() {
    let sleeps = |variable: &str, value: &str| {
        let mut command = command("asleep", &object())?;
        command.env("PALIMPSEST_QUIET", "1").env(variable, value);
        command.status().expect("it can be executed").code()
    };
    let Some(asleep) = sleeps("PALIMPSEST_PAUSE", "1ms") else { return };
    assert_eq!(asleep, 1);
    for (variable, value) in [
        ("PALIMPSEST_FREEZE", "fork"),
        ("PALIMPSEST_FREEZE", "off"),
        ("PALIMPSEST_ONLY", "other"),
        ("PALIMPSEST_TEXT", "local,heirs"),
        ("PALIMPSEST_FILTERS", "2,tried"),
        ("PALIMPSEST_LONG", &"x".repeat(800)),
    ] {
        assert_eq!(sleeps(variable, value), Some(0), "{variable}={value}");
    }
    let mut alone = command("asleep", &object()).expect("as before");
    assert_eq!(alone.env_remove("PALIMPSEST_STARTED").status().expect("it can be executed").code(), Some(0));
    // As it was linked, nothing is deferred, and nobody sleeps: the dynamic linker has taken all rights away.
    let mut linked = command("asleep", &linked_object()).expect("as before");
    assert_eq!(linked.status().expect("it can be executed").code(), Some(0));
}

//! Memory is frozen while the object is in the middle of a call of the program's, as by another thread.

use std::path::Path;

use crate::common::{compile, frozen, object, run};

/// Runs a scenario with an object behind ours, which freezes before or after the system call. Returns what it prints.
fn ran(scenario: &str) -> Option<String> {
    let source = |name: &str| format!("{}/tests/suite/sources/{name}", env!("CARGO_MANIFEST_DIR"));
    let behind = compile(Path::new(&source("behind.c")), "behind.so", &["-shared", "-fPIC"])?;
    let program = compile(Path::new(&source("meanwhile.c")), "meanwhile", &[])?;
    let objects = format!("{}:{}", object().display(), behind.display());
    let ran = run(&[program.to_str().expect("UTF-8"), scenario], frozen(&objects, &[]));
    if ran.status == Some(99) && ran.stderr.contains("mlock") {
        println!("skipped: memory cannot be locked (RLIMIT_MEMLOCK): {}", ran.stderr);
        return None;
    }
    assert_eq!(ran.status, Some(0), "{scenario}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.report.contains("froze process"), "{scenario}: {}{}{}", ran.stdout, ran.report, ran.stderr);
    println!("{scenario}: {}{}", ran.stdout, ran.report);
    Some(ran.stdout)
}

#[test]
fn rights_taken_while_memory_is_frozen_stay_taken() {
    let Some(seen) = ran("protect") else { return };
    assert_eq!(seen, "mprotect: 0 5, frozen meanwhile: 1\ndiscarded: 0\nnot zero: 0\nwritten: -1\n");
}

#[test]
fn memory_that_is_frozen_once_it_is_mapped_is_known_to_be() {
    let Some(seen) = ran("map") else { return };
    assert_eq!(seen, "mapped: 1, done meanwhile: 1\ndiscarded: 0\nnot zero: 0\n");
    // Once there is a map of frozen memory, nobody freezes until the call is noted.
    let Some(seen) = ran("map_frozen") else { return };
    let expected = "thawed meanwhile: -1 Device or resource busy\nmapped: 1, done meanwhile: 1\n";
    assert_eq!(seen, format!("{expected}discarded: 0\nnot zero: 0\n"));
}

#[test]
fn memory_that_is_locked_while_it_is_frozen_stays_locked() {
    let Some(seen) = ran("lock") else { return };
    assert_eq!(seen, "frozen meanwhile: 1, 4 kB locked\n4 kB locked\n");
    let Some(seen) = ran("lock_all") else { return };
    assert_eq!(seen, "frozen meanwhile: 1\n1\n");
}

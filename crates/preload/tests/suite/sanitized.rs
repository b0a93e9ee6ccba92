//! Programs that watch their own memory.

use std::path::Path;

use crate::common::{PLAIN, compile, frozen, object, run};

/// How AddressSanitizer ends a process, as set below.
const FOUND: i32 = 77;

#[test]
fn address_sanitizer_finds_in_frozen_memory_what_it_finds_in_any() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/sanitized.c");
    // A shared runtime wants to be loaded first.
    let Some(program) = compile(Path::new(source), "sanitized", &["-fsanitize=address", "-static-libasan"]) else {
        return;
    };
    let program = program.to_str().expect("a path in UTF-8");
    let object = object();
    let exit_code = format!("exitcode={FOUND}:detect_leaks=0");
    let variables = [("ASAN_OPTIONS", exit_code.as_str())];
    let plain = run(&["env", &format!("ASAN_OPTIONS={exit_code}"), program], PLAIN);
    let ran = run(&[program], frozen(object.to_str().expect("a path in UTF-8"), &variables));
    assert!(ran.report.contains("froze process"), "{}{}", ran.report, ran.stderr);
    assert_eq!(ran.stdout.matches(&format!(": {FOUND}\n")).count(), 3, "{}", ran.stdout);
    assert_eq!((ran.stdout, ran.status), (plain.stdout, plain.status), "{}", ran.stderr);
    for kind in ["heap-buffer-overflow", "heap-use-after-free"] {
        assert!(ran.stderr.contains(kind), "{}", ran.stderr);
    }
}

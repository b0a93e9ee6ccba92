//! Programs in C, linked with the library: the front page's example, and a whole kernel's side.

mod library;

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};

use library::library;

/// The compiler's checks of addresses and of undefined behaviour.
const CHECKED: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// SIGABRT.
const ABORTED: i32 = 6;

/// Compiles `source` with `options` and runs it once for each of `words`, which are its arguments; `None` without a
/// compiler.
fn run(source: &str, options: &[&str], words: &[&[&str]]) -> Option<Vec<Output>> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("the temporary directory is writable");
    let program = folder.path().join("program");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(sources.join("include")).args(options);
    compiler.arg(sources.join(source)).arg(library()).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(&program);
    let Ok(compiled) = compiler.output() else {
        println!("skipped: no C compiler `cc`");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = words.iter().map(|words| Command::new(&program).args(*words).output().expect("it can be started"));
    Some(ran.collect())
}

#[test]
fn a_kernel_in_c_finds_in_its_tables_what_it_asked_for() {
    let Some(ran) = run("tests/tables.c", &CHECKED, &[&[]]) else { return };
    let (said, complained) = (String::from_utf8_lossy(&ran[0].stdout), String::from_utf8_lossy(&ran[0].stderr));
    assert!(ran[0].status.success(), "{}: {said}{complained}", ran[0].status);
}

/// The example of the crate's front page does what it says, and gives everything back.
#[test]
fn the_example_forks_a_space() {
    // It leaves out `(void)context`.
    let options = [CHECKED[0], CHECKED[1], "-Wno-unused-parameter"];
    let Some(ran) = run("examples/fork.c", &options, &[&[]]) else { return };
    let (said, complained) = (String::from_utf8_lossy(&ran[0].stdout), String::from_utf8_lossy(&ran[0].stderr));
    assert!(ran[0].status.success(), "{}: {said}{complained}", ran[0].status);
    assert_eq!(said, "parent: before, child: after\n");
}

/// A callback that breaks its promise ends the program with a message, and unwinds nothing.
#[test]
fn a_callback_that_lies_is_named() {
    let Some(ran) = run("tests/tables.c", &[], &[&["meta"], &["frame"]]) else { return };
    for (ran, message) in ran.iter().zip(["the callback `meta` returned", "the callback `allocate_table` returned"]) {
        assert_eq!(ran.status.signal(), Some(ABORTED), "{}", ran.status);
        let complained = String::from_utf8_lossy(&ran.stderr);
        assert!(complained.contains(message), "{complained}");
    }
}

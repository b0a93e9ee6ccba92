//! Programs that the object does not serve: it answers who asks, and keeps out of the way.

use std::path::{Path, PathBuf};

use crate::common::{PLAIN, compile, compile_with, frozen, object, run, started};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/suite/sources/{name}.c"))
}

/// Fails on: a program that is left alone, and is told otherwise.
#[test]
fn whoever_asks_is_told_whether_the_object_serves() {
    let Some(program) = compile(&source("serves"), "serves", &["-ldl"]) else { return };
    let program = program.to_str().expect("UTF-8");
    let object = object();
    let answer = |variables: &[(&str, &str)]| {
        run(&[program], frozen(object.to_str().expect("UTF-8"), variables)).stdout.trim_end().to_owned()
    };
    for variables in [
        &[][..],
        &[("PALIMPSEST_ONLY", "other/serves")],
        &[("PALIMPSEST_FREEZE", "fork")],
        &[("PALIMPSEST_DRY_RUN", "1")],
    ] {
        assert_eq!(answer(variables), "yes", "{variables:?}");
    }
    for variables in [
        &[("PALIMPSEST_FREEZE", "off")][..],
        &[("PALIMPSEST_ONLY", "other")],
        &[("PALIMPSEST_THREADS", "some")],
        &[("PALIMPSEST_FREEZE", "off"), ("PALIMPSEST_TEXT", "local")],
    ] {
        assert_eq!(answer(variables), "no", "{variables:?}");
    }
    // The first program says at its end why it was not frozen.
    assert_eq!(started(&[program], &[("PALIMPSEST_ONLY", "other")]).stdout, "no\n");
    assert_eq!(run(&[program], PLAIN).stdout, "absent\n");
}

/// Fails on: a name or a library that only glibc has, for which musl's dynamic linker ends every program below
/// `palimpsest run`; what the object does there without the arguments that glibc passes.
#[test]
fn a_program_of_musl_runs_as_without_the_object() {
    let Some(program) = compile_with("musl-gcc", &source("other_library"), "musl", &[]) else { return };
    let command = [program.to_str().expect("UTF-8"), "again"];
    let object = object();
    let plain = run(&command, PLAIN);
    assert_eq!(
        (plain.stdout.replace("not ", ""), plain.status),
        ("loaded, 1 arguments\nloaded, 2 arguments\n".into(), Some(0))
    );
    for variables in
        [&[][..], &[("PALIMPSEST_FREEZE", "fork")], &[("PALIMPSEST_TEXT", "local")], &[("PALIMPSEST_ONLY", "x")]]
    {
        let ran = run(&command, frozen(object.to_str().expect("UTF-8"), variables));
        assert_eq!(
            (ran.stdout.as_str(), ran.status),
            ("loaded, 1 arguments\nloaded, 2 arguments\n", Some(0)),
            "{}",
            ran.stderr
        );
        assert_eq!((ran.stderr.as_str(), ran.report.as_str()), ("", ""), "{variables:?}");
    }
}

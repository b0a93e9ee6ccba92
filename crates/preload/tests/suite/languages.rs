//! Programs that are not written in C.

use std::path::Path;
use std::process::Command;

use crate::common::{PLAIN, frozen, object, run};

/// Runs `command` with and without the object, and asserts that its output is the same.
fn same(command: &[&str], variables: &[(&str, &str)]) -> Option<(String, String)> {
    let object = object();
    let plain = run(command, PLAIN);
    if plain.status == Some(127) {
        println!("skipped: {} is not installed", command[0]);
        return None;
    }
    let ran = run(command, frozen(object.to_str().expect("UTF-8"), variables));
    assert_eq!((&ran.stdout, ran.status), (&plain.stdout, Some(0)), "{}{}", ran.stderr, ran.report);
    Some((ran.stderr, ran.report))
}

#[test]
fn python_forks() {
    let program = "
import os, gc, hashlib
data = [str(i) * 3 for i in range(300000)]
def digest(): return hashlib.sha256(''.join(data).encode()).hexdigest()
for i in range(5):
    child = os.fork()
    if child == 0:
        data[i] = 'changed in the child'
        print('child', digest(), flush=True)
        os._exit(i)
    print('child ended with', os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    data[i * 7] = 'changed'
    del data[100000 + i * 1000:100000 + i * 1000 + 500]
    gc.collect()
    print('parent', digest(), flush=True)
";
    let Some((_, report)) = same(&["python3", "-c", program], &[]) else { return };
    assert!(report.contains("froze process"), "{report}");
}

#[test]
fn shells_fork() {
    let program = "x=$(seq 1 20000 | sort -r | tail -n 1); (y=$x; echo $((y + 1))); echo $x | { read z; echo $z; }; \
                   for i in 1 2 3; do (exit $i); echo $?; done";
    let Some((_, report)) = same(&["bash", "-c", program], &[("PALIMPSEST_FREEZE", "fork")]) else { return };
    assert!(report.contains("(bash)"), "{report}");
}

#[test]
fn a_go_program_is_refused_or_right() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/forking.go"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("forking-go");
    let mut build = Command::new("go");
    build.env("CGO_ENABLED", "1").env("GOFLAGS", "-mod=mod").env("GOPROXY", "off").env("GOTOOLCHAIN", "local");
    build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go-cache"));
    match build.args(["build", "-o"]).arg(&program).arg(source).output() {
        Ok(built) if built.status.success() => {}
        Ok(built) => return println!("skipped: go cannot build it: {}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => return println!("skipped: no go: {error}"),
    }
    let Some((stderr, report)) = same(&[program.to_str().expect("UTF-8")], &[]) else { return };
    assert!(stderr.starts_with("palimpsest: not frozen: "), "{stderr}");
    assert!(report.starts_with("palimpsest: froze nothing in process "), "{report}");
}

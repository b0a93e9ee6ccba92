//! `PALIMPSEST_KEYS`, in child processes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use palimpsest_text::key::Keys;
use palimpsest_text::{branch, static_key};

static_key! {
    static NET_IN: "environment.net.in" = off;
    static NET_OUT: "environment.net.out" = off;
    static DB: "environment.db" = on;
}

/// Is not a test, but the child's part.
#[test]
#[ignore = "run by the other tests, in a child process"]
fn child() {
    let states = [branch!(unlikely NET_IN), branch!(likely NET_OUT), branch!(likely DB)];
    assert_eq!(states, [NET_IN.is_on(), NET_OUT.is_on(), DB.is_on()]);
    let report = Keys::environment();
    println!("states {states:?}");
    println!("errors {:?}", report.map(|report| report.errors.iter().map(ToString::to_string).collect::<Vec<_>>()));
    println!("syncs {:?}", report.map(|report| report.switched.syncs));
}

/// Runs a child. Returns its standard output and standard error.
fn run(variable: Option<&OsStr>) -> (String, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "environment::child", "--nocapture", "--test-threads=1"]);
    match variable {
        Some(text) => command.env("PALIMPSEST_KEYS", text),
        None => command.env_remove("PALIMPSEST_KEYS"),
    };
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{out}{err}");
    (out, err)
}

#[test]
fn without_it_keys_are_as_defined() {
    let (out, err) = run(None);
    assert!(out.contains("states [false, false, true]") && out.contains("errors None"), "{out}");
    assert!(!err.contains("palimpsest"), "{err}");
}

#[test]
fn it_switches_before_main_in_one_batch() {
    let (out, err) = run(Some("environment.*=on, environment.net.in = off,environment.db=off".as_ref()));
    assert!(out.contains("states [false, true, false]") && out.contains("errors Some([])"), "{out}");
    assert!(out.contains(&format!("syncs Some({})", super::SYNCS)), "{out}");
    assert!(!err.contains("palimpsest"), "{err}");
}

#[test]
fn errors_are_told_and_the_rest_is_done() {
    let (out, err) = run(Some("environment.net.out=yes,environment.net.in=on,environment.none=on,=off,x".as_ref()));
    assert!(out.contains("states [true, false, true]"), "{out}");
    for line in [
        "palimpsest: PALIMPSEST_KEYS: keys can be on or off, and not \"yes\" as in \"environment.net.out=yes\"\n",
        "palimpsest: PALIMPSEST_KEYS: no key of the program is named environment.none\n",
        "palimpsest: PALIMPSEST_KEYS: \"=off\" does not name keys: an empty pattern names no key; \
         for all keys write *\n",
        "palimpsest: PALIMPSEST_KEYS: \"x\" does not say what the keys are to be; write x=on or x=off\n",
    ] {
        assert!(err.contains(line), "{line}{err}");
    }
    assert_eq!(err.matches("palimpsest: ").count(), 4, "{err}");
}

#[test]
fn bytes_that_are_no_text_are_told() {
    let (out, err) = run(Some(OsStr::from_bytes(b"environment.net.in=on\xFF")));
    assert!(out.contains("states [false, false, true]"), "{out}");
    assert!(err.contains("not valid UTF-8"), "{err}");
}

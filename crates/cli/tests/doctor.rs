//! `palimpsest doctor` in environments that lack something: what it says must match what `run` does there.
#![forbid(unsafe_code)]

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_palimpsest");

/// Runs the program under `wrapper` (a program with its arguments, or nothing), with a cache of these tests.
fn under(wrapper: &[&str], arguments: &[&str]) -> Output {
    let line = [wrapper, &[PROGRAM], arguments].concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command.env_remove("LD_PRELOAD").env_remove("PALIMPSEST_PRELOAD").env_remove("NO_COLOR").stdin(Stdio::null());
    command.output().unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// How a feature fares in a report, with the reason and the fix.
#[derive(PartialEq, Eq, Debug)]
struct Fares {
    verdict: String,
    how: String,
    why: String,
    fix: String,
}

/// Returns what doctor says of `feature`, and its exit code.
fn doctor(wrapper: &[&str], feature: &str) -> (Fares, Option<i32>) {
    let output = under(wrapper, &["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let features = report["features"].as_array().expect("a list");
    let found = features.iter().find(|found| found["feature"] == feature).expect("it is told of");
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (Fares { verdict: text("verdict"), how: text("how"), why: text("why"), fix: text("fix") }, output.status.code())
}

/// Whether `run` freezes a shell that forks.
fn freezes(wrapper: &[&str]) -> bool {
    let line = ["run", "--at", "fork", "--report", "--", "sh", "-c", "(exit 0); exit 0"];
    String::from_utf8_lossy(&under(wrapper, &line).stderr).contains("froze process")
}

/// Asserts that `run` does not freeze under `wrapper`, and that doctor knows it and what to do.
fn assert_told(wrapper: &[&str], fix: &str) {
    assert!(!freezes(wrapper), "the environment lacks nothing");
    assert_fares(wrapper, "fails", fix);
}

/// Asserts that doctor says so of `run`, and that freezes and snapshots fail.
fn assert_fares(wrapper: &[&str], run: &str, fix: &str) {
    for (feature, verdict) in [("run", run), ("freeze", "fails"), ("snapshot", "fails")] {
        let (fares, code) = doctor(wrapper, feature);
        assert_eq!((fares.verdict.as_str(), code), (verdict, Some(3)), "{feature}: {fares:?}");
        assert!(fares.fix.contains(fix), "{feature}: {fares:?}");
    }
}

/// Whether doctor and `run` agree here, so that the tests below can tell a difference.
fn works_here() -> bool {
    let (fares, _) = doctor(&[], "run");
    assert_eq!(fares.verdict == "works", freezes(&[]), "{fares:?}");
    if fares.verdict != "works" {
        println!("skipped: run does not work here anyway: {fares:?}");
    }
    fares.verdict == "works"
}

#[test]
fn doctor_and_run_agree() {
    works_here();
    // What programs started here have open, and for the list itself the first that they have not.
    let list = Command::new("ls").arg("/proc/self/fd").stdin(Stdio::null()).output().expect("coreutils are there");
    let list: Vec<usize> =
        String::from_utf8_lossy(&list.stdout).lines().map(|line| line.parse().expect("a number")).collect();
    // Numbers above the limit, which are open as well, leave no more below it.
    let others = || (0..).filter(|number| !list.contains(number));
    let limited = |more: usize| format!("ulimit -n {}; exec \"$@\"", others().nth(more - 2).expect("endless") + 1);
    assert_told(&["sh", "-c", &limited(2), "sh"], "ulimit -n");
    if works_here() {
        let few = limited(8);
        let wrapper = ["sh", "-c", &few, "sh"];
        assert!(freezes(&wrapper), "eight descriptors more suffice");
        assert_eq!(doctor(&wrapper, "run").0.verdict, "works");
    }
    assert_told(&["sh", "-c", "ulimit -f 0; exec \"$@\"", "sh"], "ulimit -f unlimited");
}

/// Fails on: the soft limit, which a freeze lifts and a snapshot does not, taken for the hard one; a limit that is
/// compared with a pack's length.
#[test]
fn a_limit_on_the_size_of_files_is_told_as_it_counts() {
    if !works_here() {
        return;
    }
    // In units of 512 or 1024 bytes.
    assert_told(&["sh", "-c", "ulimit -f 1048576; exec \"$@\"", "sh"], "ulimit -f unlimited");
    for blocks in [1000, 1_048_576] {
        let soft = format!("ulimit -S -f {blocks}; exec \"$@\"");
        let wrapper = ["sh", "-c", &soft, "sh"];
        assert!(freezes(&wrapper), "{blocks}");
        let fares = ["run", "freeze", "snapshot"].map(|feature| doctor(&wrapper, feature).0.verdict);
        assert_eq!(fares, ["works", "works", "fails"], "{blocks}");
    }
}

/// Fails on: a trial whose end nobody can tell, and that counts as failed.
#[test]
fn doctor_runs_where_the_end_of_children_is_ignored() {
    if !works_here() {
        return;
    }
    let wrapper = ["env", "--ignore-signal=CHLD"];
    assert!(freezes(&wrapper));
    assert_eq!(doctor(&wrapper, "run").0, doctor(&[], "run").0);
}

/// Installs a seccomp filter that answers `memfd_create` (319, 279 on AArch64), and executes the rest.
const FILTER: &str = r#"
import ctypes, os, platform, struct, sys
number = 319 if platform.machine() == "x86_64" else 279
code = b"".join(struct.pack("HBBI", *each) for each in
    [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, int(sys.argv[1], 0)), (0x06, 0, 0, 0x7fff0000)])
text = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HxxxxxxP", 4, ctypes.addressof(text))
c = ctypes.CDLL(None, use_errno=True)
if c.prctl(38, 1, 0, 0, 0) or c.prctl(22, 2, program, 0, 0):
    sys.exit("no filter: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[2], sys.argv[2:])
"#;

#[test]
fn a_filter_that_refuses_memory_files_is_told() {
    let Some(python) = ["/usr/bin/python3", "/usr/local/bin/python3"].into_iter().find(|path| Path::new(path).exists())
    else {
        return println!("skipped: no python3 (Debian package python3)");
    };
    if !works_here() {
        return;
    }
    // SECCOMP_RET_ERRNO with EPERM, and SECCOMP_RET_KILL_PROCESS.
    for answer in ["0x00050001", "0x80000000"] {
        // Where the kernel tells which pages are huge, memory is gathered, which needs no file.
        let (fares, _) = doctor(&[], "run");
        let run = if fares.how.contains("are gathered") { "slower" } else { "fails" };
        assert_fares(&[python, "-c", FILTER, answer], run, "memfd_create in the seccomp profile");
    }
}

#[test]
fn without_proc_it_tells_what_that_costs() {
    const HIDE: &str = "mount -t tmpfs none /proc && exec \"$@\"";
    let tried = Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", HIDE, "sh", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        return println!("skipped: no user namespace in which /proc can be hidden");
    }
    let wrapper = ["unshare", "--map-root-user", "--mount", "sh", "-c", HIDE, "sh"];
    assert_told(&wrapper, "mount");
    // A report to a file that exists says it, too, though `/proc` does not tell whether it is the program's own.
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    fs::write(&report, "").expect("the folder is ours");
    let line = format!("--report={}", report.display());
    under(&wrapper, &["run", "--at", "fork", &line, "--", "sh", "-c", "(exit 0); exit 0"]);
    let reported = fs::read_to_string(&report).expect("it is written");
    assert!(reported.contains("is /proc mounted?"), "{reported}");
    let (packs, _) = doctor(&wrapper, "packs");
    assert_eq!(packs.verdict, doctor(&[], "packs").0.verdict, "packs do not need /proc: {packs:?}");
    let text = under(&wrapper, &["doctor"]);
    let text = String::from_utf8_lossy(&text.stdout);
    for name in ["Errno", "Os {", "Err(", "Some("] {
        assert!(!text.contains(name), "names of types are for programmers: {text}");
    }
}

#[test]
fn each_way_to_fail_has_its_exit_code() {
    let code = |arguments: &[&str]| under(&[], arguments).status.code();
    assert_eq!(code(&["doctor", "--nosuch"]), Some(2));
    assert_eq!(code(&["doctor", "extra"]), Some(2));
    assert!(matches!(code(&["doctor"]), Some(0 | 1 | 3)));
    let full = OpenOptions::new().write(true).open("/dev/full").expect("a device of Linux");
    let written = Command::new(PROGRAM).arg("doctor").stdout(full).output().expect("it was built");
    assert_eq!(written.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&written.stderr).contains("cannot be written"));
    // A reader that stops is no failure.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let unread = Command::new(PROGRAM).arg("doctor").stdout(writer).output().expect("it was built");
    assert!(matches!(unread.status.code(), Some(0 | 1 | 3)), "{:?}", unread.status);
}

#[test]
fn a_report_in_a_file_has_no_colours() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("report");
    let file = fs::File::create(&path).expect("it can be made");
    Command::new(PROGRAM).arg("doctor").env("TERM", "xterm").stdout(file).status().expect("it was built");
    assert!(!fs::read(&path).expect("it was written").contains(&0x1b));
}

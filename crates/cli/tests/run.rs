//! `palimpsest run`, as its users see it.
#![forbid(unsafe_code)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// `palimpsest run` with the object that it contains, put in a folder of these tests.
fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    command.arg("run");
    for variable in ["LD_PRELOAD", "PALIMPSEST_PRELOAD", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command
}

fn run(arguments: &[&str]) -> Output {
    command().args(arguments).output().expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_program_runs_with_its_arguments_and_its_status_is_passed_on() {
    let output = run(&["--", "sh", "-c", "echo \"$0 $1\"; (exit 3); exit $?", "zero", "one two"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(3), "zero one two\n".to_owned()));
    assert_eq!(text(&output.stderr), "");
    let killed = run(&["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), None);
}

#[test]
fn a_report_tells_of_the_fork() {
    let output = run(&["--at", "fork", "--report", "--", "sh", "-c", "(exit 3); echo here"]);
    assert_eq!(text(&output.stdout), "here\n");
    assert!(text(&output.stderr).starts_with("palimpsest: froze process "), "{}", text(&output.stderr));
    let output = run(&["--at", "fork", "--dry-run", "--", "sh", "-c", "(exit 3); echo here"]);
    assert!(text(&output.stderr).starts_with("palimpsest: would freeze process "), "{}", text(&output.stderr));
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report");
    let output = run(&[&format!("--report={}", file.display()), "--at", "fork:2", "sh", "-c", "(:); (:)"]);
    assert_eq!(text(&output.stderr), "");
    assert!(fs::read_to_string(file).expect("it was written").starts_with("palimpsest: froze process "));
}

#[test]
fn what_is_preloaded_already_stays_behind_the_object() {
    let output = command()
        .env("LD_PRELOAD", "libm.so.6")
        .args(["sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .expect("the program was built");
    let value = text(&output.stdout);
    let (object, rest) = value.trim_end().split_once(':').expect("two entries");
    assert_eq!(rest, "libm.so.6");
    assert!(Path::new(object).is_absolute() && object.ends_with("/libpalimpsest_preload.so"), "{object}");
}

/// Removes the names of libraries (`DT_NEEDED`) from a 64-bit program.
fn without_libraries(mut program: Vec<u8>) -> Vec<u8> {
    const PT_DYNAMIC: u64 = 2;
    const DT_NEEDED: u64 = 1;
    const DT_DEBUG: u64 = 21;
    let number = |program: &[u8], at: usize, len: usize| {
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&program[at..at + len]);
        usize::try_from(u64::from_le_bytes(bytes)).expect("small")
    };
    let (headers, size, count) = (number(&program, 32, 8), number(&program, 54, 2), number(&program, 56, 2));
    let headers = (0..count).map(|index| headers + index * size);
    let dynamic = headers.into_iter().find(|at| number(&program, *at, 4) as u64 == PT_DYNAMIC).expect("dynamic");
    let (start, len) = (number(&program, dynamic + 8, 8), number(&program, dynamic + 32, 8));
    for entry in (start..start + len).step_by(16) {
        if number(&program, entry, 8) as u64 == DT_NEEDED {
            program[entry..entry + 8].copy_from_slice(&DT_DEBUG.to_le_bytes());
        }
    }
    program
}

#[test]
fn programs_that_cannot_be_served_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let write = |name: &str, content: &[u8], mode: u32| {
        fs::write(at(name), content).expect("it can be written");
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    let mut shell = fs::read("/bin/sh").expect("there is a shell");
    write("alone", &without_libraries(shell.clone()), 0o755);
    // No program headers (`e_phnum`): no dynamic linker.
    shell[56..58].fill(0);
    write("static", &shell, 0o755);
    // `e_machine`: RISC-V.
    shell[18] = 243;
    write("foreign", &shell, 0o755);
    write("script", format!("#!{}\n", at("static")).as_bytes(), 0o755);
    write("text", b"hello\n", 0o755);
    write("plain", b"hello\n", 0o644);
    for (name, code, reason) in [
        (at("static"), 125, "statically linked"),
        (at("foreign"), 125, "another architecture"),
        (at("script"), 125, "statically linked"),
        (at("alone"), 125, "needs no library"),
        (at("text"), 125, "neither an ELF program nor a script"),
        (at("plain"), 126, "not executable"),
        (at("missing"), 127, "not found"),
        ("no-such-program-anywhere".to_owned(), 127, "not found"),
    ] {
        let output = run(&["--", &name]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{name}: {error}");
        assert!(error.starts_with("palimpsest: ") && error.contains(reason), "{name}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

/// Copies the program in another process: a child of another test may still hold what this one has open for writing,
/// and then it cannot be executed.
fn copied(folder: &Path) -> PathBuf {
    let status = Command::new("cp").arg(env!("CARGO_BIN_EXE_palimpsest")).arg(folder).status();
    assert!(status.expect("coreutils are there").success());
    folder.join("palimpsest")
}

#[test]
fn a_copied_program_works_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = copied(folder.path());
    let cache = folder.path().join("cache");
    let run = || {
        let mut command = Command::new(&copy);
        command.env_clear().env("HOME", folder.path().join("nowhere")).env("XDG_CACHE_HOME", &cache);
        command.args(["run", "--at", "fork", "--report", "/bin/sh", "-c", "(exit 3); echo $LD_PRELOAD"]);
        command.output().expect("the program was copied")
    };
    let [first, second] = [run(), run()];
    for output in [&first, &second] {
        assert!(text(&output.stderr).starts_with("palimpsest: froze process "), "{}", text(&output.stderr));
    }
    assert_eq!(first.stdout, second.stdout, "the same file serves again");
}

#[test]
fn where_no_folder_will_do_the_object_comes_in_memory_and_leaves_no_descriptor() {
    let folder = tempfile::tempdir().expect("a folder");
    open_to_all(folder.path());
    let copy = copied(folder.path());
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").expect("it can be written");
    let Some(mut command) = as_somebody(&copy) else { return };
    for variable in ["XDG_CACHE_HOME", "HOME", "XDG_RUNTIME_DIR"] {
        command.env(variable, &blocked);
    }
    command.env_remove("LD_PRELOAD").env_remove("PALIMPSEST_PRELOAD");
    let line = "(exit 3); echo \"preload=$LD_PRELOAD\"; ls -l /proc/$$/fd /proc/self/fd";
    command.args(["run", "--at", "fork", "--report", "sh", "-c", line]);
    let output = command.output().expect("the program was copied");
    let (said, shown) = (text(&output.stderr), text(&output.stdout));
    assert!(said.starts_with("palimpsest: programs that this one executes run unfrozen: "), "{said}");
    assert!(said.contains("froze process ") && !said.contains("ld.so"), "{said}");
    assert!(shown.contains("preload=\n") && shown.contains("pipe:"), "{shown}");
    assert!(!shown.contains("memfd"), "{shown}");
}

#[test]
fn a_script_for_env_is_refused_where_the_object_comes_in_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    open_to_all(folder.path());
    let copy = copied(folder.path());
    let script = folder.path().join("script");
    fs::write(&script, "#!/usr/bin/env sh\necho ran\n").expect("it can be written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let Some(mut command) = as_somebody(&copy) else { return };
    for variable in ["XDG_CACHE_HOME", "HOME", "LD_PRELOAD", "PALIMPSEST_PRELOAD"] {
        command.env_remove(variable);
    }
    let output = command.arg("run").arg(&script).output().expect("the program was copied");
    let said = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(125), String::new()), "{said}");
    assert!(said.contains("is a script for `env`") && said.contains("XDG_CACHE_HOME"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn to_freeze_wins_over_an_inherited_off() {
    let report = |inherited: &str| {
        let mut command = command();
        command.env("PALIMPSEST_FREEZE", inherited).args(["--report", "true"]);
        text(&command.output().expect("the program was built").stderr)
    };
    assert!(report("off").contains("froze nothing in process "), "{}", report("off"));
    let kept = report("size:1G");
    assert!(kept.contains("froze nothing in process "), "{kept}");
}

/// A user that owns nothing, for root's tests; otherwise the user itself.
const SOMEBODY: u32 = 64_213;

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}

fn open_to_all(folder: &Path) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// `program`, run as somebody without rights.
fn as_somebody(program: &Path) -> Option<Command> {
    if !is_root() {
        return Some(Command::new(program));
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        println!("skipped: no setpriv (Debian package util-linux)");
        return None;
    }
    let mut command = Command::new("setpriv");
    command.args([format!("--reuid={SOMEBODY}"), format!("--regid={SOMEBODY}"), "--clear-groups".to_owned()]);
    command.arg(program);
    Some(command)
}

#[test]
fn an_object_that_the_linker_does_not_load_is_an_error_before_anything_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let object = folder.path().join("libpalimpsest_preload.so");
    let started = folder.path().join("started");
    for bytes in [&b""[..], b"no object", &fs::read("/bin/sh").expect("there is a shell")[..100]] {
        fs::write(&object, bytes).expect("it can be written");
        let script = format!("echo > {}", started.display());
        let mut command = command();
        command.env("PALIMPSEST_PRELOAD", &object).args(["sh", "-c", &script]);
        let output = command.output().expect("the program was built");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains("does not load the object") && said.contains("PALIMPSEST_PRELOAD"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(!started.exists());
    }
}

#[test]
fn a_missing_object_and_wrong_lines_are_errors() {
    let missing = |path: &Path| {
        let mut command = command();
        command.env("PALIMPSEST_PRELOAD", path).args(["true"]);
        command.output().expect("the program was built")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let output = missing(&folder.path().join("none.so"));
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("PALIMPSEST_PRELOAD"), "{}", text(&output.stderr));
    let blank = folder.path().join("with blank.so");
    fs::write(&blank, "").expect("it can be written");
    let output = missing(&blank);
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("a colon, a blank"), "{}", text(&output.stderr));
    for line in [&[][..], &["--no-freeze", "true"], &["--at", "signal:FOO", "true"], &["--nosuch", "true"]] {
        assert_eq!(run(line).status.code(), Some(2), "{line:?}");
    }
}

/// Compiles a source of one line; without a C compiler, says so and returns `None`.
fn compiled(source: &str, to: &Path, flags: &[&str]) -> Option<()> {
    let text = to.with_extension("c");
    fs::write(&text, source).expect("it can be written");
    let done = Command::new("cc").args(["-w", "-o"]).arg(to).arg(&text).args(flags).output();
    if done.is_ok_and(|output| output.status.success()) {
        return Some(());
    }
    println!("skipped: no cc");
    None
}

#[test]
fn a_program_behind_a_link_finds_the_libraries_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["lib", "links"] {
        fs::create_dir(at(name)).expect("it can be made");
    }
    let (library, program) = (at("lib/libown.so"), at("lib/program"));
    if compiled("int own(void) { return 5; }", &library, &["-shared", "-fPIC", "-Wl,-soname,libown.so"]).is_none() {
        return;
    }
    let flags = [library.to_str().expect("UTF-8"), "-Wl,-rpath,$ORIGIN"];
    compiled("int own(void); int main(void) { return own(); }", &program, &flags).expect("as before");
    std::os::unix::fs::symlink(&program, at("links/program")).expect("a link");
    let output = run(&[at("links/program").to_str().expect("UTF-8")]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(5), String::new()));
}

#[test]
fn a_parent_that_ignores_the_end_of_its_children_is_served() {
    let mut command = Command::new("env");
    command.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_palimpsest"), "run", "echo", "here"]);
    command.env_remove("LD_PRELOAD").env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    let output = command.output().expect("coreutils are there");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("here\n".to_owned(), String::new()));
}

#[test]
fn an_empty_folder_in_path_is_the_current_one() {
    let folder = tempfile::tempdir().expect("a folder");
    copied(folder.path());
    let mut command = command();
    command.current_dir(&folder).env("PATH", ":/usr/bin:/bin").args(["palimpsest", "--version"]);
    let output = command.output().expect("the program was built");
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
    assert!(text(&output.stdout).starts_with("palimpsest "), "{}", text(&output.stdout));
}

#[test]
fn what_becomes_of_broken_pipes_is_handed_on() {
    let ignored = |how: &str| {
        let mut command = Command::new("env");
        command.args([how, env!("CARGO_BIN_EXE_palimpsest"), "run", "grep", "SigIgn", "/proc/self/status"]);
        command.env_remove("LD_PRELOAD").env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
        let shown = text(&command.output().expect("coreutils are there").stdout);
        let digits = shown.trim_start_matches("SigIgn:").trim();
        // SIGPIPE is 13, and the first signal has bit 0.
        u64::from_str_radix(digits, 16).expect("a mask") >> 12 & 1
    };
    assert_eq!((ignored("--ignore-signal=PIPE"), ignored("--default-signal=PIPE")), (1, 0));
}

/// Fails on: a trial that is not told to programs below, or told without it; a program that believes neither.
#[test]
fn run_tries_for_all_below_whether_filters_above_it_end_them() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("preload").join("tests/suite/sources");
    let Ok(source) = fs::read_to_string(sources.join("inherited.c")) else {
        return println!("skipped: the program to confine is beside this package in its repository");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    if compiled(&source, &at("inherited"), &[]).is_none() {
        return;
    }
    let above = palimpsest_sys::proc::status::Status::of_this_thread().ok().and_then(|status| status.seccomp_filters);
    let Some(above) = above else { return println!("skipped: this kernel does not count filters") };
    let deadly = "palimpsest: not frozen: a seccomp filter would end the program for msync";
    for (action, suffix, told) in [
        ("refuse", ",tried", None),
        ("unit", ",tried,pkey_mprotect,mincore", None),
        ("needed", ",tried,msync,mincore", Some(deadly)),
    ] {
        let report = at(action);
        let mut command = Command::new(at("inherited"));
        command.args([action, env!("CARGO_BIN_EXE_palimpsest"), "run", "--at", "fork"]);
        command.arg(format!("--report={}", report.display()));
        command.args(["--", "sh", "-c", "echo $PALIMPSEST_FILTERS; exec \"$0\" works"]).arg(at("inherited"));
        command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
        for variable in ["LD_PRELOAD", "PALIMPSEST_PRELOAD", "PALIMPSEST_FILTERS", "XDG_RUNTIME_DIR"] {
            command.env_remove(variable);
        }
        let output = command.output().expect("it was compiled");
        if output.status.code() == Some(77) {
            return println!("skipped: this kernel takes no filters");
        }
        let (shown, error) = (text(&output.stdout), text(&output.stderr));
        assert_eq!((output.status.code(), shown), (Some(0), format!("{}{suffix}\nworked\n", above + 1)), "{error}");
        let report = fs::read_to_string(report).unwrap_or_default();
        let lines = format!("{error}{report}");
        let is_served = ["froze process ", "gathered memory of process "].iter().any(|word| lines.contains(word));
        assert_eq!(is_served, told.is_none(), "{lines}");
        assert!(told.is_none_or(|told| lines.contains(told)), "{lines}");
    }
}

/// Fails on: a child that asks the linker as process 1 of a namespace, which ends with it.
#[test]
fn a_pid_namespace_without_processes_is_left_for_the_program() {
    let below = |options: &[&str]| {
        let mut below = Command::new("unshare");
        below.args(["--map-root-user", "--pid"]).args(options).args([env!("CARGO_BIN_EXE_palimpsest"), "run"]);
        below.env_remove("PALIMPSEST_PRELOAD").env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
        below.args(["--", "true"]).output().expect("unshare is there")
    };
    let can_be_made = Command::new("unshare").args(["--map-root-user", "--pid", "true"]).output();
    if !can_be_made.is_ok_and(|output| output.status.success()) {
        return println!("skipped: no user namespace");
    }
    let refused = below(&[]);
    assert!(text(&refused.stderr).contains("--fork"), "{}", text(&refused.stderr));
    assert_eq!((refused.status.code(), text(&refused.stderr).lines().count()), (Some(125), 1));
    let served = below(&["--fork"]);
    assert_eq!((served.status.code(), text(&served.stderr).as_str()), (Some(0), ""));
}

/// Fails on: a program that ends at its start, without a word of what would help.
#[test]
fn a_shared_runtime_of_address_sanitizer_is_a_reason_to_refuse() {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("empty.c"), folder.path().join("empty"));
    fs::write(&source, "int main(void) { return 0; }").expect("the folder is ours");
    // GCC links the shared one.
    let built = Command::new("gcc").args(["-fsanitize=address", "-o"]).args([&program, &source]).output();
    let is_built = built.is_ok_and(|output| output.status.success());
    if !is_built || !Command::new(&program).status().expect("it was built").success() {
        return println!("skipped: no gcc with AddressSanitizer");
    }
    let run = |options: &str| command().arg("--").arg(&program).env("ASAN_OPTIONS", options).output().expect("built");
    let refused = run("");
    let said = text(&refused.stderr);
    assert!(said.contains("libasan.so") && said.contains("ASAN_OPTIONS=verify_asan_link_order=0"), "{said}");
    assert_eq!((refused.status.code(), said.lines().count()), (Some(125), 1));
    let served = run("verify_asan_link_order=0");
    assert_eq!((served.status.code(), text(&served.stderr).as_str()), (Some(0), ""));
}

/// Runs `palimpsest run` with these arguments from a shell, whose redirections come behind them.
fn from_a_shell(arguments: &[&str], redirections: &str) -> Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" run \"$@\" {redirections}"), env!("CARGO_BIN_EXE_palimpsest")]);
    for variable in ["LD_PRELOAD", "PALIMPSEST_PRELOAD", "XDG_RUNTIME_DIR"] {
        shell.env_remove(variable);
    }
    shell.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    shell.args(arguments).output().expect("a shell")
}

/// Fails on: a report in a file that a program has opened under the number of the descriptor; a program that is not
/// frozen because it was started without that.
#[test]
fn programs_below_report_to_the_descriptor_only_while_it_is_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let flags = ["--report=fd:3", "--at", "fork", "--pays-after", "any", "--pause", "none", "--quiet"];
    // With a megabyte to freeze.
    let fork = "x=aaaaaaaa; while [ ${#x} -lt 1000000 ]; do x=$x$x; done; (:); \
        grep -c palimpsest-frozen /proc/$$/maps >&2; :";
    for (line, data) in [
        (format!("exec 3>'{}'; sh -c '{fork}'; :", at("data")), "data"),
        (format!("exec 3>'{}'; exec sh -c '{fork}'", at("own")), "own"),
        (format!("sh -c '{fork}' 3>&-; :"), "none"),
    ] {
        let log = at(&format!("log-{data}"));
        let output = from_a_shell(&[&flags, &["--", "sh", "-c", &line][..]].concat(), &format!("3>'{log}'"));
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{told}");
        assert!(told.trim().parse::<u32>().is_ok_and(|mappings| mappings > 0), "{line}: {told}");
        assert_eq!(fs::read_to_string(at(data)).unwrap_or_default(), "", "{line}");
    }
    // Nothing was there from the beginning: that is told once.
    let output = from_a_shell(&[&flags, &["--", "sh", "-c", &format!("sh -c '{fork}'; :")][..]].concat(), "3>&-");
    let told = text(&output.stderr);
    let (complaint, mappings) = told.trim().split_once('\n').expect("two lines");
    assert!(
        complaint.contains("=fd:3: no such descriptor is open") && mappings.parse::<u32>().is_ok_and(|n| n > 0),
        "{told}"
    );
    // Who leaves it alone reports there, as does what it executes.
    let log = at("log");
    let line = "(:); sh -c '(:); :'; :";
    let output = from_a_shell(&[&flags, &["--", "sh", "-c", line][..]].concat(), &format!("3>'{log}'"));
    let told = fs::read_to_string(&log).expect("the shell has made it");
    assert_eq!(
        (told.matches("palimpsest: froze process ").count(), text(&output.stderr)),
        (2, String::new()),
        "{told}"
    );
}

/// Fails on: `/dev/null`, which Rust's runtime opens, in place of a stream that was closed.
#[test]
fn a_stream_that_is_closed_stays_so() {
    for (number, redirection) in [(0, "0<&-"), (1, ">&-"), (2, "2>&-")] {
        let line = format!("test ! -e /proc/$$/fd/{number}");
        let output = from_a_shell(&["--", "sh", "-c", &line], redirection);
        assert_eq!(output.status.code(), Some(0), "{redirection}: {}", text(&output.stderr));
    }
    let output = from_a_shell(&["--", "sh", "-c", "for n in 0 1 2; do test -e /proc/$$/fd/$n || exit 1; done"], "");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// Fails on: a dry run of which nobody hears.
#[test]
fn an_empty_place_for_reports_is_none() {
    let mut command = command();
    command.env("PALIMPSEST_REPORT", "").args(["--at", "fork", "--dry-run", "sh", "-c", "(exit 3); exit 0"]);
    let told = text(&command.output().expect("the program was built").stderr);
    assert!(told.starts_with("palimpsest: would freeze process "), "{told}");
}

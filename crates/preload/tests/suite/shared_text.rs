//! Programs whose text is shared, and real programs run from copies of their text.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::common::{PLAIN, Ran, compile, frozen, localized, object, run, started};

fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/shared_text.c");
    PROGRAM.get_or_init(|| compile(Path::new(source), "shared_text", &["-no-pie"])).as_deref()
}

/// A user's own folder, so that nobody else's copies are found.
struct User(tempfile::TempDir);

impl User {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn run(&self, command: &[&str], text: &str, freeze: &str) -> Ran {
        let folder = self.0.path().to_str().expect("UTF-8");
        let variables = [("PALIMPSEST_TEXT", text), ("PALIMPSEST_FREEZE", freeze), ("XDG_RUNTIME_DIR", folder)];
        run(command, frozen(object().to_str().expect("UTF-8"), &variables))
    }

    /// The same, as `palimpsest run` starts it: its standard error tells how much of its text is localised, and those
    /// of the programs that it executes tell nothing.
    fn report(&self, command: &[&str], text: &str, freeze: &str) -> Ran {
        let folder = self.0.path().to_str().expect("UTF-8");
        let variables = [("PALIMPSEST_TEXT", text), ("PALIMPSEST_FREEZE", freeze), ("XDG_RUNTIME_DIR", folder)];
        started(command, &[&variables[..], &[("PALIMPSEST_REPORT", "stderr")]].concat())
    }

    /// A process that waits.
    fn start(&self, program: &Path) -> (Child, String) {
        let mut command = Command::new(program);
        command.arg("wait").env("LD_PRELOAD", object()).env("XDG_RUNTIME_DIR", self.0.path());
        command.envs([("PALIMPSEST_TEXT", "local,shared,copies"), ("PALIMPSEST_FREEZE", "off")]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).expect("readable");
        (child, line)
    }
}

fn end((mut child, line): (Child, String)) -> String {
    child.stdin.take().expect("piped").write_all(b"\n").expect("it lives");
    assert!(child.wait().expect("a child").success());
    line
}

#[test]
fn unmodified_programs_share_their_text() {
    let Some(program) = program() else { return };
    let user = User::new();
    let first = user.start(program);
    let second = user.start(program);
    let other = User::new();
    let elsewhere = other.start(program);
    let (first, second, elsewhere) = (end(first), end(second), end(elsewhere));
    assert!(first.contains("shared"), "{first}");
    assert_eq!(first, second);
    assert_ne!(first, elsewhere, "who names another folder has another copy");
}

#[test]
fn what_a_program_gets_for_sharing_is_read_only_closed_by_exec_and_must_be_asked_for() {
    let Some(program) = program().and_then(Path::to_str) else { return };
    let lines = |copies: usize| {
        format!("program: {copies} descriptors, 0 can write\nchild: {copies} descriptors, 0 can write\n")
    };
    let user = User::new();
    for (text, copies) in [("local,shared,copies", 1), ("local,copies", 0), ("off", 0)] {
        let ran = user.run(&[program], text, "off");
        let expected = lines(copies) + "executed: 0 descriptors, 0 can write\n";
        let told = ran.stdout.split_once('\n').map_or("", |(_, told)| told);
        assert_eq!((told, ran.status), (expected.as_str(), Some(0)), "{text}: {}", ran.stderr);
    }
    let private = user.run(&[program], "local,copies", "off");
    assert!(private.stdout.contains("shared"), "in memory all the same: {}", private.stdout);
}

#[test]
fn a_folder_that_others_may_enter_is_told_and_the_text_is_not_shared() {
    use std::os::unix::fs::PermissionsExt;
    let Some(program) = program().and_then(Path::to_str) else { return };
    let user = User::new();
    let folder = user.0.path().join("palimpsest-numa");
    std::fs::create_dir(&folder).expect("made");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).expect("own");
    let ran = user.run(&[program], "local,shared,copies", "off");
    let says = ran.stderr.contains("mode 755") && ran.stderr.contains("this process has a copy of its own");
    assert!(says && ran.stderr.lines().count() == 1, "{}", ran.stderr);
    assert!(ran.stdout.contains("shared") && ran.stdout.contains("program: 0 descriptors"), "{}", ran.stdout);
}

#[test]
fn a_folder_that_is_full_or_read_only_is_told_and_the_text_is_not_shared() {
    let Some(program) = program().and_then(Path::to_str) else { return };
    let user = User::new();
    let folder = user.0.path().to_str().expect("UTF-8");
    for options in ["size=4k,nr_inodes=2", "size=4k,ro"] {
        // In a mount space of its own. With two inodes there is room for the folder, and for nothing in it.
        let mount = format!("mount -t tmpfs -o mode=700,{options} none {folder}");
        let tried = run(&["unshare", "-rm", "sh", "-c", &mount], PLAIN);
        if tried.status != Some(0) {
            return println!("skipped: no mount space: {}", tried.stderr);
        }
        let ran = user.run(
            &["unshare", "-rm", "sh", "-c", &format!("{mount} && exec {program}")],
            "local,shared,copies",
            "off",
        );
        let says = ran.stderr.contains("this process has a copy of its own") && ran.stderr.lines().count() == 1;
        assert!(says && ran.status == Some(0), "{options}: {}", ran.stderr);
        let is_own = ran.stdout.contains("shared") && ran.stdout.contains("program: 0 descriptors");
        assert!(is_own, "{options}: {}", ran.stdout);
    }
}

/// Runs `command` plainly, with its text as the variable says, and so and frozen: the output is the same, and at least
/// as many MiB of text are localised.
fn same(command: &[&str], text: &str, mebibytes: u64) {
    let plain = run(command, PLAIN);
    if plain.status == Some(127) {
        return println!("skipped: {} is not installed", command[0]);
    }
    let user = User::new();
    for freeze in ["off", "fork"] {
        let ran = user.report(command, text, freeze);
        let (told, expected) = ((ran.stdout, ran.status), (plain.stdout.clone(), plain.status));
        assert_eq!(told, expected, "{command:?} {freeze}: {}", ran.stderr);
        let kib = localized(&ran.stderr);
        println!("{} with {text}: {kib} KiB", command[0]);
        assert!(kib > 0 && kib >= mebibytes << 10, "{command:?} {freeze}: {kib} KiB\n{}", ran.stderr);
    }
}

/// How programs that execute others are localised: all of each, in copies that they share.
const ALL: &str = "local,all,heirs,shared";

#[test]
fn programs_of_many_kinds_do_the_same() {
    let script = "let n=0;for(let i=0;i<2000;i++)n+=new Function('a','return a*2')(i);console.log(n)";
    same(&["node", "-e", script], "local,heirs,shared", 1);
    let script = "my %h; $h{$_ % 97} .= $_ for 1..20000; print length join '', map { $h{$_} } sort keys %h";
    same(&["perl", "-e", script], ALL, 1);
    same(&["bash", "-c", "for n in 1 2 3; do (echo $n | tr 1 2); done"], ALL, 1);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/big_text.c");
    for (name, flags) in [("stripped", &["-s"][..]), ("static", &["-static"]), ("static_pie", &["-static-pie"])] {
        let Some(program) = compile(Path::new(source), &format!("big_text_{name}"), flags) else { continue };
        let user = User::new();
        let ran = user.report(&[program.to_str().expect("UTF-8")], "local,shared,copies", "off");
        // Static programs load no object.
        let in_memory = usize::from(name == "stripped");
        let expected = format!("text in memory: {in_memory}\nthread: right\nchild: 0\n");
        assert_eq!((ran.stdout, ran.status), (expected, Some(0)), "{name}: {}", ran.stderr);
        assert_eq!(localized(&ran.stderr) >= 6 << 10, name == "stripped", "{name}: {}", ran.stderr);
    }
}

#[test]
fn the_rust_compiler_does_the_same() {
    let told = run(&["rustc", "--print", "sysroot"], PLAIN);
    let compiler = Path::new(told.stdout.trim()).join("bin/rustc");
    if told.status != Some(0) || !compiler.is_file() {
        return println!("skipped: no rustc: {}", told.stderr);
    }
    // Most of its text is that of a library which is loaded with it.
    same(&[compiler.to_str().expect("UTF-8"), "-vV"], "local", 50);
}

/// The launcher of Java has little text; its machine is loaded later and stays in its file.
#[test]
fn java_does_the_same() {
    same(&["java", "-Xint", "--version"], ALL, 1);
}

/// A program of Go that uses C has a dynamic linker.
#[test]
fn go_with_c_does_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("threads");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/threads.go");
    let mut build = Command::new("go");
    build.env("GOPROXY", "off").env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1");
    match build.current_dir(&folder).arg("build").arg("-o").arg(&program).arg(source).output() {
        Ok(built) if built.status.success() => same(&[program.to_str().expect("UTF-8")], ALL, 1),
        Ok(built) => println!("skipped: go cannot build with cgo: {}", String::from_utf8_lossy(&built.stderr)),
        Err(error) => println!("skipped: no go: {error}"),
    }
}

#[test]
fn part_of_pythons_own_tests_passes() {
    let tests = ["test_dict", "test_struct", "test_bisect", "test_heapq", "test_fork1", "test_json", "test_zlib"];
    let command = |python: &'static str| [&[python, "-m", "test", "-q"], &tests[..]].concat();
    let has_tests =
        |python: &&str| run(&[python, "-c", "import test.support, test.test_dict"], PLAIN).status == Some(0);
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(has_tests) else {
        return println!("skipped: no python3 with its tests: Debian package libpython3-testsuite");
    };
    let user = User::new();
    let ran = user.report(&command(python), ALL, "off");
    assert_eq!(ran.status, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(localized(&ran.stderr) >= 2 << 10, "{}", ran.stderr);
}

#[test]
fn sqlite_computes_the_same() {
    let script = "create table t(a integer primary key, b text, c real);\
        with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000)\
          insert into t select i, printf('%05d-%d', (i * 7919) % 20000, i % 13), i / 3.0 from n;\
        create index byb on t(b); create index byc on t(c) where a % 3 = 0; analyze;\
        select count(*), sum(length(b)), round(total(c), 3) from t;\
        select b, count(*) over (partition by b % 7 order by a) from t where b between '00100' and '00120' order by b;\
        update t set b = upper(hex(b)) where a % 11 = 0; delete from t where a % 5 = 0;\
        select substr(b, 1, 6), max(c) from t group by 1 order by 2 desc limit 9;\
        select json_group_array(json_object('a', a, 'b', b)) from (select a, b from t order by c desc limit 20);\
        with recursive f(a, b) as (select 0, 1 union all select b, a + b from f limit 50) select max(a) from f;\
        pragma integrity_check;";
    same(&["sqlite3", ":memory:", script], ALL, 1);
}

#[test]
fn gdb_tells_names_in_a_core_dump_of_exchanged_text() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/hot.c");
    let flags = ["-g", "-fno-toplevel-reorder", "-no-pie"];
    let Some(program) = compile(Path::new(source), "hot_core", &flags) else { return };
    if run(&["gdb", "--version"], PLAIN).status != Some(0) {
        return println!("skipped: no gdb");
    }
    let program = program.to_str().expect("UTF-8");
    let user = User::new();
    let core = user.0.path().join("core");
    let (core, folder) = (core.to_str().expect("UTF-8"), user.0.path().to_str().expect("UTF-8"));
    let lines = [
        "set startup-with-shell off".to_owned(),
        "set environment PALIMPSEST_TEXT local,copies".to_owned(),
        "set environment PALIMPSEST_FREEZE off".to_owned(),
        format!("set environment XDG_RUNTIME_DIR {folder}"),
        format!("set environment LD_PRELOAD {}", object().display()),
        "break hot".to_owned(),
        "run short".to_owned(),
        "info proc mappings".to_owned(),
        format!("generate-core-file {core}"),
        "kill".to_owned(),
    ];
    let mut command = vec!["gdb", "-q", "-batch"];
    lines.iter().for_each(|line| command.extend(["-ex", line.as_str()]));
    command.push(program);
    let made = run(&command, PLAIN);
    assert!(made.stdout.contains("/memfd:palimpsest-constant"), "{}{}", made.stdout, made.stderr);
    let told = run(&["gdb", "-q", "-batch", "-ex", "backtrace", program, core], PLAIN);
    assert!(told.stdout.contains("hot (") && told.stdout.contains("main ("), "{}{}", told.stdout, told.stderr);
}

#[test]
fn perf_tells_names_in_exchanged_text() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/hot.c");
    let flags = ["-fno-toplevel-reorder", "-no-pie"];
    let Some(program) = compile(Path::new(source), "hot_perf", &flags) else { return };
    let user = User::new();
    let data = user.0.path().join("perf.data");
    let (data, program) = (data.to_str().expect("UTF-8"), program.to_str().expect("UTF-8"));
    let tried = run(&["perf", "record", "-q", "-e", "cpu-clock", "-o", data, "true"], PLAIN);
    if tried.status != Some(0) {
        return println!("skipped: perf does not record: {}", tried.stderr);
    }
    let folder = format!("XDG_RUNTIME_DIR={}", user.0.path().display());
    let preload = format!("LD_PRELOAD={}", object().display());
    let variables = ["PALIMPSEST_TEXT=local,copies", "PALIMPSEST_FREEZE=off", &folder, &preload];
    let record = ["perf", "record", "-q", "-e", "cpu-clock", "-o", data, "env"];
    let ran = run(&[&record[..], &variables, &[program]].concat(), PLAIN);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    let told = run(&["perf", "report", "--stdio", "-i", data, "--sort", "symbol", "--comm", "hot_perf"], PLAIN);
    let is_hot = |line: &str| line.contains("[.] hot") && line.contains('%');
    assert!(told.stdout.lines().any(is_hot), "{}{}", told.stdout, told.stderr);
}

/// Fails on: a core dump of the kernel's in which gdb finds no text, since the exchanged one is in no file.
#[test]
fn gdb_tells_names_in_the_kernels_own_core_dump() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/hot.c");
    let flags = ["-g", "-fno-toplevel-reorder", "-no-pie"];
    let Some(program) = compile(Path::new(source), "hot_dumped", &flags) else { return };
    if run(&["gdb", "--version"], PLAIN).status != Some(0) {
        return println!("skipped: no gdb");
    }
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        return println!("skipped: core dumps go elsewhere (kernel.core_pattern): {}", pattern.trim());
    }
    let program = program.to_str().expect("UTF-8");
    for text in ["local,copies", "local,copies,shared", "local,all"] {
        let user = User::new();
        let folder = user.0.path().to_str().expect("UTF-8");
        let line = format!("cd {folder} && ulimit -c unlimited && exec {program} abort");
        let ran = user.report(&["sh", "-c", &line], text, "off");
        assert!(localized(&ran.stderr) >= 6 << 10, "{text}: {}", ran.stderr);
        let core = user.0.path().join("core");
        let named = std::fs::read_dir(user.0.path()).expect("there").filter_map(|entry| Some(entry.ok()?.path()));
        let found =
            named.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("core")));
        let Some(found) = found.max() else {
            return println!("skipped: no core dump: {}", ran.stderr);
        };
        std::fs::rename(found, &core).expect("this test's own");
        let told = run(&["gdb", "-q", "-batch", "-ex", "backtrace", program, core.to_str().expect("UTF-8")], PLAIN);
        let is_told = told.stdout.contains("hot (rounds") && told.stdout.contains("main (");
        assert!(is_told, "{text}: {}{}", told.stdout, told.stderr);
    }
}

/// Fails on: text that is at the same place each time.
#[test]
fn addresses_stay_random() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/hot.c");
    let flags = ["-fno-toplevel-reorder", "-fpie", "-pie"];
    let Some(program) = compile(Path::new(source), "hot_random", &flags) else { return };
    let program = program.to_str().expect("UTF-8");
    let plain: Vec<String> = (0..3).map(|_| run(&[program, "where"], PLAIN).stdout).collect();
    if plain.iter().all(|place| *place == plain[0]) {
        return println!("skipped: addresses are not random here: {plain:?}");
    }
    let user = User::new();
    let places: Vec<String> = (0..3)
        .map(|_| {
            let ran = user.report(&[program, "where"], "local,all,shared", "off");
            assert!(localized(&ran.stderr) >= 8 << 10, "{}", ran.stderr);
            ran.stdout
        })
        .collect();
    // One of 2²⁸ places each (`mmap_rnd_bits`).
    assert!(places.iter().any(|place| *place != places[0]), "{places:?}");
}

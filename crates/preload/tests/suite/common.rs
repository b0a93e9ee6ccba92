//! Builds small programs, and runs them with and without the object.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs};

use tempfile::TempDir;

/// Returns the object, which Cargo has built beside this test.
pub(crate) fn object() -> PathBuf {
    let own = env::current_exe().expect("a test has a path");
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join("libpalimpsest_preload.so"));
    found.into_iter().find(|path| path.is_file()).expect("Cargo builds the cdylib for its tests")
}

/// Compiles `source` with the machine's C compiler; if it has none, says so and returns `None`.
pub(crate) fn compile(source: &Path, name: &str, flags: &[&str]) -> Option<PathBuf> {
    compile_with("cc", source, name, flags)
}

/// The same with another compiler.
pub(crate) fn compile_with(compiler: &str, source: &Path, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    // Two tests may build the same program.
    let test = std::thread::current().id();
    let (program, made) = (folder.join(name), folder.join(format!("{name}-{}-{test:?}", std::process::id())));
    let mut command = Command::new(compiler);
    command.args(["-O1", "-w", "-pthread", "-o"]).arg(&made).arg(source).args(flags);
    match command.output() {
        Ok(output) if output.status.success() => {
            // Another run of the tests may be executing the old one, which stays as it is.
            fs::rename(&made, &program).expect("the folder is ours");
            Some(program)
        }
        Ok(output) => {
            println!("skipped: {compiler} cannot build it: {}", String::from_utf8_lossy(&output.stderr));
            None
        }
        Err(error) => {
            println!("skipped: no {compiler}: {error}");
            None
        }
    }
}

/// Returns the program with all scenarios.
pub(crate) fn scenarios() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let build = || {
        compile(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/scenarios.c")), "scenarios", &[])
    };
    PROGRAM.get_or_init(build).as_deref()
}

/// Returns the same, statically linked.
pub(crate) fn static_scenarios() -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/scenarios.c");
    compile(Path::new(source), "scenarios-static", &["-static"])
}

/// Returns the same, linked with the object, and the folder that it is in.
pub(crate) fn linked_scenarios() -> Option<(TempDir, PathBuf)> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/sources/scenarios.c");
    // Others must be able to read the place it is loaded from: a copy of the object beside the program.
    let folder = tempfile::Builder::new().permissions(PermissionsExt::from_mode(0o755)).tempdir().ok()?;
    let [copy, program] = ["libpalimpsest_preload.so", "scenarios"].map(|name| folder.path().join(name));
    fs::copy(object(), &copy).ok()?;
    let built = compile(Path::new(source), "scenarios-linked", &["-Wl,--no-as-needed", copy.to_str()?])?;
    // With a program: a child that another test starts meanwhile would have this copy open for writing, and the kernel
    // would not execute it (ETXTBSY).
    let copied = Command::new("cp").arg(built).arg(&program).status().ok()?;
    copied.success().then_some((folder, program))
}

/// Builds a shared object from `sources/NAME.c`, to stand before or behind ours.
pub(crate) fn other_object(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/suite/sources/{name}.c"));
    compile(&source, &format!("{name}.so"), &["-shared", "-fPIC"])
}

/// The result of a run.
pub(crate) struct Ran {
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) status: Option<i32>,
    /// The object's report; empty if there is none.
    pub(crate) report: String,
}

/// One way to run programs.
#[derive(Clone, Copy)]
pub(crate) struct Way<'a> {
    /// The object comes first, if it is there at all.
    pub(crate) preload: &'a str,
    pub(crate) variables: &'a [(&'a str, &'a str)],
}

/// Without the object.
pub(crate) const PLAIN: Way<'_> = Way { preload: "", variables: &[] };

/// Runs `command` in one way. `timeout(1)` ends a run that does not end, and its status shows that.
pub(crate) fn run(command: &[&str], way: Way<'_>) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let mut process = Command::new("timeout");
    process.args(["--kill-after=5", "900", "env"]);
    // Set for the program, not for `timeout`.
    if !way.preload.is_empty() {
        process.arg(format!("LD_PRELOAD={}", way.preload));
    }
    process.args(way.variables.iter().map(|(name, value)| format!("{name}={value}")));
    process.args(command);
    // These programs are small, and are here to show what differs when they are frozen.
    process.env("PALIMPSEST_REPORT", &report).env("PALIMPSEST_PAYS_AFTER", "any");
    // They are frozen at their first fork, unless they say otherwise.
    process.env("PALIMPSEST_PAUSE", "none");
    let Output { status, stdout, stderr } = process.output().expect("coreutils are there");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ran {
        stdout: text(stdout),
        stderr: text(stderr),
        status: status.code(),
        report: fs::read_to_string(report).unwrap_or_default(),
    }
}

/// Returns the object alone, with settings.
pub(crate) fn frozen<'a>(object: &'a str, variables: &'a [(&'a str, &'a str)]) -> Way<'a> {
    Way { preload: object, variables }
}

/// Returns how much text a program's report on standard error says to be in copies or in huge pages of its file, in
/// KiB: together, if it tells that of several programs.
pub(crate) fn localized(stderr: &str) -> u64 {
    let told = |line: &str| {
        let line = line.strip_prefix("palimpsest: ")?;
        let (number, _) = line.split_once(" KiB of text on node ")?;
        number.parse::<u64>().ok()
    };
    stderr.lines().filter_map(told).sum()
}

/// Returns the number of slices in the report.
pub(crate) fn slices(report: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix("slices"));
    let line = line.unwrap_or_else(|| panic!("no slices are told: {report:?}"));
    line.split(',').next().and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// Returns the lines on standard error that are not this object's.
pub(crate) fn own_lines(stderr: &str) -> String {
    stderr.lines().filter(|line| !line.starts_with("palimpsest: ")).map(|line| format!("{line}\n")).collect()
}

/// Runs `command` as `palimpsest run` starts it: with the object, variables, and who is the first process. A shell,
/// without the object, becomes it.
pub(crate) fn started(command: &[&str], variables: &[(&str, &str)]) -> Ran {
    let script = format!("PALIMPSEST_STARTED={STARTED} LD_PRELOAD=\"$0\" exec \"$@\"");
    let object = object();
    let shell = ["sh", "-c", &script, object.to_str().expect("UTF-8")];
    run(&[&shell, command].concat(), Way { preload: "", variables })
}

/// Runs a scenario plainly and in a way, and asserts that both print the same and end alike.
pub(crate) fn assert_same(scenario: &str, variables: &[(&str, &str)]) -> Option<Ran> {
    let program = scenarios()?.to_str().expect("a path in UTF-8");
    let object = object();
    let plain = run(&[program, scenario], PLAIN);
    let ran = run(&[program, scenario], frozen(object.to_str().expect("a path in UTF-8"), variables));
    assert_eq!(ran.stdout, plain.stdout, "{scenario} {variables:?}: {}{}", ran.stderr, ran.report);
    assert_eq!((ran.status, plain.status), (Some(0), Some(0)), "{scenario} {variables:?}: {}", ran.stderr);
    Some(ran)
}

/// What `palimpsest run` says of a process, as text for a shell that is about to become the program: its number and
/// when it was started. A shell's name has no blank.
pub(crate) const STARTED: &str = "$$-$(cut -d' ' -f22 /proc/$$/stat)";

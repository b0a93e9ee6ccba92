//! Test programs: built by cargo, named by its messages, and run two at a time.

use std::{
    fs,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    kernel_log::KernelLog,
    process,
    step::{LeftOut, StepError},
    workspace::Workspace,
};

/// Time limit for one program; a program that hangs must not stop the rest of the run.
const LIMIT: Duration = Duration::from_secs(3600);
/// Time from which a program is listed among the slowest.
const SLOW: Duration = Duration::from_secs(20);

/// A test program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TestProgram {
    /// `package.target`, for messages.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The folder of its package, where cargo would start it.
    pub(crate) folder: PathBuf,
    /// Its arguments.
    pub(crate) arguments: Vec<&'static str>,
}

impl TestProgram {
    pub(crate) fn new(name: String, path: PathBuf, folder: PathBuf) -> Self {
        Self { name, path, folder, arguments: Vec::new() }
    }
}

/// Returns the `cargo test` of the step `test`. Whoever asks cargo for a part of it alone gets other features, and has
/// Cranelift compiled again.
pub(crate) fn everything(workspace: &Workspace) -> Command {
    let mut test = process::cargo(workspace);
    test.args(["test", "--workspace", "--all-features"]);
    test
}

/// Makes `test`, a `cargo test` with packages and features, build its programs, and returns them.
pub(crate) fn build(test: &mut Command) -> Result<Vec<TestProgram>, StepError> {
    test.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    process::announce(test);
    let programs = named(&process::capture(test.stderr(Stdio::inherit()))?)?;
    if programs.is_empty() { Err(StepError::NoPrograms) } else { Ok(programs) }
}

/// Returns the test programs among cargo's JSON messages, one message on each line.
fn named(messages: &str) -> Result<Vec<TestProgram>, StepError> {
    let mut programs = Vec::new();
    for line in messages.lines() {
        let message: serde_json::Value =
            serde_json::from_str(line).map_err(|_| StepError::CargoOutput { found: line.to_owned() })?;
        if message["profile"]["test"] != true {
            continue;
        }
        let (Some(path), Some(target)) = (message["executable"].as_str(), message["target"]["name"].as_str()) else {
            continue;
        };
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().unwrap_or(manifest);
        // The folder of the package is its short name: `text` for palimpsest-text.
        let package = folder.file_name().unwrap_or_default().to_string_lossy();
        let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
        let name = if kind == "lib" { format!("{package}.lib") } else { format!("{package}.{target}") };
        programs.push(TestProgram::new(name, path.into(), folder.to_owned()));
    }
    Ok(programs)
}

/// Makes `programs` skip the tests that `left_out` names, as `package.program::test`.
pub(crate) fn shorten(programs: &mut [TestProgram], left_out: &[LeftOut]) {
    for (name, test) in left_out.iter().filter_map(|left| left.what.split_once("::")) {
        for program in programs.iter_mut().filter(|program| program.name == name) {
            if program.arguments.is_empty() {
                // Without it, `--skip` leaves out every test whose name contains this one.
                program.arguments.push("--exact");
            }
            program.arguments.extend(["--skip", test]);
        }
    }
}

/// Runs `programs`, those named by `first` before the others, two at a time and with these variables. Returns a remark
/// on the slow ones.
pub(crate) fn run(
    workspace: &Workspace,
    programs: &[TestProgram],
    first: &[&str],
    variables: &[(&str, &str)],
) -> Result<String, StepError> {
    let place = |program: &TestProgram| first.iter().position(|name| *name == program.name).unwrap_or(first.len());
    let mut waiting: Vec<&TestProgram> = programs.iter().collect();
    // The next one is taken from the end.
    waiting.sort_by_key(|program| std::cmp::Reverse(place(program)));
    let waiting = Mutex::new(waiting);
    let ended = Mutex::new(Vec::new());
    let lane = || {
        loop {
            let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(program) = next else { break };
            let result = run_one(workspace, program, variables);
            ended.lock().unwrap_or_else(PoisonError::into_inner).push((program.name.clone(), result));
        }
    };
    thread::scope(|scope| {
        scope.spawn(lane);
        lane();
    });
    let (mut failed, mut slow) = (Vec::new(), Vec::new());
    for (name, result) in ended.into_inner().unwrap_or_else(PoisonError::into_inner) {
        match result {
            Ok(processor) if processor >= SLOW => slow.push((processor, name)),
            Ok(_) => {}
            Err(error) => failed.push(format!("{name}: {}", crate::step::chain(&error))),
        }
    }
    if !failed.is_empty() {
        return Err(StepError::Programs { failed, total: programs.len() });
    }
    slow.sort_by(|a, b| b.cmp(a));
    let slow: Vec<String> = slow.iter().map(|(time, name)| format!("{name} {} s", time.as_secs())).collect();
    let lead = format!("{} programs", programs.len());
    Ok(if slow.is_empty() { lead } else { format!("{lead}; of CPU: {}", slow.join(", ")) })
}

/// Runs `program` as cargo would, shows its output when it has ended, and returns its processor time.
fn run_one(workspace: &Workspace, program: &TestProgram, variables: &[(&str, &str)]) -> Result<Duration, StepError> {
    let folder = workspace.separate_target(crate::runner::FOLDER).join("programs");
    let log = folder.join(&program.name);
    let file = |action| {
        let path = log.clone();
        move |source| StepError::File { action, path, source }
    };
    fs::create_dir_all(&folder).map_err(file("make the folder of"))?;
    let output = fs::File::create(&log).map_err(file("write"))?;
    let mut command = process::test_program(workspace, &program.path, &program.folder);
    command.args(&program.arguments).envs(variables.iter().copied()).stdin(Stdio::null());
    command.stderr(output.try_clone().map_err(file("write"))?).stdout(output);
    let (start, kernel) = (Instant::now(), KernelLog::listen());
    let ended = process::spawn_measured(&mut command, LIMIT);
    let said = fs::read(&log).map_err(file("read"))?;
    let (wall, said) = (start.elapsed().as_secs_f64(), String::from_utf8_lossy(&said));
    match ended {
        Ok(ended) => {
            let cpu = ended.processor.as_secs_f64();
            print!("--- {}: {}, {wall:.1} s, {cpu:.1} s of CPU\n{said}", program.name, ended.status);
            if ended.status.success() {
                Ok(ended.processor)
            } else {
                let source = Box::new(process::ended_badly(&command, ended.status));
                let lines = if ended.status.signal().is_some() { kernel.heard() } else { Vec::new() };
                lines.iter().for_each(|line| println!("the kernel says: {line}"));
                Err(StepError::Panicked { source, panics: [vec![panics(&said)], lines].concat().join(" | ") })
            }
        }
        Err(error) => {
            print!("--- {}: {error}\n{said}", program.name);
            Err(error)
        }
    }
}

/// Most panics that the summary repeats, so that whoever sees only the end of a log knows why.
const MOST_PANICS: usize = 3;

/// Returns the places and messages of the first panics in a program's output.
fn panics(said: &str) -> String {
    let mut lines = said.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.find(|line| line.contains("panicked at ")) {
        let place = line.split("panicked at ").nth(1).unwrap_or(line);
        found.push(format!("{place} {}", lines.next().unwrap_or_default()));
        if found.len() == MOST_PANICS {
            break;
        }
    }
    if found.is_empty() { "it has printed no panic".to_owned() } else { found.join(" | ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_told_with_their_places_and_messages() {
        let said = "thread 'a' (7) panicked at src/a.rs:1:2:\nleft is not right\n  left: 1\n\
                    thread 'b' panicked at src/b.rs:3:4:\ngone";
        assert_eq!(panics(said), "src/a.rs:1:2: left is not right | src/b.rs:3:4: gone");
        assert_eq!(panics("killed"), "it has printed no panic");
    }

    #[test]
    fn test_programs_are_picked_from_cargos_messages() {
        let message = |kind: &str, name: &str, test: bool, executable: &str| {
            let target = format!(r#"{{"kind":["{kind}"],"name":"{name}"}}"#);
            let rest = format!(r#""profile":{{"test":{test}}},"executable":{executable}"#);
            format!(r#"{{"manifest_path":"/w/crates/text/Cargo.toml","target":{target},{rest}}}"#)
        };
        let messages = [
            message("lib", "palimpsest_text", true, r#""/t/deps/palimpsest_text-1""#),
            message("lib", "palimpsest_text", false, "null"),
            message("test", "stress", true, r#""/t/deps/stress-2""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let expected = [("text.lib", "/t/deps/palimpsest_text-1"), ("text.stress", "/t/deps/stress-2")]
            .map(|(name, path)| TestProgram::new(name.to_owned(), path.into(), "/w/crates/text".into()));
        assert_eq!(named(&messages.join("\n")).expect("valid messages"), expected);
    }

    #[test]
    fn a_program_skips_its_own_tests() {
        let left_out = ["a.b::c::d", "a.b", "a.b::e"].map(|what| LeftOut { what, reason: "" });
        let mut programs =
            ["a.b", "a.bc"].map(|name| TestProgram::new(name.to_owned(), name.into(), "/".into())).to_vec();
        shorten(&mut programs, &left_out);
        assert_eq!(programs[0].arguments, ["--exact", "--skip", "c::d", "--skip", "e"]);
        assert!(programs[1].arguments.is_empty());
    }

    /// Fails on: a test that is left out since its name contains that of another.
    #[test]
    fn tests_with_longer_names_are_not_skipped() {
        let this = "xtask.tests::programs::tests::tests_with_longer_names";
        let mut program = [TestProgram::new("xtask.tests".to_owned(), "/".into(), "/".into())];
        shorten(&mut program, &[LeftOut { what: this, reason: "" }]);
        let mut list = Command::new(std::env::current_exe().expect("this program"));
        list.args(&program[0].arguments).arg("--list");
        let told = process::capture(&mut list).expect("the list of tests");
        assert!(told.contains("::tests_with_longer_names_are_not_skipped: test"), "{told}");
    }

    #[test]
    fn other_output_is_an_error_that_shows_it() {
        let error = named("warning: hello").expect_err("not JSON");
        assert!(error.to_string().ends_with("warning: hello"));
    }

    #[test]
    fn every_program_runs_and_a_failure_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let workspace = Workspace { root: folder.path().into(), target: folder.path().join("target") };
        let program = |name: &str| TestProgram::new(format!("a.{name}"), format!("/bin/{name}").into(), "/".into());
        let good = ["true", "true", "true"].map(program);
        assert_eq!(run(&workspace, &good, &["a.true"], &[]).expect("all pass"), "3 programs");
        let error = run(&workspace, &["true", "false"].map(program), &[], &[]).expect_err("one fails");
        assert!(error.to_string().starts_with("1 of 2 programs failed: a.false"), "{error}");
    }
}

//! Running other programs: shown, streamed or captured, and never longer than a limit where one is given.

use std::{
    ffi::OsStr,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::{
        LazyLock,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::{descendants, step::StepError, workspace::Workspace};

/// Seconds to wait before each new attempt of a download.
const PAUSES: [u64; 2] = [3, 15];

/// Returns `cargo` of the toolchain that runs this program, started in the workspace.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    program("cargo", workspace)
}

/// Makes `cargo` build in a target folder of its own, without incremental state, since nothing is changed and built
/// again there.
pub(crate) fn apart<'a>(cargo: &'a mut Command, workspace: &Workspace, name: &str) -> &'a mut Command {
    cargo.env("CARGO_TARGET_DIR", workspace.separate_target(name)).env("CARGO_INCREMENTAL", "0")
}

/// Returns `cargo` of the nightly toolchain, started in the workspace.
pub(crate) fn nightly_cargo(workspace: &Workspace) -> Command {
    let mut command = cargo(workspace);
    command.arg("+nightly");
    command
}

/// Returns `name`, started in the workspace, without the library path that `cargo run` sets for this program.
pub(crate) fn program(name: impl AsRef<OsStr>, workspace: &Workspace) -> Command {
    let mut command = Command::new(name);
    command.current_dir(&workspace.root).env_remove("LD_LIBRARY_PATH");
    command
}

/// Runs `command`, whose output goes to this program's.
pub(crate) fn stream(command: &mut Command) -> Result<(), StepError> {
    announce(command);
    let status = command.status().map_err(|source| not_started(command, source))?;
    if status.success() { Ok(()) } else { Err(StepError::Failed { command: summary(command), status }) }
}

/// Runs [`stream`] for something that comes over a network: tries again, after ever longer pauses, if it fails.
pub(crate) fn stream_again(command: &mut Command) -> Result<(), StepError> {
    for seconds in PAUSES {
        match stream(command) {
            Ok(()) => return Ok(()),
            // The program does not exist.
            Err(error @ StepError::Start { .. }) => return Err(error),
            Err(error) => println!("{error}; again in {seconds} s"),
        }
        thread::sleep(Duration::from_secs(seconds));
    }
    stream(command)
}

/// Runs `command`, whose messages go to this program's, and returns what it printed.
pub(crate) fn capture(command: &mut Command) -> Result<String, StepError> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|source| not_started(command, source))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(StepError::Failed { command: summary(command), status: output.status })
    }
}

/// Time limit for a program of a step that may hang; that of the step is longer.
pub(crate) const LIMIT: Duration = Duration::from_secs(2 * 3600);

/// Runs [`stream`], and ends `command` with all that it has started after `limit`.
pub(crate) fn stream_within(command: &mut Command, limit: Duration) -> Result<(), StepError> {
    announce(command);
    let child = command.spawn().map_err(|source| not_started(command, source))?;
    wait_within(command, child, limit)
}

/// Returns how `command` ended and what it printed, and ends it with all that it has started after `limit`.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<Output, StepError> {
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|source| not_started(command, source))?;
    let (stdout, stderr) = (child.stdout.take().map(read), child.stderr.take().map(read));
    let started = Instant::now();
    let status = end_within(command, child, limit)?;
    // Something that it has left in the background may hold the pipes open.
    let rest = || limit.saturating_sub(started.elapsed()).max(Duration::from_secs(1));
    let said = |reader: Option<Receiver<Vec<u8>>>| match reader.map(|reader| reader.recv_timeout(rest())) {
        Some(Err(RecvTimeoutError::Timeout)) => {
            Err(StepError::TimeLimit { command: summary(command), seconds: limit.as_secs() })
        }
        said => Ok(said.and_then(Result::ok).unwrap_or_default()),
    };
    Ok(Output { status, stdout: said(stdout)?, stderr: said(stderr)? })
}

/// Reads all of a pipe in another thread.
fn read(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (teller, told) = mpsc::channel();
    thread::spawn(move || {
        let mut said = Vec::new();
        // What was read before an error stays; and nobody may wait for it any more.
        let _ = pipe.read_to_end(&mut said);
        let _ = teller.send(said);
    });
    told
}

/// Waits for `child`, started from `command`, as [`end_measured`] does.
pub(crate) fn wait_within(command: &Command, child: Child, limit: Duration) -> Result<(), StepError> {
    let status = end_within(command, child, limit)?;
    if status.success() { Ok(()) } else { Err(StepError::Failed { command: summary(command), status }) }
}

/// Waits as [`wait_within`] does, for programs that may also end well with another status than 0.
pub(crate) fn end_within(command: &Command, child: Child, limit: Duration) -> Result<ExitStatus, StepError> {
    Ok(end_measured(command, child, limit)?.status)
}

/// What ends a program with the thread that has started it, by a flag of setpriv(1).
const TIE: [&str; 4] = ["setpriv", "--pdeathsig", "KILL", "--"];

/// Returns [`program`], which ends when the thread that starts it does, where setpriv can say so: Ctrl-C does not reach
/// a process group of its own.
pub(crate) fn tied(name: impl AsRef<OsStr>, workspace: &Workspace) -> Command {
    static CAN_TIE: LazyLock<bool> = LazyLock::new(|| {
        let mut tried = Command::new(TIE[0]);
        tried.args(&TIE[1..]).arg("true").stdin(Stdio::null());
        tried.output().is_ok_and(|output| output.status.success())
    });
    if !*CAN_TIE {
        return program(name, workspace);
    }
    let mut command = program(TIE[0], workspace);
    command.args(&TIE[1..]).arg(name);
    command
}

/// Returns a command for a test program, set up as cargo does: in its package's folder, with the libraries beside it.
pub(crate) fn test_program(workspace: &Workspace, path: &Path, folder: &Path) -> Command {
    let mut command = tied(path, workspace);
    command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
    if let Some(beside) = path.parent() {
        command.env("LD_LIBRARY_PATH", beside);
    }
    command
}

/// Starts `command` as leader of a process group, and waits for it as [`end_measured`] does.
pub(crate) fn spawn_measured(command: &mut Command, limit: Duration) -> Result<Ended, StepError> {
    let child = command.process_group(0).spawn().map_err(|source| not_started(command, source))?;
    end_measured(command, child, limit)
}

/// Returns the error that `command` ended with a `status` of failure.
pub(crate) fn ended_badly(command: &Command, status: ExitStatus) -> StepError {
    StepError::Failed { command: summary(command), status }
}

/// How a process ended, and its processor time with that of all children that it waited for.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) processor: Duration,
}

/// Waits for `child`; after `limit`, ends it with all that it has started, and with the process group that it leads, if
/// any, in which orphans may be.
pub(crate) fn end_measured(command: &Command, mut child: Child, limit: Duration) -> Result<Ended, StepError> {
    let failed = |errno: rustix::io::Errno| not_started(command, errno.into());
    let start = Instant::now();
    let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) else {
        return Err(not_started(command, io::Error::other("a process has no number")));
    };
    // Its entry in /proc stays until it is reaped.
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while waitid(WaitId::Pid(pid), look).map_err(failed)?.is_none() {
        if start.elapsed() > limit {
            descendants::end(pid);
            let _no_group = kill_process_group(pid, Signal::KILL);
            child.wait().map_err(|source| not_started(command, source))?;
            return Err(StepError::TimeLimit { command: summary(command), seconds: limit.as_secs() });
        }
        thread::sleep(Duration::from_millis(20));
    }
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    let status = child.wait().map_err(|source| not_started(command, source))?;
    Ok(Ended { status, processor: processor_time(&stat) })
}

/// Returns the sum of the four times in a line of `/proc/PID/stat` (`proc_pid_stat(5)`, fields 14 to 17).
fn processor_time(stat: &str) -> Duration {
    // The second field is a name in parentheses, which may hold anything; the third follows the last parenthesis.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields).unwrap_or_default();
    let ticks: u64 = fields.split_whitespace().skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks.saturating_mul(1000) / rustix::param::clock_ticks_per_second().max(1))
}

/// Returns the error that `command` could not be started, or not be waited for.
pub(crate) fn not_started(command: &Command, source: io::Error) -> StepError {
    StepError::Start { command: summary(command), source }
}

/// Prints `command` before it runs.
pub(crate) fn announce(command: &Command) {
    println!("$ {}", describe(command));
}

/// Returns `command` in a form that can be typed.
fn describe(command: &Command) -> String {
    let set =
        command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quote(value?))));
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(quote);
    set.chain(words).collect::<Vec<_>>().join(" ")
}

/// Returns the beginning of `command`, for a message: [`announce`] has shown all of it.
fn summary(command: &Command) -> String {
    const LONGEST: usize = 60;
    let words: Vec<String> = std::iter::once(command.get_program()).chain(command.get_args()).map(quote).collect();
    let words = words.strip_prefix(&TIE.map(str::to_owned)).unwrap_or(&words).join(" ");
    match words.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} …", &words[..end]),
        None => words,
    }
}

fn quote(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=+:,@%".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Returns whether `path` is a file that can be run; looks it up in PATH if it has no slash.
pub(crate) fn is_runnable(path: &str) -> bool {
    if path.contains('/') {
        return Path::new(path).is_file();
    }
    std::env::var_os("PATH")
        .is_some_and(|folders| std::env::split_paths(&folders).any(|folder| folder.join(path).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descendants::tests::{family, wait_for_end};

    #[test]
    fn a_command_is_described_as_one_types_it() {
        let mut command = Command::new("cargo");
        command.args(["doc", "--no-deps"]).env("RUSTFLAGS", "-D warnings").env_remove("HOME");
        assert_eq!(describe(&command), "RUSTFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn a_long_command_is_cut_in_messages() {
        let mut command = Command::new("cargo");
        assert_eq!(summary(&command), "cargo");
        command.args(["ä"; 60]);
        assert_eq!(summary(&command).chars().count(), 62);
    }

    #[test]
    fn the_time_limit_kills() {
        let mut command = Command::new("sleep");
        command.arg("3600");
        let start = Instant::now();
        let ended = stream_within(&mut command, Duration::from_millis(50));
        assert!(matches!(ended, Err(StepError::TimeLimit { .. })), "{ended:?}");
        assert!(start.elapsed() < Duration::from_secs(3600));
    }

    #[test]
    fn the_time_limit_ends_what_a_program_has_started_too() {
        let (child, program) = family();
        let ended = end_measured(&Command::new("sh"), child, Duration::ZERO);
        assert!(matches!(ended, Err(StepError::TimeLimit { .. })));
        wait_for_end(program);
    }

    /// Set for the test that a test starts, to be ended.
    const TIED: &str = "PALIMPSEST_XTASK_TIED";

    #[test]
    fn a_test_program_ends_with_whoever_has_started_it() {
        let workspace = Workspace::find();
        if std::env::var_os(TIED).is_some() {
            let mut sleep = test_program(&workspace, Path::new("/bin/sleep"), Path::new("/"));
            let _ = spawn_measured(sleep.arg("100000"), Duration::MAX);
            return;
        }
        if tied("true", &workspace).get_program() == "true" {
            println!("skipped: no setpriv");
            return;
        }
        let mut this = Command::new(std::env::current_exe().expect("this program"));
        let name = "process::tests::a_test_program_ends_with_whoever_has_started_it";
        let mut other = this.args(["--exact", name]).env(TIED, "1").stdout(Stdio::null()).spawn().expect("it starts");
        let has_begun = |process: &Pid| {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", process.as_raw_nonzero()));
            name.is_ok_and(|name| name.trim() == "sleep")
        };
        let sleep = loop {
            if let Some(sleep) = descendants::children(Pid::from_child(&other)).into_iter().find(has_begun) {
                break sleep;
            }
            assert!(other.try_wait().expect("it is ours").is_none(), "it ended early");
            thread::sleep(Duration::from_millis(5));
        };
        other.kill().and_then(|()| other.wait()).expect("it ends");
        wait_for_end(sleep);
    }

    #[test]
    fn what_a_program_prints_is_read_while_it_runs() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 1000000 /dev/zero; echo no >&2; exit 3"]);
        let output = output_within(&mut command, LIMIT).expect("it ends");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 1_000_000));
        assert_eq!(output.stderr, b"no\n");
    }

    #[test]
    fn processor_time_is_that_of_a_process_and_its_children() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 100 20 3 1000 20 0";
        assert_eq!(processor_time(stat), Duration::from_millis(11_230));
        assert_eq!(processor_time(""), Duration::ZERO);
    }

    #[test]
    fn programs_are_found_by_path() {
        assert!(is_runnable("sh"));
        assert!(is_runnable("/bin/sh"));
        assert!(!is_runnable("no-such-program-here"));
    }
}

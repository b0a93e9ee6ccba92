//! Running other programs: shown, streamed or captured, and never longer than a limit where one is given.

use std::{
    ffi::OsStr,
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::{step::StepError, workspace::Workspace};

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

/// Runs [`stream`] in a process group of its own, which is killed after `limit`.
pub(crate) fn stream_within(command: &mut Command, limit: Duration) -> Result<(), StepError> {
    announce(command);
    let child = command.process_group(0).spawn().map_err(|source| not_started(command, source))?;
    wait_within(command, child, limit)
}

/// Waits for `child`, started from `command` as leader of a process group, and kills the group after `limit`.
pub(crate) fn wait_within(command: &Command, child: Child, limit: Duration) -> Result<(), StepError> {
    let status = end_within(command, child, limit)?;
    if status.success() { Ok(()) } else { Err(StepError::Failed { command: summary(command), status }) }
}

/// Waits as [`wait_within`] does, for programs that may also end well with another status than 0.
pub(crate) fn end_within(command: &Command, mut child: Child, limit: Duration) -> Result<ExitStatus, StepError> {
    let start = Instant::now();
    loop {
        match child.try_wait().map_err(|source| not_started(command, source))? {
            Some(status) => return Ok(status),
            None if start.elapsed() > limit => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    kill_process_group(group, Signal::KILL).map_err(|errno| not_started(command, errno.into()))?;
                }
                child.wait().map_err(|source| not_started(command, source))?;
                return Err(StepError::TimeLimit { command: summary(command), seconds: limit.as_secs() });
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Returns a command for a test program, set up as cargo does: in its package's folder, with the libraries beside it.
pub(crate) fn test_program(workspace: &Workspace, path: &Path, folder: &Path) -> Command {
    let mut command = program(path, workspace);
    command.current_dir(folder).env("CARGO_MANIFEST_DIR", folder);
    if let Some(beside) = path.parent() {
        command.env("LD_LIBRARY_PATH", beside);
    }
    command
}

/// Starts `command` as leader of a process group, waits for it, and kills the group after `limit`.
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

/// Waits for `child`, and after `limit` kills it with the process group that it leads.
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
            // A child that leads no group is killed alone.
            let _no_group = kill_process_group(pid, Signal::KILL);
            let killed = child.kill().and_then(|()| child.wait());
            killed.map_err(|source| not_started(command, source))?;
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
    let words =
        std::iter::once(command.get_program()).chain(command.get_args()).map(quote).collect::<Vec<_>>().join(" ");
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

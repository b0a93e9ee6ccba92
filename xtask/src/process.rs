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

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{step::StepError, workspace::Workspace};

/// `cargo` of the toolchain that runs this program, started in the workspace.
pub(crate) fn cargo(workspace: &Workspace) -> Command {
    program("cargo", workspace)
}

/// Has `cargo` build in a target folder of its own, where nobody changes and builds again.
pub(crate) fn apart<'a>(cargo: &'a mut Command, workspace: &Workspace, name: &str) -> &'a mut Command {
    cargo.env("CARGO_TARGET_DIR", workspace.separate_target(name)).env("CARGO_INCREMENTAL", "0")
}

/// `cargo` of the nightly toolchain, started in the workspace.
pub(crate) fn nightly_cargo(workspace: &Workspace) -> Command {
    let mut command = cargo(workspace);
    command.arg("+nightly");
    command
}

/// `name`, started in the workspace, without the library path that `cargo run` sets for this program.
pub(crate) fn program(name: impl AsRef<OsStr>, workspace: &Workspace) -> Command {
    let mut command = Command::new(name);
    command.current_dir(&workspace.root).env_remove("LD_LIBRARY_PATH");
    command
}

/// Runs `command` with its output on ours.
pub(crate) fn stream(command: &mut Command) -> Result<(), StepError> {
    announce(command);
    let status = command.status().map_err(|source| not_started(command, source))?;
    if status.success() { Ok(()) } else { Err(StepError::Failed { command: summary(command), status }) }
}

/// Runs `command` with its messages on ours and returns what it printed.
pub(crate) fn capture(command: &mut Command) -> Result<String, StepError> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|source| not_started(command, source))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(StepError::Failed { command: summary(command), status: output.status })
    }
}

/// [`stream`], in a process group of its own that is killed when `limit` is over.
pub(crate) fn stream_within(command: &mut Command, limit: Duration) -> Result<(), StepError> {
    announce(command);
    let child = command.process_group(0).spawn().map_err(|source| not_started(command, source))?;
    wait_within(command, child, limit)
}

/// Waits for `child`, started from `command` as leader of a process group, and kills the group when `limit` is over.
pub(crate) fn wait_within(command: &Command, child: Child, limit: Duration) -> Result<(), StepError> {
    let status = end_within(command, child, limit)?;
    if status.success() { Ok(()) } else { Err(StepError::Failed { command: summary(command), status }) }
}

/// [`wait_within`], for programs of which not only the status 0 is good.
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

/// `command` could not be started, or not be waited for.
pub(crate) fn not_started(command: &Command, source: io::Error) -> StepError {
    StepError::Start { command: summary(command), source }
}

/// Prints `command` before it runs.
pub(crate) fn announce(command: &Command) {
    println!("$ {}", describe(command));
}

/// `command` as one could type it.
fn describe(command: &Command) -> String {
    let set =
        command.get_envs().filter_map(|(name, value)| Some(format!("{}={}", name.to_string_lossy(), quote(value?))));
    let words = std::iter::once(command.get_program()).chain(command.get_args()).map(quote);
    set.chain(words).collect::<Vec<_>>().join(" ")
}

/// The beginning of `command`, for a message: [`announce`] has shown the whole.
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

/// Whether `path` leads to a file that can be run, looked up in PATH when it holds no slash.
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
        command.arg("60");
        let start = Instant::now();
        let ended = stream_within(&mut command, Duration::from_millis(50));
        assert!(matches!(ended, Err(StepError::TimeLimit { .. })), "{ended:?}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn programs_are_found_by_path() {
        assert!(is_runnable("sh"));
        assert!(is_runnable("/bin/sh"));
        assert!(!is_runnable("no-such-program-here"));
    }
}

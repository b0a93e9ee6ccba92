//! Programs of others: whether they are installed, how they end, and their errors.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

/// A program that must be installed.
#[derive(Clone, Copy, Debug)]
pub(in crate::suites) struct Tool {
    /// The program's name or path.
    pub(in crate::suites) program: &'static str,
    /// Debian's package for it.
    pub(in crate::suites) package: &'static str,
}

impl Tool {
    /// Returns what to do if the program is missing.
    pub(in crate::suites) fn missing(self) -> Option<String> {
        let Self { program, package } = self;
        let found = if program.contains('/') {
            Path::new(program).is_file()
        } else {
            std::env::var_os("PATH")
                .is_some_and(|folders| std::env::split_paths(&folders).any(|folder| folder.join(program).is_file()))
        };
        (!found).then(|| format!("there is no {program}: install Debian's package {package}"))
    }
}

/// Why a program gave no figures.
#[derive(Debug, thiserror::Error)]
pub(in crate::suites) enum ProgramError {
    #[error("programs cannot be started frozen: {0}")]
    Unfrozen(String),
    #[error("cannot {action}")]
    Io {
        action: String,
        #[source]
        source: io::Error,
    },
    #[error("{program} ended before it was asked to; see its messages above")]
    Ended { program: &'static str },
    #[error("{program} answered {answer:?} to {question:?}")]
    Answer { program: &'static str, question: String, answer: String },
    #[error("`{command}` ended with {status}: {said}")]
    Failed { command: String, status: ExitStatus, said: String },
    #[error("`{command}` was stopped after {seconds} s")]
    TimeLimit { command: String, seconds: u64 },
    #[error("cargo's answer names no source of {package}: {found}")]
    NoSource { package: &'static str, found: String },
    #[error("{} has no number for {name:?}; the end of the log is\n{log}", file.display())]
    NoNumber { file: PathBuf, name: &'static str, log: String },
    #[error("{target} did other work than {reference} on {inputs:?}")]
    Unequal { target: &'static str, reference: &'static str, inputs: Vec<String> },
}

/// Turns a failure of `action` into an error.
pub(in crate::suites) fn doing(action: impl Into<String>) -> impl FnOnce(io::Error) -> ProgramError {
    let action = action.into();
    move |source| ProgramError::Io { action, source }
}

/// Runs `command` to its end, and returns its output. Shows its messages if it fails.
pub(in crate::suites) fn finish(command: &mut Command) -> Result<Output, ProgramError> {
    let output = command.output().map_err(doing(format!("start {}", name(command))))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ProgramError::Failed { command: name(command), status: output.status, said })
}

/// Runs `command` in a process group of its own, and kills the group after `limit`.
pub(in crate::suites) fn run_within(command: &mut Command, limit: Duration) -> Result<(), ProgramError> {
    let start = Instant::now();
    let mut child = command.process_group(0).spawn().map_err(doing(format!("start {}", name(command))))?;
    let failed = || doing(format!("run {}", name(command)));
    loop {
        match child.try_wait().map_err(failed())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                return Err(ProgramError::Failed { command: name(command), status, said: "see its log".to_owned() });
            }
            None if start.elapsed() > limit => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    kill_process_group(group, Signal::KILL).map_err(|errno| failed()(errno.into()))?;
                }
                child.wait().map_err(failed())?;
                return Err(ProgramError::TimeLimit { command: name(command), seconds: limit.as_secs() });
            }
            None => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Kills a program, by its number, when this is dropped.
pub(in crate::suites) struct Ended(pub(in crate::suites) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // The children for which it waits end by themselves; both calls only fail if the program has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with children of its own. When this is dropped, a signal asks it to end; if it does not, its process group
/// is killed.
pub(in crate::suites) struct Stopped {
    /// The server, started in a process group of its own.
    pub(in crate::suites) process: Child,
    /// The signal that asks the server and its children to end.
    pub(in crate::suites) by: Signal,
}

impl Stopped {
    /// Starts `command`.
    pub(in crate::suites) fn start(command: &mut Command, by: Signal) -> Result<Self, ProgramError> {
        let process = command.process_group(0).spawn().map_err(doing(format!("start {}", name(command))))?;
        Ok(Self { process, by })
    }

    /// Returns the server's number.
    pub(in crate::suites) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Asks until there is an answer. Fails if the program ends, or says nothing for a minute.
    pub(in crate::suites) fn wait_for<T>(
        &mut self,
        program: &'static str,
        mut ask: impl FnMut() -> Option<T>,
    ) -> Result<T, ProgramError> {
        let start = Instant::now();
        loop {
            if let Some(answer) = ask() {
                return Ok(answer);
            }
            if self.process.try_wait().map_err(doing(format!("wait for {program}")))?.is_some() {
                return Err(ProgramError::Ended { program });
            }
            if start.elapsed() > PATIENCE {
                return Err(ProgramError::TimeLimit { command: program.to_owned(), seconds: PATIENCE.as_secs() });
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// How long a server may take to start, or to end.
const PATIENCE: Duration = Duration::from_secs(60);

impl Drop for Stopped {
    fn drop(&mut self) {
        // This only fails if the program has ended.
        let _ = kill_process(self.pid(), self.by);
        let start = Instant::now();
        while matches!(self.process.try_wait(), Ok(None)) && start.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(10));
        }
        // The group is the program's own; every process left in it is its child.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.process.wait();
    }
}

/// A folder that is removed when this is dropped.
pub(in crate::suites) struct Scratch(pub(in crate::suites) PathBuf);

impl Scratch {
    /// Makes a new folder below that for temporary files.
    pub(in crate::suites) fn new(name: &str) -> Result<Self, ProgramError> {
        let path = std::env::temp_dir().join(format!("palimpsest-{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(doing("make a folder for temporary files"))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, only rubbish stays.
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use super::*;

    #[test]
    fn missing_programs_name_their_package() {
        for program in ["sh", "/bin/sh"] {
            assert_eq!(Tool { program, package: "dash" }.missing(), None);
        }
        let missing = Tool { program: "no-such-program-here", package: "somewhere" }.missing();
        assert!(missing.is_some_and(|reason| reason.contains("no-such-program-here") && reason.contains("somewhere")));
    }

    #[test]
    fn failures_tell_what_the_program_said() {
        let failed = finish(Command::new("sh").args(["-c", "echo out; echo why >&2; exit 3"]));
        let text = failed.map(drop).expect_err("it ends with 3").to_string();
        assert!(text.contains("why") && text.contains('3'), "{text}");
    }

    #[test]
    fn a_server_ends_with_its_children() {
        let mut command = Command::new("sh");
        // The child ignores the signal that ends its parent.
        command.args(["-c", "(trap '' TERM; echo here; sleep 3; echo alive) & wait"]);
        let mut server = Stopped::start(command.stdout(Stdio::piped()), Signal::TERM).expect("there is sh");
        let mut lines = BufReader::new(server.process.stdout.take().expect("a pipe")).lines();
        assert_eq!(lines.next().and_then(Result::ok).as_deref(), Some("here"));
        drop(server);
        assert!(lines.next().is_none(), "the child has lived on");
    }

    #[test]
    fn a_server_that_ends_at_its_start_is_told() {
        let mut server = Stopped::start(&mut Command::new("true"), Signal::TERM).expect("there is true");
        let told = server.wait_for("true", || None::<()>);
        assert!(matches!(told, Err(ProgramError::Ended { program: "true" })), "{told:?}");
    }

    #[test]
    fn the_time_limit_kills() {
        let ended = run_within(Command::new("sleep").arg("600"), Duration::from_millis(50));
        assert!(matches!(ended, Err(ProgramError::TimeLimit { .. })), "{ended:?}");
    }
}

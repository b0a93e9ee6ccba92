//! Programs with much text, started in different ways.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use super::super::programs::{Ended, ProgramError, Scratch, doing, finish};
use crate::harness::Context;

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Started without Palimpsest.
    Plain,
    /// From copies that no other process uses.
    Private,
    /// From copies that all processes of the user share.
    Local,
}

impl Mode {
    pub(super) const ALL: [Self; 3] = [Self::Plain, Self::Private, Self::Local];

    /// Returns the name in the ids of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Private => "private",
            Self::Local => "local",
        }
    }

    /// Returns a command that starts `program` in this way. Copies are in `folder`.
    pub(super) fn command(self, context: &Context<'_>, program: &Path, folder: &Path) -> Result<Command, ProgramError> {
        let mut command = match self {
            Self::Plain => Command::new(program),
            Self::Private | Self::Local => {
                let mut command = context.local_text().map_err(ProgramError::Unfrozen)?;
                if self == Self::Local {
                    command.arg("--shared");
                }
                command.arg("--").arg(program);
                command
            }
        };
        command.env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null());
        Ok(command)
    }
}

/// The generated program, in a folder that is removed with it.
pub(super) struct Hot {
    folder: Scratch,
}

impl Hot {
    /// Builds the program; fails without a C compiler.
    pub(super) fn build() -> Result<Self, ProgramError> {
        let folder = Scratch::new("numa")?;
        let source = folder.0.join("hot.c");
        fs::write(&source, include_str!("hot.c")).map_err(doing("write a C program"))?;
        // Not position-independent, so that its text has the same place in a huge page as in its file everywhere.
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-no-pie", "-o"]).arg(folder.0.join("hot")).arg(&source);
        finish(&mut compiler)?;
        Ok(Self { folder })
    }

    pub(super) fn program(&self) -> PathBuf {
        self.folder.0.join("hot")
    }

    /// Makes another folder for copies, without any.
    pub(super) fn fresh(&self, number: usize) -> Result<PathBuf, ProgramError> {
        let path = self.folder.0.join(format!("copies-{number}"));
        fs::create_dir_all(&path).map_err(doing("make a folder for copies"))?;
        Ok(path)
    }
}

/// A running [`Hot`].
pub(super) struct Running {
    // Before the process, so that this is dropped first and tells it to end.
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    process: Ended,
    /// Time from the start to `main`.
    pub(super) start: Duration,
}

impl Running {
    pub(super) fn start(context: &Context<'_>, hot: &Hot, mode: Mode, folder: &Path) -> Result<Self, ProgramError> {
        let mut command = mode.command(context, &hot.program(), folder)?;
        let begun = Instant::now();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(doing("start the generated program"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Ended(child);
        let (questions, answers) = pipes.ok_or(ProgramError::Ended { program: "hot" })?;
        let mut running = Self { questions, answers: BufReader::new(answers), process, start: Duration::ZERO };
        running.read()?;
        running.start = begun.elapsed();
        Ok(running)
    }

    /// Returns nanoseconds of processor time for this many rounds.
    pub(super) fn rounds(&mut self, rounds: usize) -> Result<f64, ProgramError> {
        writeln!(self.questions, "{rounds}").map_err(doing("write to the generated program"))?;
        let answer = self.read()?;
        let question = rounds.to_string();
        answer.trim().parse().map_err(|_| ProgramError::Answer { program: "hot", question, answer })
    }

    fn read(&mut self) -> Result<String, ProgramError> {
        let mut line = String::new();
        match self.answers.read_line(&mut line).map_err(doing("read from the generated program"))? {
            0 => Err(ProgramError::Ended { program: "hot" }),
            _ => Ok(line),
        }
    }

    /// Returns the sum of a figure over its mappings, in bytes.
    pub(super) fn memory(&self, figure: &str) -> Result<f64, ProgramError> {
        let path = format!("/proc/{}/smaps", self.process.0.id());
        let text = fs::read_to_string(&path).map_err(doing(format!("read {path}")))?;
        let values =
            text.lines().filter_map(|line| line.strip_prefix(figure)?.strip_prefix(':')?.trim().strip_suffix(" kB"));
        Ok(values.filter_map(|value| value.parse::<f64>().ok()).sum::<f64>() * 1024.0)
    }
}

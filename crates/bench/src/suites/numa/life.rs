//! Programs with much text, started in different ways.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::super::programs::{Ended, ProgramError, Scratch, doing, finish};
use crate::harness::Context;

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Started without Palimpsest.
    Plain,
    /// From huge pages of the file itself, which is read again if it is cached in small ones.
    Own,
    /// From copies that no other process uses.
    Private,
    /// From copies that all processes of the user share.
    Local,
    /// From a copy in anonymous memory: the calls of iodlr, which is not packaged.
    Anonymous,
    /// From a pool of huge pages, by libhugetlbfs, for which a program must be linked.
    Pool,
}

/// The library of [`Mode::Pool`], which the dynamic linker finds by its name.
const POOL_LIBRARY: &str = "libhugetlbfs.so.0";

impl Mode {
    pub(super) const ALL: [Self; 5] = [Self::Plain, Self::Own, Self::Private, Self::Local, Self::Anonymous];
    /// Also the peer that takes more than the program's file.
    pub(super) const WITH_POOL: [Self; 6] =
        [Self::Plain, Self::Own, Self::Private, Self::Local, Self::Anonymous, Self::Pool];

    /// Returns the name in the ids of figures.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Own => "own",
            Self::Private => "private",
            Self::Local => "local",
            Self::Anonymous => "anonymous",
            Self::Pool => "pool",
        }
    }

    /// Returns the flags of `palimpsest run --local-text` for it; none for what is started without.
    pub(super) fn flags(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Own => Some(&["--reread"]),
            Self::Private => Some(&["--copies"]),
            Self::Local => Some(&["--copies", "--shared"]),
            Self::Plain | Self::Anonymous | Self::Pool => None,
        }
    }

    /// Whether it is Palimpsest's.
    pub(super) fn is_ours(self) -> bool {
        self.flags().is_some()
    }

    /// Returns a note for readers of the figures.
    pub(super) fn note(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Own => "huge pages of the file itself",
            Self::Private => "a copy of this process alone",
            Self::Local => "a copy that processes share",
            Self::Anonymous => "stands in for iodlr: its calls, but no page is writable and executable",
            Self::Pool => "libhugetlbfs: a program linked for it, and a pool that root has reserved",
        }
    }
}

/// A program, with a file of its own for each mode, since huge pages stay with the file that got them.
pub(super) struct Subject {
    folder: Scratch,
    /// Preloaded for [`Mode::Anonymous`].
    copier: PathBuf,
}

impl Subject {
    /// Builds the generated program with these definitions; fails without a C compiler.
    pub(super) fn build(name: &str, definitions: &[&str]) -> Result<Self, ProgramError> {
        let subject = Self::empty(name)?;
        let (source, program) = (subject.folder.0.join("hot.c"), subject.folder.0.join("built"));
        fs::write(&source, include_str!("hot.c")).map_err(doing("write a C program"))?;
        // Not position-independent, so that its text has the same place in a huge page as in its file everywhere.
        let build = |program: &Path, flags: &[&str]| {
            let mut compiler = Command::new("cc");
            compiler.args(["-O2", "-no-pie"]).args(definitions).args(flags);
            finish(compiler.arg("-o").arg(program).arg(&source))
        };
        build(&program, &[])?;
        subject.spread(&program)?;
        // Segments of whole huge pages.
        let aligned = ["-Wl,-zcommon-page-size=2097152", "-Wl,-zmax-page-size=2097152"];
        build(&subject.program(Mode::Pool), &aligned)?;
        Ok(subject)
    }

    /// Returns why the program cannot be started from a pool of huge pages.
    pub(super) fn lacks_pool(&self) -> Option<String> {
        let free = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let free = free.lines().find_map(|line| line.strip_prefix("HugePages_Free:")?.trim().parse::<u64>().ok());
        let size = fs::metadata(self.program(Mode::Pool)).map_or(0, |found| found.len());
        let wanted = 4 + size.div_ceil(2 << 20);
        if free.unwrap_or(0) < wanted {
            let free = free.unwrap_or(0);
            return Some(format!("{free} huge pages are free, of {wanted}: write to /proc/sys/vm/nr_hugepages"));
        }
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        if !mounts.lines().any(|line| line.contains(" hugetlbfs ")) {
            return Some("no hugetlbfs is mounted".to_owned());
        }
        let mut tried = Command::new(self.program(Mode::Pool));
        let tried = tried.env("LD_PRELOAD", POOL_LIBRARY).stdin(Stdio::null()).output();
        let told =
            tried.map_or_else(|error| error.to_string(), |ran| String::from_utf8_lossy(&ran.stderr).into_owned());
        told.contains("cannot be preloaded").then(|| format!("no {POOL_LIBRARY} (Debian package libhugetlbfs0)"))
    }

    /// Takes copies of a program's file.
    pub(super) fn copy(name: &str, program: &Path) -> Result<Self, ProgramError> {
        let subject = Self::empty(name)?;
        subject.spread(program)?;
        Ok(subject)
    }

    fn empty(name: &str) -> Result<Self, ProgramError> {
        let folder = Scratch::new(&format!("numa-{name}"))?;
        let (source, copier) = (folder.0.join("copied_text.c"), folder.0.join("copied_text.so"));
        fs::write(&source, include_str!("copied_text.c")).map_err(doing("write a C program"))?;
        finish(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&copier).arg(&source))?;
        Ok(Self { folder, copier })
    }

    /// Copies a program's file for each mode, and has the kernel forget it, so that it is read when it runs.
    fn spread(&self, program: &Path) -> Result<(), ProgramError> {
        for mode in Mode::ALL {
            let path = self.program(mode);
            fs::copy(program, &path).map_err(doing("copy a program"))?;
            let file = fs::File::open(&path).map_err(doing("open a program"))?;
            file.sync_all().map_err(doing("write a program to the disk"))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                .map_err(|errno| doing("have a program read again")(errno.into()))?;
        }
        Ok(())
    }

    /// Returns the file for a mode.
    pub(super) fn program(&self, mode: Mode) -> PathBuf {
        self.folder.0.join(format!("hot-{}", mode.name()))
    }

    /// Makes another folder for copies, without any.
    pub(super) fn fresh(&self, number: usize) -> Result<PathBuf, ProgramError> {
        let path = self.folder.0.join(format!("copies-{number}"));
        fs::create_dir_all(&path).map_err(doing("make a folder for copies"))?;
        Ok(path)
    }

    /// Returns a command that starts the program. Copies are in `folder`.
    pub(super) fn command(&self, context: &Context<'_>, mode: Mode, folder: &Path) -> Result<Command, ProgramError> {
        let program = self.program(mode);
        let mut command = match mode {
            Mode::Plain => Command::new(program),
            Mode::Anonymous => {
                let mut command = Command::new(program);
                command.env("LD_PRELOAD", &self.copier);
                command
            }
            Mode::Pool => {
                let mut command = Command::new(program);
                command.envs([("LD_PRELOAD", POOL_LIBRARY), ("HUGETLB_ELFMAP", "R")]);
                command
            }
            Mode::Own | Mode::Private | Mode::Local => {
                let mut command = context.local_text().map_err(ProgramError::Unfrozen)?;
                command.args(mode.flags().unwrap_or_default()).args(["--quiet", "--"]).arg(program);
                command
            }
        };
        command.env("XDG_RUNTIME_DIR", folder).stdin(Stdio::null());
        Ok(command)
    }
}

/// Returns the processor time that a process has used since it was forked, through all that it has executed.
pub(super) fn processor_time(process: u32) -> Result<Duration, ProgramError> {
    let path = format!("/proc/{process}/schedstat");
    let text = fs::read_to_string(&path).map_err(doing(format!("read {path}")))?;
    let nanoseconds = text.split(' ').next().and_then(|first| first.parse().ok());
    let unknown = || ProgramError::Answer { program: "the kernel", question: path.clone(), answer: text.clone() };
    nanoseconds.map(Duration::from_nanos).ok_or_else(unknown)
}

/// A running generated program.
pub(super) struct Running {
    // Before the process, so that this is dropped first and tells it to end.
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    process: Ended,
    /// Processor time from the start to `main`.
    pub(super) start: Duration,
}

impl Running {
    pub(super) fn start(context: &Context<'_>, hot: &Subject, mode: Mode, folder: &Path) -> Result<Self, ProgramError> {
        let mut command = hot.command(context, mode, folder)?;
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
        running.start = processor_time(running.process.0.id())?;
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

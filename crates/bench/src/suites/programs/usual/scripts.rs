//! Programs that run scripts: bash, make, and Python with numpy.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Output, Stdio};

use rustix::process::Pid;

use super::{Place, Spent, Subject};
use crate::suites::programs::{Ended, ProgramError, Tool, doing, finish};

pub(super) const BASH: &str = "/bin/bash";
pub(super) const MAKE: &str = "/usr/bin/make";
/// Debian's Python, which is linked dynamically.
const PYTHON: &str = "/usr/bin/python3";

/// Subshells for one sample.
pub(super) const SUBSHELLS: u32 = 50;

/// Answers each line of its input with the microseconds of a subshell: the mean of 50, each of which ends at once.
const STARTS_SUBSHELLS: &str = r#"
while read -r line; do
    start=${EPOCHREALTIME/[.,]/}
    for ((number = 0; number < 50; number++)); do (:); done
    end=${EPOCHREALTIME/[.,]/}
    echo $(( (end - start) / 50 ))
done
"#;

/// Forks of Python for one sample.
pub(super) const FORKS: u32 = 9;

/// Answers each line of its input with the microseconds of a fork: the median of nine, each with an array of as many
/// MiB as its argument says.
const MAKES_FORKS: &str = r#"
import os, sys, time
import numpy
block = numpy.ones(int(sys.argv[1]) << 17)
for line in sys.stdin:
    taken = []
    for number in range(9):
        start = time.perf_counter_ns()
        child = os.fork()
        if child == 0:
            os._exit(0)
        taken.append(time.perf_counter_ns() - start)
        os.waitpid(child, 0)
    print(sorted(taken)[4] / 1000, flush=True)
"#;

/// Returns why numpy cannot be measured.
pub(super) fn no_numpy() -> Option<String> {
    let python = Tool { program: PYTHON, package: "python3" }.missing();
    python.or_else(|| {
        let imported = finish(Command::new(PYTHON).args(["-c", "import numpy"]).stdin(Stdio::null()));
        imported.is_err().then(|| format!("{PYTHON} has no numpy: install Debian's package python3-numpy"))
    })
}

pub(super) fn bash(place: &Place<'_>) -> Result<Box<dyn Subject>, ProgramError> {
    let mut command = place.command(BASH)?;
    command.args(["-c", STARTS_SUBSHELLS]);
    Ok(Box::new(Answering::start(command, BASH)?))
}

pub(super) fn numpy(place: &Place<'_>) -> Result<Box<dyn Subject>, ProgramError> {
    let mut command = place.command(PYTHON)?;
    // Its threads are for computing, which nothing here does.
    let mebibytes = place.mode.data(512).to_string();
    command.args(["-c", MAKES_FORKS, &mebibytes]).env("OPENBLAS_NUM_THREADS", "1").env("NUMPY_MADVISE_HUGEPAGE", "1");
    Ok(Box::new(Answering::start(command, PYTHON)?))
}

/// A script that answers each line with a number.
struct Answering {
    // Before the process, so that this is dropped first and tells it to end.
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    process: Ended,
    program: &'static str,
}

impl Answering {
    fn start(mut command: Command, program: &'static str) -> Result<Self, ProgramError> {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(doing(format!("start {program}")))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Ended(child);
        let (questions, answers) = pipes.ok_or(ProgramError::Ended { program })?;
        Ok(Self { questions, answers: BufReader::new(answers), process, program })
    }
}

impl Subject for Answering {
    fn sample(&mut self) -> Result<f64, ProgramError> {
        let program = self.program;
        writeln!(self.questions, "go").map_err(doing(format!("write to {program}")))?;
        let mut answer = String::new();
        if self.answers.read_line(&mut answer).map_err(doing(format!("read from {program}")))? == 0 {
            return Err(ProgramError::Ended { program });
        }
        let question = "go".to_owned();
        answer.trim().parse().map_err(|_| ProgramError::Answer { program, question, answer })
    }

    fn spent(&self) -> Result<Spent, ProgramError> {
        Spent::by(Pid::from_child(&self.process.0))
    }
}

/// Targets of one run of make.
pub(super) const TARGETS: u32 = 50;

/// What a target does: nothing, by a program.
#[derive(Clone, Copy)]
pub(super) enum Recipe {
    /// `true`, which can have no children: `palimpsest run` leaves its object out.
    True,
    /// A shell, which can have some. make executes one for a line with more than one command.
    Shell,
}

impl Recipe {
    const fn line(self) -> &'static str {
        match self {
            Self::True => "true",
            Self::Shell => ":; :",
        }
    }
}

pub(super) fn make(place: &Place<'_>, recipe: Recipe) -> Result<Box<dyn Subject>, ProgramError> {
    let making = |name: &str, targets: u32| -> Result<Run, ProgramError> {
        let file = place.folder.join(name);
        fs::write(&file, makefile(targets, recipe)).map_err(doing(format!("write {}", file.display())))?;
        let mut command = place.command(MAKE)?;
        command.args(["--silent", "--jobs=1", "--no-builtin-rules", "--file"]).arg(file);
        Ok(Run { command, spent: Spent::default() })
    };
    Ok(Box::new(Making { whole: making("Makefile", TARGETS)?, bare: making("Makefile.bare", 0)? }))
}

/// Returns targets that start one program each, between two that print the time, so that make's own start does not
/// count.
fn makefile(targets: u32, recipe: Recipe) -> String {
    let names: String = (0..targets).map(|number| format!("target{number} ")).collect();
    let text = format!("all: start {names}end\n.PHONY: all start {names}end\nstart end:\n\t@date +%s%N\n");
    if targets == 0 { text } else { format!("{text}{names}:\n\t@{}\n", recipe.line()) }
}

/// make, started again for each sample; and without targets, for what its own life costs.
struct Making {
    whole: Run,
    bare: Run,
}

/// A command, and what all its runs have spent.
struct Run {
    command: Command,
    spent: Spent,
}

impl Run {
    fn once(&mut self) -> Result<Output, ProgramError> {
        let before = Spent::by_children()?;
        let output = finish(&mut self.command)?;
        self.spent = self.spent.and(Spent::by_children()?.since(before));
        Ok(output)
    }
}

impl Subject for Making {
    fn sample(&mut self) -> Result<f64, ProgramError> {
        let output = self.whole.once()?;
        self.bare.once()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut moments = said.lines().filter_map(|line| line.trim().parse::<f64>().ok());
        match (moments.next(), moments.next()) {
            (Some(start), Some(end)) => Ok((end - start) / 1e3 / f64::from(TARGETS)),
            _ => Err(ProgramError::Answer { program: MAKE, question: "the time".to_owned(), answer: said }),
        }
    }

    /// Returns what the targets alone have spent.
    fn spent(&self) -> Result<Spent, ProgramError> {
        Ok(self.whole.spent.since(self.bare.spent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_do_what_a_sample_counts() {
        assert!(STARTS_SUBSHELLS.contains(&format!("number < {SUBSHELLS};")));
        assert!(MAKES_FORKS.contains(&format!("range({FORKS})")));
    }

    #[test]
    fn the_makefile_has_its_targets_between_two_that_tell_the_time() {
        let text = makefile(TARGETS, Recipe::Shell);
        let all = text.lines().next().expect("a line");
        assert!(all.starts_with("all: start target0 ") && all.ends_with(" target49 end"), "{all}");
        assert_eq!(text.matches("\t@").count(), 2);
        assert!(text.ends_with("\n\t@:; :\n"), "{text}");
        assert_eq!(makefile(0, Recipe::True), "all: start end\n.PHONY: all start end\nstart end:\n\t@date +%s%N\n");
    }

    #[test]
    fn targets_do_not_count_the_life_of_make() {
        let run = |milliseconds, faults| Run {
            command: Command::new("true"),
            spent: Spent { processor: std::time::Duration::from_millis(milliseconds), faults },
        };
        let making = Making { whole: run(500, 9000), bare: run(200, 4000) };
        assert_eq!(making.spent().expect("no process is asked"), run(300, 5000).spent);
    }
}

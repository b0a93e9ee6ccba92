//! `cargo xtask bench python`: how long `os.fork` takes in CPython with 517 MB of objects.
//!
//! In each round every mode has a turn with a new interpreter and the same objects: the first fork, which freezes;
//! forks in a row, whose children end at once; forks after `gc.collect()`, which writes to every object that holds
//! others, a tenth of these; and forks after the policy has had the chance to repair. The program measures the call
//! itself.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use super::modes::{Ended, Mode, ProgramError, Sink, failed, need_memory, rounds};
use crate::process::is_runnable;

/// Debian's, which is linked dynamically.
const PROGRAM: &str = "/usr/bin/python3";

/// The time after which no other round begins.
const LIMIT: Duration = Duration::from_secs(80);

/// Forks in a row.
const FORKS: usize = 5;

/// Forks after the collection, before those that show what the policy has made of it.
const SETTLING_FORKS: usize = 100;

/// Answers each line of its input with one: the resident kilobytes once it is ready, then microseconds of a fork, or 0
/// for a collection.
const SCRIPT: &str = r#"
import gc, os, sys, time
gc.disable()
heap = {number: str(number) * 50 for number in range(1180000)}
nodes = [[number, (number,)] for number in range(100000)]
with open("/proc/self/status") as status:
    print(next(line.split()[1] for line in status if line.startswith("VmRSS:")), flush=True)
for line in sys.stdin:
    if line == "collect\n":
        gc.collect()
        print(0, flush=True)
        continue
    start = time.perf_counter_ns()
    child = os.fork()
    if child == 0:
        os._exit(0)
    taken = time.perf_counter_ns() - start
    os.waitpid(child, 0)
    print(taken / 1000, flush=True)
"#;

/// Measures, and gives each sample to `sink`: `python.fork.{first,idle,collected,settled}.MODE`.
pub(crate) fn measure(object: &Path, most: usize, sink: &mut Sink) -> Result<(), ProgramError> {
    if !is_runnable(PROGRAM) {
        return Err(ProgramError::Missing { program: PROGRAM, package: "python3" });
    }
    need_memory(2000)?;
    rounds(most, LIMIT, |round| {
        for turn in 0..Mode::ALL.len() {
            let mode = Mode::ALL[(round + turn) % Mode::ALL.len()];
            let mut interpreter = Interpreter::start(mode, object)?;
            let mut sample = |state: &str, taken| sink(format!("python.fork.{state}.{}", mode.name()), taken);
            interpreter.read()?;
            sample("first", interpreter.ask("fork")?);
            for _ in 0..FORKS {
                sample("idle", interpreter.ask("fork")?);
            }
            interpreter.ask("collect")?;
            for _ in 0..FORKS {
                sample("collected", interpreter.ask("fork")?);
            }
            for _ in 0..SETTLING_FORKS {
                interpreter.ask("fork")?;
            }
            for _ in 0..FORKS {
                sample("settled", interpreter.ask("fork")?);
            }
        }
        Ok(())
    })
}

/// An interpreter that runs [`SCRIPT`].
struct Interpreter {
    // Before the process, so that it is told to end first.
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Ended,
}

impl Interpreter {
    fn start(mode: Mode, object: &Path) -> Result<Self, ProgramError> {
        let mut command = Command::new(PROGRAM);
        mode.prepare(&mut command, object, "refuse");
        if mode == Mode::Thp {
            // Python's own allocator maps pieces of a megabyte, which never become huge pages.
            command.env("PYTHONMALLOC", "malloc").env("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
        }
        let command = command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed("start python3"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Ended(child);
        let (questions, answers) = pipes.ok_or(ProgramError::Ended { program: PROGRAM })?;
        Ok(Self { questions, answers: BufReader::new(answers), _process: process })
    }

    fn ask(&mut self, question: &str) -> Result<f64, ProgramError> {
        writeln!(self.questions, "{question}").map_err(failed("write to python3"))?;
        self.read()
    }

    fn read(&mut self) -> Result<f64, ProgramError> {
        let mut answer = String::new();
        if self.answers.read_line(&mut answer).map_err(failed("read from python3"))? == 0 {
            return Err(ProgramError::Ended { program: PROGRAM });
        }
        let question = "fork".to_owned();
        answer.trim().parse().map_err(|_| ProgramError::Answer { program: PROGRAM, question, answer })
    }
}

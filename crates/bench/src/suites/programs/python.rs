//! Suite `python`: how long `os.fork` takes in CPython with 517 MB of objects.
//!
//! In each round every mode has a turn with a new interpreter and the same objects: the first fork, which plans a
//! freeze in slices; forks in a row, each of which takes a slice if one is left, and whose children end at once; forks
//! after `gc.collect()`, which writes to every object that holds others, a tenth of these; and forks after the policy
//! has had the chance to repair. The program measures the call itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use super::{Ended, Mode, Needs, ProgramError, Threads, Tool, doing, groups, measure, unfrozen};
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{Asked, BenchError, Contestant, Context, Group, Samples, Suite, failed};

/// See the module.
pub(in crate::suites) struct Python;

/// Debian's Python, which is linked dynamically.
const PROGRAM: &str = "/usr/bin/python3";

/// The states, and what a fork in them is.
const STATES: [(&str, &str); 4] = [
    ("first", "os.fork with 517 MB of objects: the first, at which it is frozen"),
    ("idle", "os.fork with 517 MB of objects, nothing written since"),
    ("collected", "os.fork with 517 MB of objects, after gc.collect()"),
    ("settled", "os.fork with 517 MB of objects, 100 forks after gc.collect()"),
];

/// No new round begins after this time.
const LIMIT: Duration = Duration::from_secs(80);

/// Thousands of lists among the objects: together 517 MB.
const SIZE: usize = 1000;

/// The same in the tour: 140 MB.
const TOUR_SIZE: usize = 260;

/// Forks in a row.
const FORKS: usize = 5;

/// Forks after the collection, before those that show the policy's effect.
const SETTLING_FORKS: usize = 100;

/// Answers each line of its input with a line: resident kilobytes once it is ready, then microseconds of a fork, or 0
/// for a collection.
const SCRIPT: &str = r#"
import gc, os, sys, time
gc.disable()
size = int(sys.argv[1])
heap = {number: str(number) * 50 for number in range(size * 1180)}
nodes = [[number, (number,)] for number in range(size * 100)]
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

impl Suite for Python {
    fn id(&self) -> &'static str {
        "python"
    }

    fn description(&self) -> &'static str {
        "os.fork of an unmodified CPython: plain, with huge pages, empty, frozen"
    }

    fn asked(&self) -> Asked {
        Asked::ByName
    }

    fn groups(&self) -> Vec<Group> {
        groups("python", &STATES)
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        let tool = Tool { program: PROGRAM, package: "python3" };
        let needs = Needs { tool, memory: 2000 << 20, rounds: (5, 1), budget: LIMIT };
        measure(context, self.groups(), &needs, |context, mode, sink| {
            let mut interpreter = Interpreter::start(context, mode, if mode == Mode::Empty { 0 } else { SIZE })?;
            interpreter.read()?;
            sink("first", interpreter.ask("fork")?);
            for _ in 0..FORKS {
                sink("idle", interpreter.ask("fork")?);
            }
            interpreter.ask("collect")?;
            for _ in 0..FORKS {
                sink("collected", interpreter.ask("fork")?);
            }
            for _ in 0..SETTLING_FORKS {
                interpreter.ask("fork")?;
            }
            for _ in 0..FORKS {
                sink("settled", interpreter.ask("fork")?);
            }
            Ok(())
        })
    }
}

const TOUR: &str = "python.fork.140m";

/// Modes of the tour.
const TOUR_MODES: [Mode; 2] = [Mode::Plain, Mode::FrozenAtOnce];

/// Returns the tour's figures.
pub(in crate::suites) fn tour_group() -> Group {
    let [plain, frozen] = TOUR_MODES.map(|mode| Contestant::new(format!("{TOUR}.{}", mode.name()), Unit::Microseconds));
    let frozen = frozen.against([plain.id.as_str()]);
    Group::new(TOUR, "os.fork of an unmodified python3 with 140 MB of objects", [plain, frozen])
}

/// Forks of two interpreters, which take turns. The first fork of each, at which one is frozen, is not among the
/// samples. That one is frozen at once, and not in slices as by default: on a busy machine the tour would end before
/// the slices do.
pub(in crate::suites) fn tour(context: &Context<'_>, rounds: Rounds) -> Result<Samples, BenchError> {
    let tool = Tool { program: PROGRAM, package: "python3" };
    let mut samples = Samples::default();
    if let Some(reason) = tool.missing() {
        tour_group().ids().for_each(|id| samples.refuse(id, reason.as_str()));
        return Ok(samples);
    }
    let mut interpreters = Vec::new();
    let refused = unfrozen(context);
    for mode in TOUR_MODES {
        if let Some(reason) = refused.as_deref().filter(|_| mode != Mode::Plain) {
            samples.refuse(&format!("{TOUR}.{}", mode.name()), reason);
            continue;
        }
        let start = || {
            let mut interpreter = Interpreter::start(context, mode, TOUR_SIZE)?;
            interpreter.read()?;
            let first = interpreter.ask("fork")?;
            Ok((format!("{TOUR}.{}", mode.name()), interpreter, first))
        };
        let (id, interpreter, first) = start().map_err(failed::<ProgramError>(TOUR, mode.name()))?;
        if mode == Mode::FrozenAtOnce {
            samples.note(&id, format!("froze in {:.2} s (--pause none)", first / 1e6));
        }
        interpreters.push((id, interpreter));
    }
    interleave(&mut interpreters, rounds, |(id, interpreter)| {
        samples.add(id, interpreter.ask("fork").map_err(failed(TOUR, "python3"))?);
        Ok::<(), BenchError>(())
    })?;
    Ok(samples)
}

/// An interpreter that runs [`SCRIPT`].
struct Interpreter {
    // Before the process, so that this is dropped first and tells it to end.
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
    _process: Ended,
}

impl Interpreter {
    fn start(context: &Context<'_>, mode: Mode, size: usize) -> Result<Self, ProgramError> {
        let mut command = mode.command(context, PROGRAM, Threads::Refuse)?;
        if mode == Mode::Thp {
            // Python's own allocator maps pieces of a megabyte, which never become huge pages.
            command.env("PYTHONMALLOC", "malloc");
        }
        let command = command.args(["-c", SCRIPT, &size.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(doing("start python3"))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let process = Ended(child);
        let (questions, answers) = pipes.ok_or(ProgramError::Ended { program: PROGRAM })?;
        Ok(Self { questions, answers: BufReader::new(answers), _process: process })
    }

    fn ask(&mut self, question: &str) -> Result<f64, ProgramError> {
        writeln!(self.questions, "{question}").map_err(doing("write to python3"))?;
        self.read()
    }

    fn read(&mut self) -> Result<f64, ProgramError> {
        let mut answer = String::new();
        if self.answers.read_line(&mut answer).map_err(doing("read from python3"))? == 0 {
            return Err(ProgramError::Ended { program: PROGRAM });
        }
        let question = "fork".to_owned();
        answer.trim().parse().map_err(|_| ProgramError::Answer { program: PROGRAM, question, answer })
    }
}

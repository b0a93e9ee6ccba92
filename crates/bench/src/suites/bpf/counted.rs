//! `bpf.stress160.counted`: iTLB misses of the kernel's stress tool for its own packs, as the CPU counts them.
//!
//! The hot programs of `stress` really run, in a thread that shares one CPU with a compiler. Between two rounds the
//! thread sleeps, so that the compiler has the CPU, and its TLB; only rounds are counted. Where something is missing,
//! the figures are skipped, and the reason says what.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use palimpsest_sys::Causes;
use rustix::io::Errno;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

use super::super::programs::{Ended, ProgramError, Scratch, Tool, doing};
use super::stress::{self, HOT, INSTANCES, KINDS, hot};
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Context, Group, Samples, expect, failed};
use crate::machine::{CountError, Counters, Event, Population, die_with_this_thread};
use crate::placers::Who;
use crate::programs::compile_printers;

const ALL: [Who; 3] = [Who::Packed, Who::PageEach, Who::Bucket128k];

/// What is counted: the figure, and what its note tells.
const EVENTS: [Event; 2] = [Event::ItlbMisses, Event::Instructions];

/// Rounds of a sample: each calls every hot program once.
const TURNS: usize = 20;

/// How long the compiler has the CPU between two rounds.
const COMPILING: Duration = Duration::from_millis(1);

/// Functions of the compiled program: some seconds' work.
const FUNCTIONS: usize = 2000;

/// Time for all samples.
const BUDGET: Duration = Duration::from_secs(10);

const RUSTC: Tool = Tool { program: "rustc", package: "rustc" };

fn id(who: Who) -> String {
    format!("{}.counted.{}", stress::ID, who.name())
}

pub(super) fn group() -> Group {
    let title = format!(
        "iTLB misses of 1000 calls, as the CPU counts them in user mode, {} programs of which {} are hot, beside a \
         compile job",
        KINDS * INSTANCES,
        HOT * INSTANCES
    );
    Group::new(format!("{}.counted", stress::ID), title, ALL.map(|who| who.contestant(&ALL, Unit::Count, id)))
}

pub(super) fn run(context: &mut Context<'_>) -> Result<(), BenchError> {
    let group = group();
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(&group.id);
    let plan = Plan { events: EVENTS, rounds: context.effort.rounds(10, 60, BUDGET), compiler: RUSTC };
    let samples = plan.measure()?;
    context.record(&group, samples);
    Ok(())
}

/// What is measured. The tests count what every machine can count.
struct Plan {
    events: [Event; 2],
    rounds: Rounds,
    compiler: Tool,
}

/// Why nothing is measured.
#[derive(Debug, thiserror::Error)]
enum Lack {
    #[error(transparent)]
    Counter(#[from] CountError),
    #[error("this thread cannot be kept on one CPU")]
    Pin(#[from] Errno),
    #[error("{0}")]
    Compiler(String),
    #[error("nothing compiles beside the programs")]
    Job(#[from] ProgramError),
    /// Some hypervisors offer counters that do not count.
    #[error("not one instruction in {0} calls: the counters here do not count")]
    Dead(u64),
    /// Not a lack: the run ends.
    #[error("the programs do not run")]
    Broken(#[from] BenchError),
}

impl Plan {
    /// Returns samples, or refusals with their reason, from a thread that ends afterwards.
    fn measure(&self) -> Result<Samples, BenchError> {
        let measured = thread::scope(|scope| {
            let measuring = scope.spawn(|| self.measure_here());
            measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        match measured {
            Ok(samples) => Ok(samples),
            Err(Lack::Broken(error)) => Err(error),
            Err(lack) => Ok(refused(&lack)),
        }
    }

    fn measure_here(&self) -> Result<Samples, Lack> {
        // First, so that neither the CPU nor a process is taken where nothing can be counted.
        let counters = Counters::open(self.events)?;
        let mut contestants = ALL.iter().map(|who| Counted::place(*who)).collect::<Result<Vec<_>, _>>()?;
        // The compiler inherits the CPU; it ends before the thread leaves.
        let _pinned = Pinned::here()?;
        let mut job = Job::start(self.compiler)?;
        interleave(&mut contestants, self.rounds, |contestant| contestant.sample(&counters, &mut job))?;
        drop(job);
        let mut samples = Samples::default();
        for contestant in contestants {
            contestant.tell(&mut samples)?;
        }
        Ok(samples)
    }
}

/// Returns the reason why there is no figure, for each of them.
fn refused(lack: &Lack) -> Samples {
    let (mut samples, reason) = (Samples::default(), Causes(lack).to_string());
    ALL.iter().for_each(|who| samples.refuse(&id(*who), reason.as_str()));
    samples
}

/// The programs of one contestant, and what was counted while they ran.
struct Counted {
    who: Who,
    programs: Population,
    per_thousand: Vec<f64>,
    calls: u64,
    instructions: u64,
}

impl Counted {
    fn place(who: Who) -> Result<Self, BenchError> {
        let id = id(who);
        let placed = compile_printers(KINDS)
            .and_then(|printers| Population::place_printers(who.open()?, &printers, INSTANCES))
            .map_err(failed(&id, who.name()))?;
        Ok(Self { who, programs: placed, per_thousand: Vec::new(), calls: 0, instructions: 0 })
    }

    fn sample(&mut self, counters: &Counters, job: &mut Job) -> Result<(), Lack> {
        let order: Vec<usize> = hot().collect();
        let hot = self.programs.in_order(&order);
        // The first round brings what no program had touched before.
        hot.call_all(0);
        let (mut misses, mut instructions) = (0, 0);
        for _ in 0..TURNS {
            job.keep_running()?;
            thread::sleep(COMPILING);
            let (sum, [first, second]) = counters.count(|| hot.call_all(0))?;
            expect(&id(self.who), self.who.name(), 0, sum)?;
            misses += first;
            instructions += second;
        }
        let calls = (TURNS * hot.len()) as u64;
        if instructions == 0 {
            return Err(Lack::Dead(calls));
        }
        self.instructions += instructions;
        self.calls += calls;
        self.per_thousand.push(misses as f64 * 1000.0 / calls as f64);
        Ok(())
    }

    /// Adds what was counted, and frees the programs.
    fn tell(self, samples: &mut Samples) -> Result<(), BenchError> {
        let id = id(self.who);
        samples.extend(&id, self.per_thousand);
        let instructions = self.instructions as f64 / self.calls as f64;
        samples.note(&id, format!("{} calls, {instructions:.1} instructions each", self.calls));
        if let Some(huge) = self.programs.huge_mapped() {
            let [mapped, reserved] = [huge.mapped_bytes, huge.reserved_bytes].map(|bytes| bytes >> 10);
            samples.note(&id, format!("the kernel maps {mapped} of {reserved} KiB by huge pages"));
        }
        self.programs.free().map_err(failed(&id, self.who.name()))
    }
}

/// The calling thread stays on the CPU where it is, until this is dropped.
struct Pinned {
    before: CpuSet,
}

impl Pinned {
    fn here() -> Result<Self, Errno> {
        let before = sched_getaffinity(None)?;
        let mut here = CpuSet::new();
        let cpu = sched_getcpu();
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno::RANGE);
        }
        here.set(cpu);
        sched_setaffinity(None, &here)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It fails if these CPUs have left the machine, and then the kernel has chosen others.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// A compiler that works, again and again, where the thread that has started it runs. When this is dropped, or that
/// thread ends, it is killed.
struct Job {
    process: Ended,
    program: PathBuf,
    folder: Scratch,
}

impl Job {
    fn start(compiler: Tool) -> Result<Self, Lack> {
        if let Some(missing) = compiler.missing() {
            return Err(Lack::Compiler(missing));
        }
        let folder = Scratch::new(&format!("stress160-{}", gettid()))?;
        let text: String = (0..FUNCTIONS).map(|number| COMPILED.replace("NUMBER", &number.to_string())).collect();
        fs::write(folder.0.join(SOURCE), text).map_err(doing("write a program in Rust"))?;
        let program = PathBuf::from(compiler.program);
        let process = Ended(spawn(&program, &folder)?);
        Ok(Self { process, program, folder })
    }

    /// Starts the compiler again if it has finished.
    fn keep_running(&mut self) -> Result<(), ProgramError> {
        let Some(status) = self.process.0.try_wait().map_err(doing("wait for the compiler"))? else {
            return Ok(());
        };
        if !status.success() {
            let said = fs::read_to_string(self.folder.0.join(MESSAGES)).unwrap_or_default().trim().to_owned();
            return Err(ProgramError::Failed { command: self.program.display().to_string(), status, said });
        }
        self.process = Ended(spawn(&self.program, &self.folder)?);
        Ok(())
    }
}

/// Names in the job's folder.
const SOURCE: &str = "compiled.rs";
const MESSAGES: &str = "messages";

/// A function of the compiled program.
const COMPILED: &str = "pub fn compiled_NUMBER(values: &[u64]) -> Option<String> {
    let mut counts = std::collections::BTreeMap::<u64, Vec<usize>>::new();
    for (index, value) in values.iter().enumerate().filter(|(_, value)| **value % 7 != NUMBER % 7) {
        counts.entry(value ^ NUMBER).or_default().push(index);
    }
    let most = counts.iter().max_by_key(|(value, places)| (places.len(), **value))?;
    Some(format!(\"{most:?} of {}\", counts.len()))
}
";

/// Starts the compiler, which needs no linker and starts no process for what is asked of it.
fn spawn(program: &PathBuf, folder: &Scratch) -> Result<std::process::Child, ProgramError> {
    let messages = File::create(folder.0.join(MESSAGES)).map_err(doing("make a file for the compiler's messages"))?;
    let mut command = Command::new(program);
    command.args(["--edition=2021", "--crate-type=lib", "--emit=obj", "-Copt-level=2", "-Ccodegen-units=1"]);
    command.args(["-Awarnings", SOURCE]).current_dir(&folder.0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(messages);
    die_with_this_thread(&mut command).spawn().map_err(doing("start the compiler"))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, WaitOptions, waitpid};

    use super::*;

    /// Counted everywhere.
    const EVERYWHERE: [Event; 2] = [Event::PageFaults, Event::TaskClock];

    fn plan(events: [Event; 2], compiler: Tool) -> Plan {
        Plan { events, rounds: Rounds { least: 2, most: 2, budget: Duration::MAX }, compiler }
    }

    fn with(program: &'static str) -> Tool {
        Tool { program, package: "somewhere" }
    }

    /// Whether no figure was measured, all of them for a reason that contains `why`.
    fn skipped(samples: Samples, why: &str) -> bool {
        let (entries, skipped) = group().evaluate(samples, None);
        println!("{skipped:?}");
        entries.is_empty() && skipped.len() == ALL.len() && skipped.iter().all(|skip| skip.reason.contains(why))
    }

    /// Why this machine cannot even count what the kernel counts, or has no compiler.
    fn lack() -> Option<String> {
        Counters::open(EVERYWHERE).map(drop).map_err(|error| error.to_string()).err().or_else(|| RUSTC.missing())
    }

    #[test]
    fn every_contestant_is_counted_while_a_compiler_runs() {
        if let Some(lack) = lack() {
            return println!("skipped: {lack}");
        }
        let samples = plan(EVERYWHERE, RUSTC).measure().expect("the programs run");
        let (entries, skipped) = group().evaluate(samples, None);
        assert!(skipped.is_empty(), "{skipped:?}");
        let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
        assert_eq!(ids, ALL.map(id));
        let calls = format!("{} calls, ", 2 * TURNS * HOT * INSTANCES);
        for entry in entries {
            assert!(entry.runs == 2 && entry.note.as_ref().is_some_and(|note| note.contains(&calls)), "{entry:?}");
        }
    }

    #[test]
    fn counts_are_those_of_a_thousand_calls() {
        let mut counted = Counted::place(Who::PageEach).expect("pages");
        (counted.calls, counted.instructions) = (4000, 10_000);
        counted.per_thousand.push(7.0);
        let mut samples = Samples::default();
        counted.tell(&mut samples).expect("programs are freed");
        assert_eq!(samples.median(&id(Who::PageEach)), Some(7.0));
        let (entries, _) = group().evaluate(samples, None);
        assert_eq!(entries[0].note.as_deref(), Some("4000 calls, 2.5 instructions each"));
    }

    #[test]
    fn a_counter_that_is_not_there_is_a_skip_with_its_reason() {
        // The kernel is asked before anything else.
        let samples = plan([Event::Nothing, Event::TaskClock], with("no-such-program-here")).measure();
        assert!(skipped(samples.expect("no error"), "nothing"));
        let samples = plan([Event::ItlbMisses, Event::Nothing], with("no-such-program-here")).measure();
        assert!(skipped(samples.expect("no error"), ": E"));
    }

    #[test]
    fn a_counter_that_does_not_count_is_a_skip_with_its_reason() {
        if let Some(lack) = lack() {
            return println!("skipped: {lack}");
        }
        let samples = plan([Event::TaskClock, Event::Dummy], RUSTC).measure();
        assert!(skipped(samples.expect("no error"), "in 2000 calls: the counters here do not count"));
    }

    #[test]
    fn a_compiler_that_is_missing_or_fails_is_a_skip_with_its_reason() {
        if let Some(lack) = lack() {
            return println!("skipped: {lack}");
        }
        let samples = plan(EVERYWHERE, with("no-such-program-here")).measure();
        assert!(skipped(samples.expect("no error"), "install Debian's package somewhere"));
        let mut job = Job::start(with("false")).expect("there is false");
        let failed = loop {
            if let Err(error) = job.keep_running() {
                break error;
            }
        };
        assert!(skipped(refused(&failed.into()), "`false` ended with exit status: 1"));
    }

    #[test]
    fn the_thread_leaves_its_cpu_and_the_compiler_inherits_it() {
        if let Some(missing) = RUSTC.missing() {
            return println!("skipped: {missing}");
        }
        let before = sched_getaffinity(None).expect("known");
        let pinned = Pinned::here().expect("a thread may stay where it is");
        let own = sched_getaffinity(None).expect("known");
        assert_eq!(own.count(), 1);
        let job = Job::start(RUSTC).expect("a compiler");
        let (child, folder) = (Pid::from_child(&job.process.0), job.folder.0.clone());
        assert!(sched_getaffinity(Some(child)).expect("it is alive") == own);
        drop(job);
        assert_eq!(waitpid(Some(child), WaitOptions::NOHANG).map(drop), Err(Errno::CHILD), "it was not waited for");
        assert!(!folder.exists());
        drop(pinned);
        assert!(sched_getaffinity(None).expect("known") == before);
    }

    #[test]
    fn a_compiler_that_has_finished_starts_again() {
        let mut job = Job::start(with("true")).expect("there is true");
        let first = job.process.0.id();
        while job.process.0.id() == first {
            job.keep_running().expect("it succeeds");
        }
    }
}

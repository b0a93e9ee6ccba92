//! The process of one contestant: makes its heap, then measures what standard input asks for, and answers each line
//! with a line.

use std::io::{self, BufRead, Write};
use std::time::{Duration, Instant};

use palimpsest_fork::Pages;
use palimpsest_fork::arena::Arena;
use palimpsest_fork::snapshot::Sweep;

use super::question::Question;
use super::who::Who;
use crate::harness::BenchError;
use crate::harness::clock::Stopwatch;
use crate::machine::{
    Child, ForkWay, Heap, HeapPages, Looping, Reset, Watch, Watcher, ask_child, freeze, freeze_arena, sleep, spawn,
};
use palimpsest_sys::Causes;

/// The beginning of the answer of a worker that is ready; the milliseconds of its freeze follow.
pub(super) const READY: &str = "ready ";

/// The beginning of the answer of a worker that cannot do something; the reason follows.
pub(super) const REFUSED: &str = "refused ";

/// Forks for one answer, which is their median.
const FORKS: usize = 5;

/// Forks with dirty pages for one answer, which is their mean, so that repairs count, too.
const DIRTY_FORKS: usize = 8;

/// The most bytes that a child touches.
const TOUCHED: usize = 64 << 20;

static ARENA: Arena = Arena::new();

/// Serves as `contestant` with a heap of `bytes` until standard input ends.
///
/// # Errors
///
/// Fails for unknown contestants, for what is not a number, and if a pipe breaks. If the machine refuses something,
/// that is an answer.
pub(in crate::suites) fn work(contestant: &str, bytes: &str) -> Result<(), BenchError> {
    let failed = |reason: String| BenchError::Helper { contestant: contestant.to_owned(), reason };
    let bytes: usize = bytes.parse().map_err(|_| failed(format!("`{bytes}` is no number of bytes")))?;
    let who: Who = contestant.parse().map_err(|error: super::who::UnknownWho| failed(error.to_string()))?;
    let answer = |line: &str| -> Result<(), BenchError> {
        let mut out = io::stdout().lock();
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|error| failed(error.to_string()))
    };
    let mut worker = match Worker::new(who, bytes) {
        Ok((worker, frozen)) => {
            answer(&format!("{READY}{}", frozen.as_secs_f64() * 1e3))?;
            worker
        }
        Err(reason) => return answer(&format!("{REFUSED}{reason}")),
    };
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| failed(error.to_string()))?;
        let question: Question =
            line.parse().map_err(|error: super::question::NoQuestion| failed(error.to_string()))?;
        match worker.measure(question) {
            Ok(number) => answer(&number.to_string())?,
            Err(reason) => answer(&format!("{REFUSED}{reason}"))?,
        }
    }
    Ok(())
}

struct Worker {
    who: Who,
    heap: Heap,
    watcher: Option<Watcher>,
    /// The snapshot, and the question for which it was taken.
    reset: Option<(Question, Reset)>,
}

fn told(error: impl std::error::Error) -> String {
    Causes(&error).to_string()
}

impl Worker {
    /// Makes the heap and returns how long freezing it took.
    fn new(who: Who, bytes: usize) -> Result<(Self, Duration), String> {
        let heap = match who {
            Who::Empty => Heap::map(1, HeapPages::Base),
            Who::Thp => Heap::map(bytes, HeapPages::Huge),
            Who::FrozenHuge => Heap::map(bytes, HeapPages::Unadvised),
            Who::Arena => Heap::allocate(bytes, &ARENA),
            _ => Heap::map(bytes, HeapPages::Base),
        }
        .map_err(told)?;
        let mut worker = Self { who, heap, watcher: None, reset: None };
        if who == Who::UffdCopy {
            worker.watcher = Some(Watcher::new(Watch::Absent).map_err(told)?);
            return Ok((worker, Duration::ZERO));
        }
        worker.all().for_each(|page| worker.heap.write(page, page as u64 + 1));
        let frozen = match who {
            Who::Frozen => freeze(Pages::Base).map_err(told)?,
            Who::FrozenHuge => freeze(Pages::Collapse).map_err(told)?,
            Who::Arena => freeze_arena(&ARENA).map_err(told)?,
            _ => Duration::ZERO,
        };
        if who == Who::UffdWp {
            worker.watcher = Some(Watcher::new(Watch::Writes).map_err(told)?);
        }
        // A freeze leaves the page tables empty; a program that goes on fills them again.
        if let Some(page) = worker.all().find(|&page| worker.heap.read(page) != page as u64 + 1) {
            return Err(format!("page {page} of {} lost its contents", who.name()));
        }
        Ok((worker, frozen))
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.heap.pages()
    }

    fn measure(&mut self, question: Question) -> Result<f64, String> {
        match question {
            Question::Fork => self.fork(),
            Question::Dirty(pages) => self.dirty(pages),
            Question::WriteSequential => self.touch(Order::Sequential, |heap, page| heap.write(page, 1)),
            Question::WriteRandom => self.touch(Order::Random, |heap, page| heap.write(page, 1)),
            Question::Read => self.touch(Order::Sequential, |heap, page| {
                std::hint::black_box(heap.read(page));
            }),
            Question::Rss => self.status("VmRSS:"),
            Question::Pte => self.status("VmPTE:"),
            Question::ResetKnown(pages) => self.restore(question, Sweep::Never, pages),
            Question::ResetScan(pages) => self.restore(question, Sweep::Always, pages),
            Question::ForkPerRun(pages) => self.fork_per_run(pages),
            Question::Turn(pages) => self.turn(pages),
        }
    }

    fn way(&self) -> ForkWay {
        match self.who {
            Who::Frozen | Who::FrozenHuge => ForkWay::Repairing,
            _ => ForkWay::Plain,
        }
    }

    fn fork(&self) -> Result<f64, String> {
        let mut times = Vec::with_capacity(FORKS);
        for _ in 0..FORKS {
            let taken = match &self.watcher {
                Some(watcher) => {
                    let taken = watcher.arm(&self.heap).map_err(told)?;
                    watcher.disarm(&self.heap).map_err(told)?;
                    taken
                }
                None => {
                    let (child, taken) = spawn(self.way(), || 0).map_err(told)?;
                    child.wait().map_err(told)?;
                    taken
                }
            };
            times.push(taken);
        }
        times.sort_unstable();
        Ok(times[FORKS / 2].as_secs_f64() * 1e6)
    }

    /// Forks while a child lives, whose existence makes the parent's writes copies. Writes the same pages each time,
    /// evenly spread.
    fn dirty(&self, pages: usize) -> Result<f64, String> {
        let step = self.heap.pages() / pages;
        let mut alive: Option<Child> = None;
        let mut sum = Duration::ZERO;
        for round in 0..=DIRTY_FORKS {
            (0..pages).for_each(|index| self.heap.write(index * step, round as u64));
            let (child, taken) = spawn(self.way(), sleep).map_err(told)?;
            // Before the first fork there is no child.
            if round > 0 {
                sum += taken;
            }
            alive.replace(child).map_or(Ok(()), Child::end).map_err(told)?;
        }
        alive.map_or(Ok(()), Child::end).map_err(told)?;
        Ok(sum.as_secs_f64() * 1e6 / DIRTY_FORKS as f64)
    }

    /// Makes a child, or this process if it does not fork, touch pages for the first time.
    fn touch(&self, order: Order, touch: fn(&Heap, usize)) -> Result<f64, String> {
        let count = self.heap.pages().min(TOUCHED / rustix::param::page_size());
        let pages = order.of(count);
        let per_page = |taken: Duration| taken.as_secs_f64() * 1e9 / count as f64;
        let Some(watcher) = &self.watcher else {
            return ask_child(self.way(), || {
                let stopwatch = Stopwatch::start();
                pages.iter().for_each(|&page| touch(&self.heap, page));
                Ok(per_page(stopwatch.elapsed()))
            })
            .map_err(told);
        };
        watcher.arm(&self.heap).map_err(told)?;
        // Another thread does part of the work, so this is wall-clock time.
        let started = Instant::now();
        pages.iter().for_each(|&page| touch(&self.heap, page));
        let taken = started.elapsed();
        watcher.disarm(&self.heap).map_err(told)?;
        if self.who == Who::UffdCopy {
            self.heap.discard().map_err(told)?;
        }
        Ok(per_page(taken))
    }

    /// Returns a size in a child's `/proc/self/status`, which counts KiB.
    fn status(&self, field: &'static str) -> Result<f64, String> {
        ask_child(self.way(), || {
            let text = std::fs::read_to_string("/proc/self/status")?;
            let line = text.lines().find_map(|line| line.strip_prefix(field)).ok_or(io::ErrorKind::Unsupported)?;
            let kib: f64 = line.trim_end_matches("kB").trim().parse().map_err(io::Error::other)?;
            Ok(kib * 1024.0)
        })
        .map_err(told)
    }

    /// Returns what a fork for each round costs, instead of restoring pages.
    fn fork_per_run(&self, pages: usize) -> Result<f64, String> {
        let step = self.heap.pages() / pages;
        let mut times = Vec::with_capacity(FORKS);
        for round in 0..FORKS as u64 {
            // The child is another process, so this is wall-clock time.
            let started = Instant::now();
            let run = || {
                (0..pages).for_each(|index| self.heap.write(index * step, round));
                0
            };
            let (child, _) = spawn(self.way(), run).map_err(told)?;
            child.wait().map_err(told)?;
            times.push(started.elapsed());
        }
        times.sort_unstable();
        Ok(times[FORKS / 2].as_secs_f64() * 1e6)
    }

    /// Returns what a turn of a child costs that goes on with what the last turn left.
    fn turn(&self, pages: usize) -> Result<f64, String> {
        let step = self.heap.pages() / pages;
        let mut round = 0;
        let looping = Looping::start(|| {
            round += 1;
            (0..pages).for_each(|index| self.heap.write(index * step, round));
        })
        .map_err(told)?;
        // Its first writes copy pages.
        looping.turn().map_err(told)?;
        let mut times = [Duration::ZERO; FORKS];
        for taken in &mut times {
            // The child is another process, so this is wall-clock time.
            let started = Instant::now();
            looping.turn().map_err(told)?;
            *taken = started.elapsed();
        }
        looping.end().map_err(told)?;
        times.sort_unstable();
        Ok(times[FORKS / 2].as_secs_f64() * 1e6)
    }

    fn restore(&mut self, question: Question, sweep: Sweep, pages: usize) -> Result<f64, String> {
        let step = self.heap.pages() / pages;
        if !self.reset.as_ref().is_some_and(|(taken_for, _)| *taken_for == question) {
            self.reset = None;
            let mut reset = Reset::take(&self.heap, sweep)?;
            if sweep == Sweep::Never {
                (0..pages).try_for_each(|index| reset.declare(&self.heap, index * step))?;
            }
            self.reset = Some((question, reset));
        }
        let Some((_, reset)) = &mut self.reset else { return Err("there is no snapshot".to_owned()) };
        let mut times = Vec::with_capacity(FORKS);
        for round in 0..FORKS as u64 {
            (0..pages).for_each(|index| self.heap.write(index * step, round));
            let (taken, put_back) = reset.restore()?;
            if put_back < pages {
                return Err(format!("{put_back} of {pages} pages were put back"));
            }
            times.push(taken);
        }
        if let Some(page) = (0..pages).map(|index| index * step).find(|&page| self.heap.read(page) != page as u64 + 1) {
            return Err(format!("page {page} was not put back"));
        }
        times.sort_unstable();
        Ok(times[FORKS / 2].as_secs_f64() * 1e6)
    }
}

/// The order in which pages are touched.
#[derive(Clone, Copy)]
enum Order {
    Sequential,
    Random,
}

impl Order {
    /// Numbers of `count` pages, each once.
    fn of(self, count: usize) -> Vec<usize> {
        let mut pages: Vec<usize> = (0..count).collect();
        if matches!(self, Self::Random) {
            let mut state = 1_u64;
            for last in (1..count).rev() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                pages.swap(last, (state >> 33) as usize % (last + 1));
            }
        }
        pages
    }
}

//! Suite `mix`: Redis with 640 MB under a steady load while it saves every few seconds.
//!
//! 4000 requests come each second, whether the server answers or not: a request that must wait is late by its wait, and
//! so are those after it. Keys follow Zipf's law (0.99), and 2 or 20 of a hundred requests write. In each round every
//! mode has one life: making the data, two saves to warm up (the freeze begins at the first), some seconds after each
//! in which the freeze goes on, then the measured time.
//!
//! `fork` is what Redis reports of its forks (`latest_fork_usec`), `p99` and `p999` are latencies of all requests of
//! the measured time, `rss` is what server and saving child occupy together at its end. The last file that was saved is
//! checked by Redis's own program and must have all keys. `empty` begins without data, and has what is written to it.

mod footprint;
mod load;

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use self::load::{Load, Writes};
use super::server::{PROGRAM, Server};
use super::{Mode, ProgramError, Scratch, Threads, Tool, doing, finish, unfrozen};
use crate::harness::host::available_memory;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{Asked, BenchError, Contestant, Context, Effort, Group, Samples, Suite, failed};

/// See the module.
pub(in crate::suites) struct Mix;

/// Keys, with values of this many bytes: 640 MB as Redis keeps them.
const KEYS: u64 = 1_140_000;
const VALUE: usize = 400;

/// Reads a saved file from beginning to end, with its checksum.
const CHECKER: Tool = Tool { program: "redis-check-rdb", package: "redis-tools" };

/// Percentage of requests that write.
const SHARES: [u32; 2] = [2, 20];

const MODES: [Mode; 6] = [Mode::Plain, Mode::Thp, Mode::Empty, Mode::Default, Mode::Frozen, Mode::Gather];

/// Time between the beginnings of two saves, unless one takes longer.
const BETWEEN: Duration = Duration::from_secs(3);

/// Saves before anything counts.
const WARM_UP: usize = 2;

/// Memory for the data of two servers and the copies of a child, in bytes.
const NEEDED: usize = 2500 << 20;

/// The figures of a life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Figure {
    Fork,
    Late,
    VeryLate,
    Memory,
}

impl Figure {
    const ALL: [Self; 4] = [Self::Fork, Self::Late, Self::VeryLate, Self::Memory];

    fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Late => "p99",
            Self::VeryLate => "p999",
            Self::Memory => "rss",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Fork => "a fork to save",
            Self::Late => "latency of the slowest hundredth of requests",
            Self::VeryLate => "latency of the slowest thousandth of requests",
            Self::Memory => "memory of server and saving child",
        }
    }

    fn unit(self) -> Unit {
        match self {
            Self::Fork | Self::Late | Self::VeryLate => Unit::Microseconds,
            Self::Memory => Unit::Bytes,
        }
    }

    fn id(self, share: u32, mode: Mode) -> String {
        format!("fork.mix.{share}.{}.{}", self.name(), mode.name())
    }

    fn group(self, share: u32) -> Group {
        let contestant = |mode: Mode| {
            let contestant = Contestant::new(self.id(share, mode), self.unit());
            let rivals = Mode::RIVALS.map(|rival| self.id(share, rival));
            if Mode::RIVALS.contains(&mode) { contestant } else { contestant.against(rivals) }
        };
        let title = format!("{}, Redis with 640 MB, {share} % writes, saving", self.title());
        Group::new(format!("fork.mix.{share}.{}", self.name()), title, MODES.map(contestant))
    }
}

impl Suite for Mix {
    fn id(&self) -> &'static str {
        "mix"
    }

    fn description(&self) -> &'static str {
        "Redis under a steady load while it saves: plain, with huge pages, empty, by default, frozen, gathered"
    }

    fn asked(&self) -> Asked {
        Asked::ByName
    }

    fn groups(&self) -> Vec<Group> {
        SHARES.iter().flat_map(|&share| Figure::ALL.map(|figure| figure.group(share))).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        let missing = || {
            let available = available_memory();
            let (available, needed) = (available >> 20, NEEDED >> 20);
            let lacking = format!("{available} MiB of memory are available, and {needed} are needed");
            let tool = Tool { program: PROGRAM, package: PROGRAM };
            tool.missing()
                .or_else(|| CHECKER.missing())
                .or((available < needed).then_some(lacking))
                .or_else(|| unfrozen(context))
        };
        let wanted = context.wanted(self.groups());
        if let Some(reason) = missing().filter(|_| !wanted.is_empty()) {
            wanted.iter().for_each(|group| context.skip(group, &reason));
            return Ok(());
        }
        for share in SHARES {
            let groups: Vec<Group> = Figure::ALL
                .map(|figure| figure.group(share))
                .into_iter()
                .filter(|group| context.wants(group))
                .collect();
            if groups.is_empty() {
                continue;
            }
            let id = format!("fork.mix.{share}");
            context.begin(&id);
            let scratch = Scratch::new("mix").map_err(failed(&id, PROGRAM))?;
            let mut samples = Samples::default();
            // One round of a quick run takes almost a minute for both shares.
            let (most, times) = match context.effort {
                Effort::Full => (5, Times { warm: Duration::from_secs(6), measured: Duration::from_secs(15) }),
                Effort::Quick => (1, Times { warm: Duration::from_secs(2), measured: Duration::from_secs(4) }),
                Effort::Check => (1, Times { warm: Duration::ZERO, measured: Duration::from_secs(1) }),
            };
            let rounds = Rounds { least: 1, most, budget: Duration::from_secs(120) };
            interleave(&mut MODES.to_vec(), rounds, |&mut mode| {
                let command = mode.command(context, PROGRAM, Threads::Stop).map_err(failed(&id, mode.name()))?;
                let life = Server::start(command, mode, &scratch.0).and_then(|server| {
                    let life = live(server, mode, share, times)?;
                    check(&Server::saved(mode, &scratch.0), mode).map(|()| life)
                });
                life.map_err(failed(&id, mode.name()))?.tell(share, mode, &mut samples);
                Ok::<(), BenchError>(())
            })?;
            for group in groups {
                let own = samples.take(&group);
                context.record(&group, own);
            }
        }
        Ok(())
    }
}

/// The results of a life.
struct Life {
    /// The first fork, at which a freeze begins, in microseconds.
    first: f64,
    /// Forks of the measured time, in microseconds.
    forks: Vec<f64>,
    /// Latencies of the slowest hundredth and thousandth, and of the slowest request, in microseconds.
    late: f64,
    very_late: f64,
    latest: f64,
    /// In bytes.
    memory: f64,
    /// Answered requests per second.
    rate: f64,
}

impl Life {
    fn tell(&self, share: u32, mode: Mode, samples: &mut Samples) {
        let id = |figure: Figure| figure.id(share, mode);
        samples.extend(&id(Figure::Fork), self.forks.iter().copied());
        samples.note(&id(Figure::Fork), format!("the first, before the measured time: {:.1} ms", self.first / 1e3));
        samples.add(&id(Figure::Late), self.late);
        samples.note(&id(Figure::Late), format!("{:.0} requests a second answered", self.rate));
        samples.add(&id(Figure::VeryLate), self.very_late);
        samples.note(&id(Figure::VeryLate), format!("the slowest: {:.1} ms", self.latest / 1e3));
        samples.add(&id(Figure::Memory), self.memory);
    }
}

/// The parts of a life, without the time to make the data.
#[derive(Clone, Copy)]
struct Times {
    /// Time after each save that warms up.
    warm: Duration,
    measured: Duration,
}

fn live(mut server: Server, mode: Mode, share: u32, times: Times) -> Result<Life, ProgramError> {
    server.populate(mode.data(KEYS), VALUE)?;
    let mut load = Load::start(server.connect()?, Writes { share, keys: KEYS, value: VALUE })?;
    let mut first = 0.0;
    for save in 0..WARM_UP {
        let taken = server.fork()?;
        if save == 0 {
            first = taken;
        }
        thread::sleep(times.warm);
    }
    load.count_from_now();
    let started = Instant::now();
    let mut forks = Vec::new();
    while started.elapsed() < times.measured || forks.is_empty() {
        let begun = Instant::now();
        server.save()?;
        forks.push(server.fork_taken()?);
        while server.is_saving()? || begun.elapsed() < BETWEEN {
            if load.has_ended() {
                return Err(load.finish().err().unwrap_or(ProgramError::Ended { program: PROGRAM }));
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
    load.count_until_now();
    // Reading the accounts delays the server, so this comes last, with the load still running: it forces the child's
    // copies.
    server.save()?;
    thread::sleep(Duration::from_millis(500));
    let memory = footprint::of(server.pid(), &server.saving()?).map_err(doing("read what redis-server occupies"))?;
    let answered = load.finish()?;
    server.stop_saving()?;
    let latency = |share| answered.at(share).ok_or_else(nothing);
    Ok(Life {
        first,
        forks,
        late: latency(0.99)?,
        very_late: latency(0.999)?,
        latest: latency(1.0)?,
        memory: memory as f64,
        rate: answered.rate(),
    })
}

/// Checks a saved file. A server that began without data has some of the keys.
fn check(file: &Path, mode: Mode) -> Result<(), ProgramError> {
    let output = finish(Command::new(CHECKER.program).arg(file).stdin(Stdio::null()))?;
    let answer = String::from_utf8_lossy(&output.stdout).into_owned();
    let keys = keys_read(&answer);
    if keys == Some(KEYS) || keys.is_some() && mode == Mode::Empty {
        return Ok(());
    }
    let question = format!("whether {} has {KEYS} keys", file.display());
    Err(ProgramError::Answer { program: CHECKER.program, question, answer })
}

/// Returns how many keys the checker has read.
fn keys_read(said: &str) -> Option<u64> {
    said.lines().find_map(|line| line.strip_prefix("[info] ")?.strip_suffix(" keys read")?.parse().ok())
}

fn nothing() -> ProgramError {
    doing("count answers of redis-server")(io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_checked_file_are_read() {
        let said = "[offset 0] Checking RDB file x.rdb\n[offset 9] \\o/ RDB looks OK! \\o/\n\
            [info] 1140000 keys read\n[info] 0 expires\n";
        assert_eq!((keys_read(said), keys_read("[info] 5 expires\n")), (Some(KEYS), None));
    }

    #[test]
    fn each_share_has_four_figures_of_six_modes() {
        let groups = Mix.groups();
        assert_eq!(groups.len(), 8);
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        assert_eq!(ids.len(), 48);
        for id in [
            "fork.mix.2.fork.plain",
            "fork.mix.20.p999.thp",
            "fork.mix.2.p99.empty",
            "fork.mix.20.rss.frozen",
            "fork.mix.2.p99.gather",
        ] {
            assert!(ids.contains(&id), "{id}");
        }
        let rivals = ["fork.mix.2.fork.plain", "fork.mix.2.fork.thp", "fork.mix.2.fork.empty"];
        assert_eq!(
            groups[0].contestants[4],
            Contestant::new("fork.mix.2.fork.frozen", Unit::Microseconds).against(rivals)
        );
    }
}

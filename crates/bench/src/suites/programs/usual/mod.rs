//! Suite `programs`: usual programs that fork, most of them with little memory: plain, with an allocator that asks for
//! huge pages, without data where they have any, and by `palimpsest run`.
//!
//! Freezing gains nothing in most of them. The figures show that it costs nothing: after the first forks, which belong
//! to the warm-up, no program should be slower than without.
//!
//! Each mode of a program is started once, and all get requests in turns: a sample is the mean over several forks,
//! or over things that the program does by one fork each. Processor time and page faults of the program and of the
//! children that it has waited for are counted besides, since they do not depend on what else the machine does.

mod apache;
mod php;
mod postgresql;
mod scripts;
mod spent;

use std::fs;
use std::path::Path;
use std::time::Duration;

use spent::Spent;

use super::server::Server;
use super::{Mode, ProgramError, Scratch, Threads, Tool, unfrozen};
use crate::harness::host::available_memory;
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{Asked, BenchError, Contestant, Context, Group, Samples, Suite, failed};
use crate::suites::afl;

/// See the module.
pub(in crate::suites) struct Programs;

/// A running program.
trait Subject {
    /// Takes one sample, in microseconds.
    fn sample(&mut self) -> Result<f64, ProgramError>;

    /// Returns what the program has spent so far, with the children that it has waited for.
    fn spent(&self) -> Result<Spent, ProgramError>;
}

/// Where and how a program is started.
struct Place<'a> {
    context: &'a Context<'a>,
    mode: Mode,
    /// This mode's own folder.
    folder: &'a Path,
}

impl Place<'_> {
    /// Returns a command that runs `program`.
    fn command(&self, program: &str) -> Result<std::process::Command, ProgramError> {
        let report = self.folder.join(REPORT);
        self.mode.reporting(self.context, program, Threads::Stop, Some(&report))
    }
}

/// The file in which the object reports what it has frozen.
const REPORT: &str = "report";

/// A program to be measured.
struct Kind {
    /// The last part but one of the ids.
    name: &'static str,
    title: &'static str,
    /// Returns why it cannot be measured.
    missing: fn() -> Option<String>,
    /// Bytes that it needs in all modes together.
    memory: usize,
    /// Forks, or executed programs, for one sample.
    forks: u32,
    data: Data,
    start: fn(&Place<'_>) -> Result<Box<dyn Subject>, ProgramError>,
}

/// Whether a program has data of its own, without which it can be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Data {
    None,
    Some,
}

const KINDS: [Kind; 8] = [
    Kind {
        name: "postgresql",
        title: "PostgreSQL: a connection, for which it forks",
        missing: postgresql::missing,
        memory: 600 << 20,
        forks: postgresql::CONNECTIONS,
        data: Data::None,
        start: postgresql::start,
    },
    Kind {
        name: "apache",
        title: "Apache (prefork): a child of a graceful restart",
        missing: apache::missing,
        memory: 600 << 20,
        forks: apache::CHILDREN,
        data: Data::None,
        start: apache::start,
    },
    Kind {
        name: "php_fpm",
        title: "php-fpm: a request to a worker that serves one and ends",
        missing: php::missing,
        memory: 300 << 20,
        forks: php::REQUESTS,
        data: Data::None,
        start: php::start,
    },
    Kind {
        name: "bash",
        title: "bash: a subshell",
        missing: || Tool { program: scripts::BASH, package: "bash" }.missing(),
        memory: 50 << 20,
        forks: scripts::SUBSHELLS,
        data: Data::None,
        start: scripts::bash,
    },
    Kind {
        name: "redis",
        title: "Redis with 2 MB: a fork to save",
        missing: || Tool { program: "redis-server", package: "redis-server" }.missing(),
        memory: 100 << 20,
        forks: SAVES,
        data: Data::Some,
        start: |place| SmallRedis::start(place).map(|server| Box::new(server) as Box<dyn Subject>),
    },
    Kind {
        name: "numpy",
        title: "numpy with 512 MiB in huge pages: os.fork",
        missing: scripts::no_numpy,
        memory: 1800 << 20,
        forks: scripts::FORKS,
        data: Data::Some,
        start: scripts::numpy,
    },
    Kind {
        name: "make",
        title: "make: a target that executes a program without children",
        missing: || Tool { program: scripts::MAKE, package: "make" }.missing(),
        memory: 50 << 20,
        forks: scripts::TARGETS,
        data: Data::None,
        start: |place| scripts::make(place, scripts::Recipe::True),
    },
    Kind {
        name: "make_sh",
        title: "make: a target that executes a shell",
        missing: || Tool { program: scripts::MAKE, package: "make" }.missing(),
        memory: 50 << 20,
        forks: scripts::TARGETS,
        data: Data::None,
        start: |place| scripts::make(place, scripts::Recipe::Shell),
    },
];

/// What ids of groups have behind the program's name: processor time, and page faults.
const PROCESSOR: &str = ".processor";
const FAULTS: &str = ".faults";

/// A program that runs.
struct Running {
    mode: Mode,
    subject: Box<dyn Subject>,
    /// What it had spent when the measured time began.
    before: Spent,
    samples: u32,
}

impl Kind {
    fn id(&self, mode: Mode) -> String {
        format!("fork.programs.{}.{}", self.name, mode.name())
    }

    fn modes(&self) -> Vec<Mode> {
        let all = [Mode::Plain, Mode::Thp, Mode::Empty, Mode::Default];
        all.into_iter().filter(|mode| *mode != Mode::Empty || self.data == Data::Some).collect()
    }

    /// Returns the groups: the time of a fork, and what is spent for it.
    fn groups(&self) -> [Group; 3] {
        let group = |part: &str, what: &str, unit: Unit| {
            let id = format!("fork.programs.{}{part}", self.name);
            let modes = self.modes();
            let own = |mode: &Mode| format!("{id}.{}", mode.name());
            let contestants = modes.iter().map(|mode| match mode {
                Mode::Default => {
                    let rivals = modes.iter().filter(|rival| *rival != mode).map(own);
                    Contestant::new(own(mode), unit).against(rivals)
                }
                _ => Contestant::new(own(mode), unit),
            });
            Group::new(id.as_str(), format!("{}{what}", self.title), contestants)
        };
        [
            group("", "", Unit::Microseconds),
            group(PROCESSOR, ": processor time", Unit::Microseconds),
            group(FAULTS, ": page faults", Unit::Count),
        ]
    }

    /// Returns why it is left out here.
    fn left_out(&self, context: &Context<'_>) -> Option<String> {
        let available = available_memory();
        if available < self.memory {
            let (available, needed) = (available >> 20, self.memory >> 20);
            return Some(format!("{available} MiB of memory are available, and {needed} are needed"));
        }
        (self.missing)().or_else(|| unfrozen(context))
    }

    fn measure(&self, context: &Context<'_>) -> Result<Samples, BenchError> {
        let id = format!("fork.programs.{}", self.name);
        let scratch = Scratch::new(self.name).map_err(failed(&id, self.name))?;
        let mut subjects = Vec::new();
        for mode in self.modes() {
            let start = || {
                let folder = scratch.0.join(mode.name());
                fs::create_dir(&folder).map_err(super::doing("make a folder for a program"))?;
                let mut subject = (self.start)(&Place { context, mode, folder: &folder })?;
                // Freezes, if the program freezes at all, and fills caches.
                subject.sample()?;
                Ok::<_, ProgramError>(Running { mode, before: subject.spent()?, subject, samples: 0 })
            };
            subjects.push(start().map_err(failed(&id, mode.name()))?);
        }
        let mut samples = Samples::default();
        let rounds = context.effort.rounds(15, 100, Duration::from_secs(15));
        interleave(&mut subjects, rounds, |running| {
            let id = self.id(running.mode);
            samples.add(&id, running.subject.sample().map_err(failed(&id, "the program"))?);
            running.samples += 1;
            Ok::<(), BenchError>(())
        })?;
        for Running { mode, subject, before, samples: many } in &subjects {
            let spent = subject.spent().map_err(failed(&id, mode.name()))?.since(*before);
            let each = |total: f64| total / f64::from(self.forks * many);
            samples.add(&format!("{id}{PROCESSOR}.{}", mode.name()), each(spent.processor.as_secs_f64() * 1e6));
            samples.add(&format!("{id}{FAULTS}.{}", mode.name()), each(spent.faults as f64));
        }
        drop(subjects);
        let report = fs::read_to_string(scratch.0.join(Mode::Default.name()).join(REPORT)).unwrap_or_default();
        samples.note(&self.id(Mode::Default), told(&report));
        Ok(samples)
    }
}

/// Returns the report in a line.
fn told(report: &str) -> String {
    let kilobytes = |name: &str| {
        let rest = report.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse::<u64>().ok()
    };
    let (frozen, gathered) = (kilobytes("frozen "), kilobytes("huge "));
    let thawed = report.lines().find_map(|line| line.strip_prefix("note: thawed "));
    match (frozen, gathered, thawed) {
        (_, _, Some(thawed)) => format!("thawed {thawed}"),
        (None | Some(0), Some(gathered), None) => format!("gathered {gathered} kB"),
        (Some(frozen), Some(gathered), None) => format!("gathered {gathered} kB, froze {frozen} kB"),
        (Some(0), None, None) => "looked, and froze nothing".to_owned(),
        (Some(frozen), None, None) => format!("froze {frozen} kB"),
        (None, None, None) => "froze nothing".to_owned(),
    }
}

impl Suite for Programs {
    fn id(&self) -> &'static str {
        "programs"
    }

    fn description(&self) -> &'static str {
        "usual programs that fork, most with little memory: plain, with huge pages, empty, and by `palimpsest run`"
    }

    fn asked(&self) -> Asked {
        Asked::ByName
    }

    fn groups(&self) -> Vec<Group> {
        KINDS.iter().flat_map(Kind::groups).chain([afl::empty_group()]).collect()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        for kind in &KINDS {
            let wanted = context.wanted(kind.groups());
            let Some(first) = wanted.first() else { continue };
            if let Some(reason) = kind.left_out(context) {
                wanted.iter().for_each(|group| context.skip(group, &reason));
                continue;
            }
            context.begin(&first.id);
            let mut samples = kind.measure(context)?;
            for group in wanted {
                let own = samples.take(&group);
                context.record(&group, own);
            }
        }
        afl::run_empty(context)
    }
}

/// Keys, with values of this many bytes: 2 MB as Redis keeps them.
const KEYS: u64 = 3600;
const VALUE: usize = 400;

/// Forks for one sample.
const SAVES: u32 = 5;

/// Redis with little data.
struct SmallRedis(Server);

impl SmallRedis {
    fn start(place: &Place<'_>) -> Result<Self, ProgramError> {
        let mut server = Server::start(place.command("redis-server")?, place.mode, place.folder)?;
        server.populate(place.mode.data(KEYS), VALUE)?;
        Ok(Self(server))
    }
}

impl Subject for SmallRedis {
    fn sample(&mut self) -> Result<f64, ProgramError> {
        let mut times = [0.0; SAVES as usize];
        for taken in &mut times {
            *taken = self.0.fork()?;
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(times[SAVES as usize / 2])
    }

    fn spent(&self) -> Result<Spent, ProgramError> {
        Spent::by(self.0.pid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_of_a_program_has_rivals_with_which_ours_is_compared() {
        let groups = Programs.groups();
        assert_eq!(groups.len(), 3 * KINDS.len() + 1);
        assert_eq!(groups[1].id, "fork.programs.postgresql.processor");
        for group in groups {
            let has_data = ["fork.programs.redis", "fork.programs.numpy"].iter().any(|name| group.id.starts_with(name));
            let (rivals, way) = match group.id.as_str() {
                "fork.programs.afl" => (&["plain"][..], "frozen"),
                _ if has_data => (&["plain", "thp", "empty"][..], "default"),
                _ => (&["plain", "thp"][..], "default"),
            };
            let rivals: Vec<String> = rivals.iter().map(|rival| format!("{}.{rival}", group.id)).collect();
            let [before @ .., ours] = &group.contestants[..] else { panic!("{group:?}") };
            assert!(before.iter().map(|rival| &rival.id).eq(&rivals), "{group:?}");
            assert_eq!(*ours, Contestant::new(format!("{}.{way}", group.id), before[0].unit).against(&rivals));
        }
    }

    #[test]
    fn reports_are_told_in_a_line() {
        assert_eq!(told(""), "froze nothing");
        let report = "palimpsest: froze process 7 (x)\nfrozen        664 kB in 2 ranges, 1 extents of 2048 kB\n";
        assert_eq!(told(report), "froze 664 kB");
        assert_eq!(told(&report.replace("664", "  0")), "looked, and froze nothing");
        let gathered = "palimpsest: gathered memory of process 7 (x)\nhuge       1234 kB in huge pages\n";
        assert_eq!(told(gathered), "gathered 1234 kB");
        let both = format!("{gathered}frozen        664 kB in 2 ranges, 1 extents of 2048 kB\n");
        assert_eq!(told(&both), "gathered 1234 kB, froze 664 kB");
        let thawed = format!("{report}note: thawed 664 kB again, which made no fork quicker\n");
        assert_eq!(told(&thawed), "thawed 664 kB again, which made no fork quicker");
    }
}

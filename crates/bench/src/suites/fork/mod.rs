//! Suites `fork` and `reset`: what a fork, or going back to an earlier state, costs with a big heap.
//!
//! Each contestant is a process of its own, with its own heap, started from the same program and asked through a pipe,
//! so that all take turns within one run.

mod crew;
mod figures;
mod question;
mod reset;
mod who;
mod worker;

pub use reset::Reset;
pub use worker::work;

use std::path::PathBuf;
use std::time::Duration;

use self::crew::{Answer, Worker};
use self::figures::{FIGURES, Figure, Samples, record};
use self::question::Question;
use self::who::Who;
use crate::record::Unit;
use crate::sampler::{Rounds, rotation};
use crate::suite::Group;
use crate::{BenchError, Context, Effort, Suite};

/// See the module.
pub struct Fork;

/// The heap of figures that do not name one.
const USUAL: usize = 512 << 20;

/// Heaps of `fork.{size}`.
const SIZES: [(&str, usize); 3] = [("64m", 64 << 20), ("512m", USUAL), ("4g", 4 << 30)];

/// Heaps above this are left out of quick runs.
const QUICK: usize = USUAL;

const FREEZE_COST: &str = "fork.freeze_cost";

fn group_of(id: &str, title: &str, who: &[Who]) -> Group {
    Group {
        id: id.to_owned(),
        title: title.to_owned(),
        figures: who.iter().map(|who| format!("{id}.{}", who.name())).collect(),
    }
}

fn size_group(name: &str) -> Group {
    group_of(&format!("fork.{name}"), &format!("a fork, or arming, with a heap of {name}"), &Who::ALL)
}

fn freeze_group() -> Group {
    group_of(FREEZE_COST, "freezing a heap of 512m", &Who::FREEZING)
}

impl Suite for Fork {
    fn id(&self) -> &'static str {
        "fork"
    }

    fn description(&self) -> &'static str {
        "forks with big heaps: frozen against plain, huge pages and userfaultfd"
    }

    fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = SIZES.iter().map(|(name, _)| size_group(name)).collect();
        groups.extend(FIGURES.iter().map(Figure::group));
        groups.push(freeze_group());
        groups
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        if !self.groups().iter().any(|group| context.wants(group)) {
            return Ok(());
        }
        let Some(command) = context.fork_worker else {
            context.skip("fork.*", "nobody told how to start a process for the measurement");
            return Ok(());
        };
        for (name, bytes) in SIZES {
            by_size(context, command, name, bytes)?;
        }
        others(context, command)
    }
}

/// `fork.{name}.*`.
fn by_size(context: &mut Context<'_>, command: &[PathBuf], name: &str, bytes: usize) -> Result<(), BenchError> {
    let group = size_group(name);
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(&group.id);
    let available = available_memory()?;
    if context.effort == Effort::Quick && bytes > QUICK {
        context.skip(format!("{}.*", group.id), "left out of quick runs");
    } else if available < bytes + bytes / 4 {
        let reason = format!("{} MiB of memory are available, which is too little", available >> 20);
        context.skip(format!("{}.*", group.id), reason);
    } else {
        let needed: usize = Who::ALL.iter().map(|who| who.occupies(bytes)).sum();
        let rounds = context.effort.rounds(9, 60, Duration::from_secs(10));
        let mut samples = Samples::default();
        if needed + needed / 4 < available {
            let mut crew = start(context, command, &group.id, &Who::ALL, bytes)?;
            take_turns(&mut crew, Question::Fork, rounds, &mut samples)?;
        } else {
            // Not all of them fit at once: each round starts them one after the other.
            for round in 0..3 {
                for index in rotation(Who::ALL.len(), round) {
                    let mut one = start(context, command, &group.id, &[Who::ALL[index]], bytes)?;
                    take_turns(&mut one, Question::Fork, Rounds { least: 3, most: 5, ..rounds }, &mut samples)?;
                }
            }
        }
        record(context, &group.id, Unit::Microseconds, &Who::ALL, samples, arming_note);
    }
    context.done();
    Ok(())
}

fn arming_note(who: Who) -> Option<&'static str> {
    match who {
        Who::UffdWp => Some("arming, no fork"),
        Who::UffdCopy => Some("registering empty memory, no fork"),
        _ => None,
    }
}

/// Everything with the usual heap.
fn others(context: &mut Context<'_>, command: &[PathBuf]) -> Result<(), BenchError> {
    let wanted: Vec<&Figure> = FIGURES.iter().filter(|figure| context.wants(&figure.group())).collect();
    let wants_cost = context.wants(&freeze_group());
    if wanted.is_empty() && !wants_cost {
        return Ok(());
    }
    let mut who: Vec<Who> = wanted.iter().flat_map(|figure| figure.who).copied().collect();
    if wants_cost {
        who.extend(Who::FREEZING);
    }
    let who: Vec<Who> = Who::ALL.into_iter().filter(|one| who.contains(one)).collect();
    let needed: usize = who.iter().map(|who| who.occupies(USUAL)).sum();
    let available = available_memory()?;
    if needed + needed / 4 > available {
        let reason = format!(
            "{} MiB of memory are available, and heaps of {} MiB are to be measured",
            available >> 20,
            needed >> 20
        );
        context.skip("fork.*", reason);
        return Ok(());
    }
    let mut costs = Samples::default();
    if wants_cost {
        for _ in 1..context.effort.pick(1, 4) {
            for worker in start(context, command, FREEZE_COST, &Who::FREEZING, USUAL)? {
                costs.add(worker.who, worker.freeze_ms);
            }
        }
    }
    let mut crew = start(context, command, "fork", &who, USUAL)?;
    for figure in wanted {
        context.begin(figure.id);
        let mut samples = Samples::default();
        // Enough of them that a repair, which one sample in many holds, does not decide.
        let rounds = context.effort.rounds(15, 40, Duration::from_secs(8));
        let mut taking: Vec<&mut Worker> = crew.iter_mut().filter(|worker| figure.who.contains(&worker.who)).collect();
        take_turns(&mut taking, figure.question, rounds, &mut samples)?;
        record(context, figure.id, figure.unit, figure.who, samples, figure.note);
        context.done();
    }
    if wants_cost {
        context.begin(FREEZE_COST);
        for worker in crew.iter().filter(|worker| worker.who.is_ours()) {
            costs.add(worker.who, worker.freeze_ms);
        }
        record(context, FREEZE_COST, Unit::Milliseconds, &Who::FREEZING, costs, |_| None);
        context.done();
    }
    Ok(())
}

/// Starts workers; those that the machine refuses are skipped.
fn start(
    context: &mut Context<'_>,
    command: &[PathBuf],
    id: &str,
    who: &[Who],
    bytes: usize,
) -> Result<Vec<Worker>, BenchError> {
    let mut crew = Vec::with_capacity(who.len());
    for &who in who {
        match Worker::start(command, who, bytes)? {
            Answer::Given(worker) => crew.push(worker),
            Answer::Refused(reason) => context.skip(format!("{id}.{}", who.name()), reason),
        }
    }
    Ok(crew)
}

/// Has each worker answer once a round, in rotating order, until it refuses.
fn take_turns<W: std::borrow::BorrowMut<Worker>>(
    crew: &mut [W],
    question: Question,
    rounds: Rounds,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    crate::sampler::interleave(crew, rounds, |worker| {
        let worker = worker.borrow_mut();
        match worker.ask(question)? {
            Answer::Given(sample) => {
                samples.add(worker.who, sample);
                Ok(sample)
            }
            Answer::Refused(reason) => {
                samples.refuse(worker.who, reason);
                Ok(0.0)
            }
        }
    })
    .map(drop)
}

/// `MemAvailable`, in bytes.
pub(super) fn available_memory() -> Result<usize, BenchError> {
    const MEMINFO: &str = "/proc/meminfo";
    let text = std::fs::read_to_string(MEMINFO).map_err(|source| BenchError::Accounting { path: MEMINFO, source })?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()).and_then(|kib| kib.parse::<usize>().ok());
    // A kernel that does not tell is not doubted.
    Ok(kib.map_or(usize::MAX / 2, |kib| kib * 1024))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_agreed_ids_exist_once_each() {
        let ids: Vec<String> = Fork.groups().into_iter().flat_map(|group| group.figures).collect();
        let distinct: HashSet<&str> = ids.iter().map(String::as_str).collect();
        assert_eq!(distinct.len(), ids.len());
        let mut agreed = Vec::new();
        for size in ["64m", "512m", "4g"] {
            for who in ["plain", "thp", "frozen", "frozen_huge", "uffd_wp", "uffd_copy", "empty"] {
                agreed.push(format!("fork.{size}.{who}"));
            }
        }
        for figure in
            ["dirty1", "dirty256", "child_write_seq", "child_write_random", "child_read", "child_rss", "child_pte"]
        {
            agreed.extend(["plain", "thp", "frozen", "frozen_huge"].map(|who| format!("fork.{figure}.{who}")));
        }
        agreed.extend(["frozen", "frozen_huge"].map(|who| format!("fork.freeze_cost.{who}")));
        for id in &agreed {
            assert!(distinct.contains(id.as_str()), "{id} is missing");
        }
    }
}

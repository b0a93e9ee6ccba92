//! Suites `fork` and `reset`: what a fork, or restoring an earlier state, costs with a big heap.
//!
//! Each contestant is a process of its own, with its own heap, started from the same program and asked through a pipe,
//! so that all take turns within one run.

mod crew;
mod figures;
mod pause;
mod question;
mod reset;
mod who;
mod worker;

pub(super) use pause::{PAUSER, work as work_pause};
pub(super) use reset::{Reset, tour as tour_reset, tour_group as tour_reset_group};
pub(super) use worker::work;

use std::time::Duration;

use self::crew::{Answer, Worker};
use self::figures::{FIGURES, Figure};
use self::question::Question;
use self::who::Who;
use crate::harness::host::available_memory;
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave, rotation};
use crate::harness::{BenchError, Context, Effort, Group, Samples, Suite};

/// Name of the helper that calls [`work`] with the arguments that follow.
pub(super) const WORKER: &str = "fork";

/// See the module.
pub(super) struct Fork;

/// The heap of figures that do not name one.
const USUAL: usize = 512 << 20;

/// Heaps of `fork.{size}`.
const SIZES: [(&str, usize); 3] = [("64m", 64 << 20), ("512m", USUAL), ("4g", 4 << 30)];

/// Heaps above this are left out of quick runs.
const QUICK: usize = USUAL;

const FREEZE_COST: &str = "fork.freeze_cost";

fn group_of(id: &str, title: &str, unit: Unit, all: &[Who], note: fn(Who) -> Option<&'static str>) -> Group {
    let contestant = |who: &Who| {
        let contestant = who.contestant(id, unit);
        match note(*who) {
            Some(note) => contestant.note(note),
            None => contestant,
        }
    };
    Group::new(id, title, all.iter().map(contestant))
}

fn size_group(name: &str) -> Group {
    let title = format!("a fork, or arming, with a heap of {name}");
    group_of(&format!("fork.{name}"), &title, Unit::Microseconds, &Who::ALL, |who| match who {
        Who::UffdWp => Some("arming, no fork"),
        Who::UffdCopy => Some("registering empty memory, no fork"),
        _ => None,
    })
}

fn freeze_group() -> Group {
    group_of(FREEZE_COST, "freezing a heap of 512m", Unit::Milliseconds, &Who::FREEZING, |_| None)
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
        groups.extend(pause::groups());
        groups
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        let wanted = context.wanted(self.groups());
        if let Err(reason) = context.helper(WORKER) {
            wanted.iter().for_each(|group| context.skip(group, &reason));
            return Ok(());
        }
        for (name, bytes) in SIZES {
            by_size(context, name, bytes)?;
        }
        others(context)?;
        pause::run(context)
    }
}

/// `fork.{name}.*`.
fn by_size(context: &mut Context<'_>, name: &str, bytes: usize) -> Result<(), BenchError> {
    let group = size_group(name);
    if !context.wants(&group) {
        return Ok(());
    }
    context.begin(&group.id);
    let available = available_memory();
    if context.effort != Effort::Full && bytes > QUICK {
        context.skip(&group, "left out of quick runs");
        return Ok(());
    }
    if available < bytes + bytes / 4 {
        let reason = format!("{} MiB of memory are available, which is too little", available >> 20);
        context.skip(&group, &reason);
        return Ok(());
    }
    let needed: usize = Who::ALL.iter().map(|who| who.occupies(bytes)).sum();
    let rounds = context.effort.rounds(9, 60, Duration::from_secs(10));
    let mut samples = Samples::default();
    if needed + needed / 4 < available {
        let mut crew = start(context, &mut samples, &group.id, &Who::ALL, bytes)?;
        take_turns(&mut crew, Question::Fork, rounds, &group.id, &mut samples)?;
    } else {
        // Not all of them fit at once: each round starts them one after the other.
        for round in 0..3 {
            for index in rotation(Who::ALL.len(), round) {
                let mut one = start(context, &mut samples, &group.id, &[Who::ALL[index]], bytes)?;
                let rounds = Rounds { least: 3, most: 5, ..rounds };
                take_turns(&mut one, Question::Fork, rounds, &group.id, &mut samples)?;
            }
        }
    }
    context.record(&group, samples);
    Ok(())
}

/// Contestants of the tour.
const TOUR: [Who; 3] = [Who::Plain, Who::Frozen, Who::Empty];

/// The tour's figures.
pub(super) fn tour_group() -> Group {
    let ids = TOUR.map(|who| who.id("fork.512m"));
    Group { title: "a fork of a process with 512 MiB".to_owned(), ..size_group("512m").only(&ids) }
}

/// Forks with a heap of the usual size, by the contestants of the tour; or the reason why not.
pub(super) fn tour(context: &Context<'_>, rounds: Rounds) -> Result<Samples, BenchError> {
    let id = tour_group().id;
    let mut samples = Samples::default();
    let needed: usize = TOUR.iter().map(|who| who.occupies(USUAL)).sum();
    let available = available_memory();
    if available < needed + needed / 4 {
        let (available, needed) = (available >> 20, (needed + needed / 4) >> 20);
        let reason = format!("{available} MiB of memory are available, and {needed} are needed; end other programs");
        TOUR.iter().for_each(|who| samples.refuse(&who.id(&id), reason.as_str()));
        return Ok(samples);
    }
    let mut crew = start(context, &mut samples, &id, &TOUR, USUAL)?;
    if let Some(frozen) = crew.iter().find(|worker| worker.who == Who::Frozen) {
        samples.note(&Who::Frozen.id(&id), format!("froze in {:.2} s", frozen.freeze_ms / 1e3));
    }
    take_turns(&mut crew, Question::Fork, rounds, &id, &mut samples)?;
    Ok(samples)
}

/// Everything with the usual heap.
fn others(context: &mut Context<'_>) -> Result<(), BenchError> {
    let figures: Vec<&Figure> = FIGURES.iter().filter(|figure| context.wants(&figure.group())).collect();
    let cost = Some(freeze_group()).filter(|group| context.wants(group));
    let mut who: Vec<Who> = figures.iter().flat_map(|figure| figure.who).copied().collect();
    if cost.is_some() {
        who.extend(Who::FREEZING);
    }
    let who: Vec<Who> = Who::ALL.into_iter().filter(|one| who.contains(one)).collect();
    let needed: usize = who.iter().map(|who| who.occupies(USUAL)).sum();
    let available = available_memory();
    if needed + needed / 4 > available {
        let (available, needed) = (available >> 20, needed >> 20);
        let reason = format!("{available} MiB of memory are available, and heaps of {needed} MiB are to be measured");
        let groups = figures.iter().map(|figure| figure.group()).chain(cost);
        groups.for_each(|group| context.skip(&group, &reason));
        return Ok(());
    }
    let mut costs = Samples::default();
    if let Some(group) = &cost {
        context.begin(&group.id);
        for _ in 1..context.effort.pick(1, 4) {
            let crew = start(context, &mut costs, &group.id, &Who::FREEZING, USUAL)?;
            add_costs(&crew, &mut costs);
        }
    }
    // Whoever is refused is refused in every figure.
    let mut refused = Samples::default();
    let mut crew = if who.is_empty() { Vec::new() } else { start(context, &mut refused, "fork", &who, USUAL)? };
    for figure in figures {
        context.begin(figure.id);
        let mut samples = Samples::default();
        for &who in figure.who {
            if let Some(reason) = refused.refused(&who.id("fork")) {
                samples.refuse(&who.id(figure.id), reason);
            }
        }
        // Enough of them that a repair, which happens in one sample of many, does not decide.
        let rounds = context.effort.rounds(15, 40, Duration::from_secs(8));
        let mut taking: Vec<&mut Worker> = crew.iter_mut().filter(|worker| figure.who.contains(&worker.who)).collect();
        take_turns(&mut taking, figure.question, rounds, figure.id, &mut samples)?;
        context.record(&figure.group(), samples);
    }
    if let Some(group) = cost {
        add_costs(&crew, &mut costs);
        context.record(&group, costs);
    }
    Ok(())
}

/// Adds the times of the freezes of `crew`.
fn add_costs(crew: &[Worker], costs: &mut Samples) {
    for worker in crew.iter().filter(|worker| Who::FREEZING.contains(&worker.who)) {
        costs.add(&worker.who.id(FREEZE_COST), worker.freeze_ms);
    }
}

/// Starts workers; those that the machine refuses have no samples of `id`.
fn start(
    context: &Context<'_>,
    samples: &mut Samples,
    id: &str,
    who: &[Who],
    bytes: usize,
) -> Result<Vec<Worker>, BenchError> {
    let mut crew = Vec::with_capacity(who.len());
    for &who in who {
        match Worker::start(context, who, bytes)? {
            Answer::Given(worker) => crew.push(worker),
            Answer::Refused(reason) => samples.refuse(&who.id(id), reason),
        }
    }
    Ok(crew)
}

/// Makes each worker answer once a round, in rotating order.
fn take_turns<W: std::borrow::BorrowMut<Worker>>(
    crew: &mut [W],
    question: Question,
    rounds: Rounds,
    id: &str,
    samples: &mut Samples,
) -> Result<(), BenchError> {
    interleave(crew, rounds, |worker| {
        let worker = worker.borrow_mut();
        let id = worker.who.id(id);
        answered(worker, question, &id, samples)
    })
}

/// Takes one sample of the figure `id`, or the reason why there is none.
fn answered(worker: &mut Worker, question: Question, id: &str, samples: &mut Samples) -> Result<(), BenchError> {
    match worker.ask(question)? {
        Answer::Given(sample) => samples.add(id, sample),
        Answer::Refused(reason) => samples.refuse(id, reason),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_agreed_ids_exist_once_each() {
        let groups = Fork.groups();
        let ids: Vec<&str> = groups.iter().flat_map(Group::ids).collect();
        let distinct: HashSet<&str> = ids.iter().copied().collect();
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

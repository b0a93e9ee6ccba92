//! Suite `reset`: restoring written pages in the same process, beside a fork for each round.

use std::time::Duration;

use super::crew::{Answer, Worker};
use super::question::Question;
use super::who::Who;
use super::{WORKER, answered};
use crate::harness::record::Unit;
use crate::harness::sampler::{Rounds, interleave};
use crate::harness::{BenchError, Contestant, Context, Group, Samples, Suite};

/// See the module.
pub(in crate::suites) struct Reset;

/// The heap, in bytes.
const HEAP: usize = 64 << 20;

/// Pages written in each round.
const PAGES: [usize; 4] = [1, 16, 256, 4096];

/// Ways to restore pages; the last two are the usual ways without a snapshot.
const WAYS: [(&str, Way); 4] = [
    ("known", Question::ResetKnown),
    ("scan", Question::ResetScan),
    (FORK, Question::ForkPerRun),
    (PERSISTENT, Question::Turn),
];

const FORK: &str = "fork_per_run";

/// AFL++'s persistent mode.
const PERSISTENT: &str = "persistent";

type Way = fn(usize) -> Question;

fn group(pages: usize) -> Group {
    let id = |way: &str| format!("reset.{pages}.{way}");
    let contestant = |(way, _): (&str, Way)| {
        let contestant = Contestant::new(id(way), Unit::Microseconds);
        match way {
            FORK => contestant.note("a fork, the child's writes, and its end; wall time"),
            PERSISTENT => contestant.note(
                "puts nothing back: a child is continued (SIGCONT), writes, and stops itself, as AFL++'s persistent \
                 mode does; wall time",
            ),
            _ => contestant.against([id(FORK), id(PERSISTENT)]),
        }
    };
    Group::new(format!("reset.{pages}"), format!("putting back {pages} pages of a heap of 64m"), WAYS.map(contestant))
}

/// Returns samples of each way of `group` to restore this many pages.
fn measure(context: &Context<'_>, pages: usize, group: &Group, rounds: Rounds) -> Result<Samples, BenchError> {
    let mut samples = Samples::default();
    let mut workers = Vec::new();
    for (way, question) in WAYS {
        let id = format!("reset.{pages}.{way}");
        if !group.has(&id) {
            continue;
        }
        match Worker::start(context, Who::Plain, HEAP)? {
            Answer::Refused(reason) => samples.refuse(&id, reason),
            Answer::Given(worker) => workers.push((id, question(pages), worker)),
        }
    }
    interleave(&mut workers, rounds, |(id, question, worker)| answered(worker, *question, id, &mut samples))?;
    Ok(samples)
}

/// Pages in the tour.
const TOUR: usize = 16;

/// Returns the tour's figures.
pub(in crate::suites) fn tour_group() -> Group {
    group(TOUR).only(&[FORK, "scan", "known"].map(|way| format!("reset.{TOUR}.{way}")))
}

/// Returns the tour's samples.
pub(in crate::suites) fn tour(context: &Context<'_>, rounds: Rounds) -> Result<Samples, BenchError> {
    measure(context, TOUR, &tour_group(), rounds)
}

impl Suite for Reset {
    fn id(&self) -> &'static str {
        "reset"
    }

    fn description(&self) -> &'static str {
        "snapshots in one process: pages that are known, and pages that are searched for"
    }

    fn groups(&self) -> Vec<Group> {
        PAGES.map(group).into()
    }

    fn run(&self, context: &mut Context<'_>) -> Result<(), BenchError> {
        for pages in PAGES {
            let group = group(pages);
            if !context.wants(&group) {
                continue;
            }
            if let Err(reason) = context.helper(WORKER) {
                context.skip(&group, &reason);
                continue;
            }
            context.begin(&group.id);
            let samples = measure(context, pages, &group, context.effort.rounds(9, 60, Duration::from_secs(4)))?;
            context.record(&group, samples);
        }
        Ok(())
    }
}

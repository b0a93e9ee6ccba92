//! Suite `reset`: putting written pages back in the process itself, which a fork per round would have spared.

use std::time::Duration;

use super::crew::{Answer, Worker};
use super::question::Question;
use super::who::Who;
use super::{WORKER, answered};
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{BenchError, Contestant, Context, Group, Samples, Suite};

/// See the module.
pub(in crate::suites) struct Reset;

/// The heap, in bytes.
const HEAP: usize = 64 << 20;

/// Pages written in each round.
const PAGES: [usize; 4] = [1, 16, 256, 4096];

/// Ways to know which pages were written.
const WAYS: [(&str, Way); 2] = [("known", Question::ResetKnown), ("scan", Question::ResetScan)];

type Way = fn(usize) -> Question;

fn group(pages: usize) -> Group {
    Group::new(
        format!("reset.{pages}"),
        format!("putting back {pages} pages of a heap of 64m"),
        WAYS.map(|(way, _)| Contestant::new(format!("reset.{pages}.{way}"), Unit::Microseconds)),
    )
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
            let mut samples = Samples::default();
            let mut workers = Vec::new();
            for (way, question) in WAYS {
                let id = format!("{}.{way}", group.id);
                match Worker::start(context, Who::Plain, HEAP)? {
                    Answer::Refused(reason) => samples.refuse(&id, reason),
                    Answer::Given(worker) => workers.push((id, question(pages), worker)),
                }
            }
            let rounds = context.effort.rounds(9, 60, Duration::from_secs(4));
            interleave(&mut workers, rounds, |(id, question, worker)| answered(worker, *question, id, &mut samples))?;
            context.record(&group, samples);
        }
        Ok(())
    }
}

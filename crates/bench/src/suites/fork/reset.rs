//! Suite `reset`: putting written pages back in the process itself, which a fork per round would have spared.

use std::time::Duration;

use super::crew::{Answer, Worker};
use super::figures::Samples;
use super::question::Question;
use super::take_turns;
use super::who::Who;
use crate::record::{Entry, Unit};
use crate::sampler::Summary;
use crate::suite::Group;
use crate::{BenchError, Context, Suite};

/// See the module.
pub struct Reset;

/// The heap, in bytes.
const HEAP: usize = 64 << 20;

/// Pages written in each round.
const PAGES: [usize; 4] = [1, 16, 256, 4096];

fn id(pages: usize) -> String {
    format!("reset.{pages}")
}

fn group(pages: usize) -> Group {
    Group {
        id: id(pages),
        title: format!("putting back {pages} pages of a heap of 64m"),
        figures: ["known", "scan"].map(|way| format!("reset.{pages}.{way}")).into(),
    }
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
        let wanted: Vec<usize> = PAGES.into_iter().filter(|pages| context.wants(&group(*pages))).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let Some(command) = context.fork_worker else {
            context.skip("reset.*", "nobody told how to start a process for the measurement");
            return Ok(());
        };
        for pages in wanted {
            let id = id(pages);
            context.begin(&id);
            let rounds = context.effort.rounds(9, 60, Duration::from_secs(2));
            for (way, question) in [("known", Question::ResetKnown(pages)), ("scan", Question::ResetScan(pages))] {
                let id = format!("{id}.{way}");
                match Worker::start(command, Who::Plain, HEAP)? {
                    Answer::Refused(reason) => context.skip(id, reason),
                    Answer::Given(worker) => {
                        let mut samples = Samples::default();
                        take_turns(&mut [worker], question, rounds, &mut samples)?;
                        match samples.of(Who::Plain) {
                            Ok(samples) => {
                                let summary = Summary::of(samples);
                                summary.into_iter().for_each(|summary| {
                                    context.record(Entry::new(id.clone(), Unit::Microseconds, summary));
                                });
                            }
                            Err(reason) => context.skip(id, reason),
                        }
                    }
                }
            }
            context.done();
        }
        Ok(())
    }
}

//! The figures of the usual heap, and how samples become entries.

use std::collections::HashMap;

use super::group_of;
use super::question::Question;
use super::who::Who;
use crate::Context;
use crate::record::{Entry, Unit};
use crate::sampler::Summary;
use crate::suite::Group;

/// A group of figures.
pub(super) struct Figure {
    pub(super) id: &'static str,
    title: &'static str,
    pub(super) question: Question,
    pub(super) unit: Unit,
    pub(super) who: &'static [Who],
    /// What the figure of a contestant includes.
    pub(super) note: fn(Who) -> Option<&'static str>,
}

/// Contestants of first writes.
const WRITING: [Who; 7] = [Who::Frozen, Who::FrozenHuge, Who::Arena, Who::Plain, Who::Thp, Who::UffdWp, Who::UffdCopy];
/// Contestants of first reads.
const READING: [Who; 6] = [Who::Frozen, Who::FrozenHuge, Who::Arena, Who::Plain, Who::Thp, Who::UffdCopy];
/// Contestants with a child.
const CHILDREN: [Who; 6] = [Who::Frozen, Who::FrozenHuge, Who::Arena, Who::Plain, Who::Thp, Who::Empty];

/// In this order: what dirties the parents comes last.
pub(super) const FIGURES: [Figure; 7] = [
    Figure {
        id: "fork.child_rss",
        title: "resident memory of a child that does nothing, heap of 512m",
        question: Question::Rss,
        unit: Unit::Bytes,
        who: &CHILDREN,
        note: |_| None,
    },
    Figure {
        id: "fork.child_pte",
        title: "page tables of a child that does nothing, heap of 512m",
        question: Question::Pte,
        unit: Unit::Bytes,
        who: &CHILDREN,
        note: |_| None,
    },
    Figure {
        id: "fork.child_write_seq",
        title: "a child's first write to a page, one after the other, heap of 512m",
        question: Question::WriteSequential,
        unit: Unit::Nanoseconds,
        who: &WRITING,
        note: in_process,
    },
    Figure {
        id: "fork.child_write_random",
        title: "a child's first write to a page, in random order, heap of 512m",
        question: Question::WriteRandom,
        unit: Unit::Nanoseconds,
        who: &WRITING,
        note: in_process,
    },
    Figure {
        id: "fork.child_read",
        title: "a child's first read of a page, one after the other, heap of 512m",
        question: Question::Read,
        unit: Unit::Nanoseconds,
        who: &READING,
        note: in_process,
    },
    Figure {
        id: "fork.dirty1",
        title: "a fork after the parent wrote a page, a child alive, heap of 512m",
        question: Question::Dirty(1),
        unit: Unit::Microseconds,
        who: &Who::FORKING,
        note: repairs,
    },
    Figure {
        id: "fork.dirty256",
        title: "a fork after the parent wrote 256 pages, a child alive, heap of 512m",
        question: Question::Dirty(256),
        unit: Unit::Microseconds,
        who: &Who::FORKING,
        note: repairs,
    },
];

impl Figure {
    pub(super) fn group(&self) -> Group {
        group_of(self.id, self.title, self.who)
    }
}

fn in_process(who: Who) -> Option<&'static str> {
    matches!(who, Who::UffdWp | Who::UffdCopy).then_some("in the process itself, no fork; wall time")
}

fn repairs(who: Who) -> Option<&'static str> {
    matches!(who, Who::Frozen | Who::FrozenHuge).then_some("mean of 8 forks, repairs included")
}

/// Samples by contestant.
#[derive(Default)]
pub(super) struct Samples {
    taken: HashMap<Who, Vec<f64>>,
    refused: HashMap<Who, String>,
}

impl Samples {
    pub(super) fn add(&mut self, who: Who, sample: f64) {
        self.taken.entry(who).or_default().push(sample);
    }

    /// Samples of `who`, or why there are none.
    pub(super) fn of(&self, who: Who) -> Result<&[f64], &str> {
        match self.refused.get(&who) {
            Some(reason) => Err(reason),
            None => Ok(self.taken.get(&who).map_or(&[], Vec::as_slice)),
        }
    }

    pub(super) fn refuse(&mut self, who: Who, reason: String) {
        self.refused.entry(who).or_insert(reason);
    }
}

/// Records a group: ours are compared with plain forks, then with huge pages, then with an empty process.
pub(super) fn record(
    context: &mut Context<'_>,
    id: &str,
    unit: Unit,
    who: &[Who],
    samples: Samples,
    note: fn(Who) -> Option<&'static str>,
) {
    let entry = |who: Who| {
        let summary = Summary::of(samples.taken.get(&who)?)?;
        let mut entry = Entry::new(format!("{id}.{}", who.name()), unit, summary);
        entry.note = note(who).map(str::to_owned);
        Some(entry)
    };
    let rivals: Vec<Entry> = [Who::Plain, Who::Thp, Who::Empty].into_iter().filter_map(entry).collect();
    for &who in who {
        if let Some(reason) = samples.refused.get(&who) {
            context.skip(format!("{id}.{}", who.name()), reason.clone());
            continue;
        }
        let Some(mut entry) = entry(who) else { continue };
        if who.is_ours() {
            entry.compare(&rivals.iter().collect::<Vec<_>>());
        }
        context.record(entry);
    }
}

//! The figures of the usual heap.

use super::group_of;
use super::question::Question;
use super::who::Who;
use crate::harness::Group;
use crate::harness::record::Unit;

/// A group of figures.
pub(super) struct Figure {
    pub(super) id: &'static str,
    title: &'static str,
    pub(super) question: Question,
    unit: Unit,
    pub(super) who: &'static [Who],
    /// What a contestant's figure includes.
    note: fn(Who) -> Option<&'static str>,
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
        group_of(self.id, self.title, self.unit, self.who, self.note)
    }
}

fn in_process(who: Who) -> Option<&'static str> {
    matches!(who, Who::UffdWp | Who::UffdCopy).then_some("in the process itself, no fork; wall time")
}

fn repairs(who: Who) -> Option<&'static str> {
    matches!(who, Who::Frozen | Who::FrozenHuge).then_some("mean of 8 forks, repairs included")
}

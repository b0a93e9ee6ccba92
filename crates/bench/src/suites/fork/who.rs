//! The contestants: ways to give a child, or a later moment, memory as it is now.

use std::str::FromStr;

use crate::harness::Contestant;
use crate::harness::record::Unit;

/// A contestant. The name is the last part of an entry's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Who {
    /// Frozen by Palimpsest, base pages.
    Frozen,
    /// Frozen by Palimpsest, collapsed into huge pages.
    FrozenHuge,
    /// Memory of Palimpsest's arena, frozen.
    Arena,
    /// Anonymous memory of base pages.
    Plain,
    /// Anonymous memory of transparent huge pages.
    Thp,
    /// Write protection by `userfaultfd`, without a fork.
    UffdWp,
    /// Memory filled on demand by `userfaultfd`, without a fork.
    UffdCopy,
    /// A process without a heap: no fork is quicker than its.
    Empty,
}

impl Who {
    /// All contestants.
    pub(super) const ALL: [Self; 8] = [
        Self::Frozen,
        Self::FrozenHuge,
        Self::Arena,
        Self::Plain,
        Self::Thp,
        Self::UffdWp,
        Self::UffdCopy,
        Self::Empty,
    ];

    /// Contestants that fork and have a heap.
    pub(super) const FORKING: [Self; 5] = [Self::Frozen, Self::FrozenHuge, Self::Arena, Self::Plain, Self::Thp];

    /// Contestants that freeze.
    pub(super) const FREEZING: [Self; 3] = [Self::Frozen, Self::FrozenHuge, Self::Arena];

    /// Returns the name in ids.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::FrozenHuge => "frozen_huge",
            Self::Arena => "arena",
            Self::Plain => "plain",
            Self::Thp => "thp",
            Self::UffdWp => "uffd_wp",
            Self::UffdCopy => "uffd_copy",
            Self::Empty => "empty",
        }
    }

    /// Returns the id of its figure in a group.
    pub(super) fn id(self, group: &str) -> String {
        format!("{group}.{}", self.name())
    }

    /// Returns its figure in a group. Ours are compared with plain forks, then with huge pages, then with an empty
    /// process.
    pub(super) fn contestant(self, group: &str, unit: Unit) -> Contestant {
        let contestant = Contestant::new(self.id(group), unit);
        if !Self::FREEZING.contains(&self) {
            return contestant;
        }
        contestant.against([Self::Plain, Self::Thp, Self::Empty].map(|rival| rival.id(group)))
    }

    /// Returns the bytes that a process with a heap of `len` bytes occupies.
    pub(super) fn occupies(self, len: usize) -> usize {
        match self {
            Self::Empty | Self::UffdCopy => 0,
            _ => len,
        }
    }
}

impl FromStr for Who {
    type Err = UnknownWho;

    fn from_str(name: &str) -> Result<Self, UnknownWho> {
        Self::ALL.into_iter().find(|who| who.name() == name).ok_or_else(|| UnknownWho(name.to_owned()))
    }
}

/// A name that no contestant has.
#[derive(Debug, thiserror::Error)]
#[error("no contestant of the suite `fork` is called `{0}`")]
pub(super) struct UnknownWho(String);

//! What packs can be made of.

use std::fmt;
use std::str::FromStr;

use palimpsest_sys::{CollapseError, CreateError, MapError, ProcMemError};

/// The kinds of memory for packs, the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Backing {
    /// A memfd in two views, collapsed into one huge page.
    CollapsedMemfd,
    /// A memfd in two views, out of the pool of `vm.nr_hugepages`.
    HugetlbMemfd,
    /// A memfd in two views, in base pages: one entry of the instruction TLB for every 4 KiB.
    SmallMemfd,
    /// Private anonymous memory, huge if the kernel grants it, written through `/proc/self/mem`: about a microsecond
    /// per write, and a forked child has its own copy.
    ProcMem,
}

impl Backing {
    /// All backings, the best first.
    pub const ALL: [Self; 4] = [Self::CollapsedMemfd, Self::HugetlbMemfd, Self::SmallMemfd, Self::ProcMem];

    /// Returns the name that `FromStr` reads and `Display` writes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CollapsedMemfd => "collapsed-memfd",
            Self::HugetlbMemfd => "hugetlb-memfd",
            Self::SmallMemfd => "small-memfd",
            Self::ProcMem => "proc-mem",
        }
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name that no backing has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no backing is called {0:?}; there are collapsed-memfd, hugetlb-memfd, small-memfd and proc-mem")]
pub struct UnknownBacking(String);

impl FromStr for Backing {
    type Err = UnknownBacking;

    fn from_str(name: &str) -> Result<Self, UnknownBacking> {
        let found = Self::ALL.into_iter().find(|backing| backing.name() == name);
        found.ok_or_else(|| UnknownBacking(name.to_owned()))
    }
}

/// Why a pack cannot be made of some backing.
#[derive(Debug, thiserror::Error)]
pub enum BackingError {
    /// No memory object could be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// It could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The pool of huge pages has too few free ones.
    #[error("the pool of 2 MiB huge pages has none free; fill it (`sysctl -w vm.nr_hugepages=64`)")]
    HugePool(#[source] MapError),
    /// It could not be collapsed into a huge page.
    #[error(transparent)]
    Collapse(#[from] CollapseError),
    /// It could not be written through `/proc/self/mem`.
    #[error(transparent)]
    ProcMem(#[from] ProcMemError),
}

/// A better backing than the one in use, and why it was refused.
#[derive(Debug)]
pub struct Refused {
    /// The backing.
    pub backing: Backing,
    /// Why.
    pub error: BackingError,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for backing in Backing::ALL {
            assert_eq!(backing.name().parse(), Ok(backing));
        }
        let error = "hugetlbfs".parse::<Backing>().unwrap_err();
        assert!(error.to_string().contains("\"hugetlbfs\""));
    }
}

//! What slices, forks and guards do to memory, each brought to where it is about to do a part of it.

use std::time::Duration;

use palimpsest_fork::{Measure, Options, OtherThreads, Pages, Pause, Pays, Stage, guard, progress, status};

use super::gathering::{Child, PIECE, needs_huge_pages, slices};
use super::{Memory, freeze, in_child, page, slice};

/// What is done to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Slices freeze, and hold everybody meanwhile.
    Freeze,
    /// They put pages together where they are, and hold nobody.
    Gather,
    /// They put together again what writes beside a child have split, and hold nobody.
    Mend,
    /// They make huge pages of frozen memory that was written to, and hold everybody.
    Tend,
    /// A fork makes a part of a repair, and holds everybody.
    Repair,
    /// All that is frozen becomes anonymous, while everybody is held.
    Thaw,
}

/// How often a way may try to come to its beginning: it may not pay, or there is no time for it on a busy machine.
const TRIALS: usize = 3000;

/// The time before a fork, a twentieth of which slices have after it.
const BEFORE_FORK: Duration = Duration::from_millis(250);

impl Way {
    /// Returns what is done at once, in slices of no time.
    pub(crate) const fn part(self) -> usize {
        match self {
            Self::Freeze => 128 << 10,
            _ => PIECE,
        }
    }

    const fn len(self) -> usize {
        match self {
            Self::Freeze => PIECE,
            // A fork may make a huge page, too.
            Self::Tend => 6 * PIECE,
            _ => 4 * PIECE,
        }
    }

    pub(crate) fn options(self) -> Options {
        let options = Options::new().measure(Measure::Nothing).pause(Pause::Within(Duration::ZERO));
        let options = options.other_threads(OtherThreads::Stop);
        match self {
            Self::Freeze => options.least(page()),
            // Without small memory, which tests write to all the time.
            Self::Tend | Self::Repair | Self::Thaw => options,
            Self::Gather | Self::Mend => options.pages(Pages::Gather).pays(Pays::Within(1500)),
        }
    }

    /// Ends the scenario if this cannot be done here.
    pub(crate) fn needs(self) {
        if matches!(self, Self::Gather | Self::Mend | Self::Tend) {
            needs_huge_pages();
        }
    }

    /// Returns filled memory for it.
    pub(crate) fn memory(self) -> Memory {
        let memory = match self {
            // Without huge pages.
            Self::Freeze | Self::Repair | Self::Thaw => Memory::apart(self.len()),
            Self::Gather | Self::Mend | Self::Tend => Memory::unadvised(self.len()),
        };
        memory.fill(0..memory.len, 1);
        memory
    }

    /// Brings this process to where [`work`](Self::work) does the second part of it. Returns false if there is nothing
    /// to do: no huge page can be had, or the machine is too busy.
    pub(crate) fn prepare(self, memory: &Memory) -> bool {
        let has_begun = self.begin(memory);
        // What loses memory must not look like a machine that has no time for it.
        assert!(memory.holds(0..memory.len, 1), "{self:?}: the first part keeps what is in memory");
        has_begun
    }

    fn begin(self, memory: &Memory) -> bool {
        if matches!(self, Self::Mend | Self::Tend | Self::Repair) {
            // What is written afterwards differs, or it would not show if that is lost.
            memory.fill(0..memory.len, 0);
        }
        freeze(&self.options());
        match self {
            Self::Freeze | Self::Gather => {
                slice();
                progress().stage == Stage::UnderWay
            }
            Self::Mend => {
                end();
                std::thread::sleep(BEFORE_FORK);
                let child = Child::fork(|| true);
                memory.fill(0..memory.len, 1);
                child.end();
                let is_begun = || {
                    slice();
                    memory.huge() > 0
                };
                memory.huge() == 0 && (0..50).any(|_| is_begun()) && memory.huge() < memory.len
            }
            Self::Tend => {
                end();
                (0..4).for_each(|_| assert_eq!(in_child(|| 0), 0));
                let is_made = || {
                    if memory.huge() > 0 {
                        return true;
                    }
                    memory.fill(0..memory.len, 1);
                    std::thread::sleep(BEFORE_FORK / 10);
                    assert_eq!(in_child(|| 0), 0);
                    slice();
                    memory.huge() > 0
                };
                let is_begun = comes_to(is_made);
                // So that there is time for the next one.
                memory.fill(0..memory.len, 1);
                std::thread::sleep(BEFORE_FORK);
                assert_eq!(in_child(|| 0), 0);
                is_begun && memory.huge() < memory.len && status().repairs == 0
            }
            Self::Repair => {
                end();
                (0..4).for_each(|_| assert_eq!(in_child(|| 0), 0));
                memory.fill(0..memory.len, 1);
                // The next part of a repair that was begun is due at once; none is if everything was repaired.
                let is_begun = || {
                    assert_eq!(in_child(|| 0), 0);
                    status().price == 0 || memory.present() == 0
                };
                comes_to(is_begun) && (1..memory.len).contains(&memory.present())
            }
            Self::Thaw => {
                end();
                memory.is_frozen()
            }
        }
    }

    /// Does a part, the second one of most ways.
    pub(crate) fn work(self) {
        match self {
            Self::Freeze | Self::Gather | Self::Mend | Self::Tend => {
                slice();
            }
            Self::Repair => assert_eq!(in_child(|| 0), 0),
            // Refused if a thread cannot be held: then all is as before.
            Self::Thaw => drop(guard::thaw_all()),
        }
    }

    /// Does the rest.
    pub(crate) fn finish(self) {
        match self {
            Self::Freeze | Self::Gather => end(),
            Self::Mend | Self::Tend => slices(8),
            Self::Repair => (0..8).for_each(|_| self.work()),
            Self::Thaw => self.work(),
        }
    }
}

/// Takes slices to the end.
fn end() {
    while progress().stage == Stage::UnderWay {
        slice();
    }
}

fn comes_to(mut is_there: impl FnMut() -> bool) -> bool {
    (0..TRIALS).any(|_| is_there())
}

//! What a program does to its memory while something is done to that, and what the memory must hold then.

use std::ops::Range;

use palimpsest_fork::guard::{self, Remap};
use palimpsest_sys::memory::calls::in_memory;

use super::ways::Way;
use super::{Memory, guarded, in_child, page};

/// What happens at a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deed {
    Write,
    Discard,
    Move,
    Replace,
    /// Advises that children get no copy.
    Keep,
    Fork,
    StartThread,
    /// A signal for the process; only the thread that takes the slice does not block it.
    Signal,
}

impl Deed {
    pub(crate) const ALL: [Self; 8] = [
        Self::Write,
        Self::Discard,
        Self::Move,
        Self::Replace,
        Self::Keep,
        Self::Fork,
        Self::StartThread,
        Self::Signal,
    ];
}

/// Memory to which a deed is done.
#[derive(Clone, Copy)]
pub(crate) struct Scene {
    pub(crate) way: Way,
    pub(crate) deed: Deed,
    pub(crate) memory: Memory,
    /// Where parts are moved.
    there: Memory,
}

// SAFETY: its memory is never unmapped, and only accessed by volatile reads and writes.
unsafe impl Send for Scene {}

impl Scene {
    pub(crate) fn new(way: Way, deed: Deed) -> Self {
        Self { way, deed, memory: way.memory(), there: Memory::apart(2 << 20) }
    }

    /// Returns where deeds are done: in the first part of what is done, in the second, and in the last.
    pub(crate) fn places(self) -> [Range<usize>; 3] {
        [0, 1, 3].map(|part| {
            let start = part * self.way.part() + self.way.part() / 4;
            start..start + 8 * page()
        })
    }

    /// Does the deed.
    pub(crate) fn act(self) {
        let memory = self.memory;
        if self.deed == Deed::Fork {
            assert_eq!(in_child(|| i32::from(!memory.holds(0..memory.len, 1))), 0, "a child has what was there");
        }
        for (number, place) in self.places().into_iter().enumerate() {
            let (address, len) = (memory.at(place.start), place.len());
            match self.deed {
                Deed::Write => memory.fill(place, 2),
                Deed::Discard => guarded::madvise(&memory, place.start, len, libc::MADV_DONTNEED).expect("discarded"),
                Deed::Keep => guarded::madvise(&memory, place.start, len, libc::MADV_DONTFORK).expect("advised"),
                Deed::Move => {
                    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
                    let to = self.there.at(number * len).addr();
                    let remap = Remap { address: address.addr(), len, new_len: len, flags, new_address: to };
                    // SAFETY: 1. the scenario's memory.
                    assert_eq!(unsafe { guard::mremap(remap) }, Ok(to));
                }
                Deed::Replace => {
                    let kind = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                    let rights = libc::PROT_READ | libc::PROT_WRITE;
                    // SAFETY: the scenario's memory.
                    assert_eq!(unsafe { libc::mmap(address, len, rights, kind, -1, 0) }, address);
                    guard::replaced(address.addr()..address.addr() + len);
                }
                Deed::StartThread => {
                    let (tell, told) = std::sync::mpsc::channel();
                    // It lives on, so that it is held in the slices that follow.
                    std::thread::spawn(move || {
                        let whole = self;
                        whole.memory.fill(place, 2);
                        let _ = tell.send(());
                        loop {
                            std::thread::park();
                        }
                    });
                    told.recv().expect("it has written");
                }
                Deed::Fork | Deed::Signal => {}
            }
        }
    }

    /// Whether the memory is what the deed has made of it.
    pub(crate) fn is_right(self, has_acted: bool, who: Who) -> bool {
        let (memory, places) = (self.memory, self.places());
        let changed = |index: usize| places.iter().position(|place| place.contains(&(index * page())));
        (0..memory.len / page()).all(|index| {
            let page = index * page()..(index + 1) * page();
            match (changed(index).filter(|_| has_acted), self.deed) {
                (Some(_), Deed::Write | Deed::StartThread) => memory.holds(page, 2),
                (Some(_), Deed::Discard | Deed::Replace) => memory.is_zero(page),
                (Some(_), Deed::Keep) if who == Who::Child => !is_there(memory, page.start),
                (Some(number), Deed::Move) => {
                    let offset = number * places[number].len();
                    let start = self.there.at(offset).addr() - places[number].start;
                    let moved = Memory { start: std::ptr::with_exposed_provenance_mut(start), len: memory.len };
                    !is_there(memory, page.start) && moved.holds(page, 1)
                }
                _ => memory.holds(page, 1),
            }
        })
    }
}

/// Who looks at its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Parent,
    Child,
}

fn is_there(memory: Memory, offset: usize) -> bool {
    let address = memory.at(offset).addr();
    in_memory((address..address + page()).into()).is_some()
}

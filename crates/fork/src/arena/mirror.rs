//! Where former mappings of frozen memory lie ([`aside`](super::aside)): address space that is reserved above the
//! arena's memory.
//!
//! Children do not inherit what lies there, which is shared (`MADV_DONTFORK` is copied with a mapping): in its place
//! they have holes, which the handler of a fork reserves again. In a child of a bare `clone`, for which no handler
//! runs, something else may lie there. So a [wiped](Wiped) word tells whose mirror it is.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::memory::file::MemoryFile;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;

use crate::hazards::wiped::{Slot, Wiped};

/// A former mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aside {
    /// Its file, which cannot be sealed while it is mapped shared.
    pub(super) file: MemoryFile,
    /// Bytes from its start that are still mapped.
    pub(super) len: usize,
}

/// The place for the former mappings of an arena.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mirror {
    /// The memory that it is for, and how many bytes above that it lies.
    mirrored: Span,
    distance: usize,
    /// Whose it is; nobody's if there is none.
    owner: Option<Process>,
    door: Door,
    /// Where anybody may have mapped something, since the kernel has failed in the middle of a call.
    lost: Span,
    /// Segments that have a former mapping.
    pub(super) used: usize,
}

/// Whether more former mappings may come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Door {
    Open,
    Shut,
}

/// A process among its own forefathers: its number is higher than theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process(i32);

/// This process's number; 0 in a new child. Relaxed here and below: only the number itself matters, and whoever reads
/// it twice in one process reads the same.
// SAFETY: 1. the only one with this slot.
static THIS: Wiped<AtomicI32> = unsafe { Wiped::new(Slot::Aside) };
/// The last number given, in this process or one of its forefathers.
static LAST: AtomicI32 = AtomicI32::new(0);
/// Whether the kernel has refused to move page tables: it is too old, or a filter forbids it. Relaxed: a hint.
static REFUSED: AtomicBool = AtomicBool::new(false);

impl Process {
    /// Returns this process; `None` where children cannot be told from it.
    fn this() -> Option<Self> {
        let this = THIS.get()?;
        let known = this.load(Ordering::Relaxed);
        if known != 0 {
            // A snapshot that is restored takes back what was given, but not what a process has.
            LAST.fetch_max(known, Ordering::Relaxed);
            return Some(Self(known));
        }
        let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        // Another thread's number may have come first.
        let settled = this.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
        Some(Self(settled.map_or_else(|first| first, |_| next)))
    }
}

impl Mirror {
    /// No place for former mappings.
    pub(super) const NONE: Self =
        Self { mirrored: Span::new(0, 0), distance: 0, owner: None, door: Door::Shut, lost: Span::new(0, 0), used: 0 };

    /// Whether it is of any use to reserve one.
    pub(super) fn is_wanted() -> bool {
        !REFUSED.load(Ordering::Relaxed) && Process::this().is_some()
    }

    /// Makes the mirror of memory at `mirrored`, from address space that is reserved so many bytes above it.
    pub(super) fn above(mirrored: Span, distance: usize) -> Self {
        Self { mirrored, distance, owner: Process::this(), door: Door::Open, ..Self::NONE }
    }

    /// Whether it is this process's.
    pub(super) fn is_ours(&self) -> bool {
        self.owner.is_some() && self.owner == Process::this()
    }

    /// Returns the place of memory at `span`; `None` if none may be used.
    pub(super) fn open_place(&self, span: Span) -> Option<Span> {
        let is_open = self.door == Door::Open && self.is_ours() && self.mirrored.intersection(span) == span;
        is_open.then(|| self.of(span))
    }

    /// Returns where the former mapping of memory at `span` lies.
    pub(super) fn of(&self, span: Span) -> Span {
        Span::new(span.start + self.distance, span.end + self.distance)
    }

    /// Notes that the kernel has failed to replace what is at `place`, and may have unmapped it.
    pub(super) fn lose(&mut self, place: Span) {
        self.door = Door::Shut;
        self.lost = match self.lost.is_empty() {
            true => place,
            false => Span::new(self.lost.start.min(place.start), self.lost.end.max(place.end)),
        };
    }

    /// Does the same for a refusal to move page tables.
    pub(super) fn refused(&mut self, place: Span) {
        REFUSED.store(true, Ordering::Relaxed);
        self.lose(place);
    }

    /// Returns the parts that nobody else can have mapped something in: all of it, but what is lost.
    pub(super) fn kept(&self) -> [Span; 2] {
        if !self.is_ours() {
            return [Span::default(); 2];
        }
        let whole = self.of(self.mirrored);
        if self.lost.is_empty() {
            return [whole, Span::default()];
        }
        [Span::new(whole.start, self.lost.start), Span::new(self.lost.end, whole.end)]
    }

    /// Returns the mirror of a child, which this is, alone and just forked: reserves the holes where its parent has
    /// former mappings, which are given by ascending address.
    pub(super) fn of_child(self, asides: impl Iterator<Item = Span>) -> Self {
        if self.owner.is_none() {
            return Self::NONE;
        }
        let mut child = Self { used: 0, ..self };
        let mut hole = Span::default();
        let mut reserve = |hole: Span| {
            if !(hole.is_empty() || calls::fill_hole(hole, Permissions::default(), Commit::Uncounted)) {
                child.lose(hole);
            }
        };
        for next in asides.map(|span| self.of(span)) {
            if hole.end == next.start {
                hole.end = next.end;
            } else {
                reserve(std::mem::replace(&mut hole, next));
            }
        }
        reserve(hole);
        Self { owner: Process::this(), ..child }
    }
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::threads::child;

    use super::*;

    /// Fails on: a child that is taken for its parent, also after a restored snapshot has taken back the numbers.
    #[test]
    fn a_child_is_another_process_than_its_forefathers() {
        let Some(this) = Process::this() else { return println!("skipped: no memory is wiped in children") };
        for restored in [LAST.load(Ordering::Relaxed), 0] {
            LAST.store(restored, Ordering::Relaxed);
            assert_eq!(Process::this(), Some(this));
            // SAFETY: 1. atomic accesses.
            let child = unsafe { child::spawn(&[], || i32::from(Process::this() == Some(this))) }.expect("a child");
            assert_eq!(child.wait(), Ok(0));
        }
    }

    /// Fails on: a place that somebody else has, used or given back with the rest.
    #[test]
    fn what_is_lost_is_left_alone() {
        let mut mirror = Mirror::above(Span::new(0x10_0000, 0x50_0000), 0x100_0000);
        if !mirror.is_ours() {
            return println!("skipped: no memory is wiped in children");
        }
        let [all, none] = mirror.kept();
        assert_eq!((all, none.is_empty()), (Span::new(0x110_0000, 0x150_0000), true));
        assert_eq!(mirror.open_place(Span::new(0x10_0000, 0x20_0000)), Some(Span::new(0x110_0000, 0x120_0000)));
        assert_eq!(mirror.open_place(Span::new(0x40_0000, 0x60_0000)), None, "it is not all mirrored");
        mirror.lose(Span::new(0x120_0000, 0x130_0000));
        mirror.lose(Span::new(0x140_0000, 0x148_0000));
        assert_eq!(mirror.kept(), [Span::new(0x110_0000, 0x120_0000), Span::new(0x148_0000, 0x150_0000)]);
        assert_eq!(mirror.open_place(Span::new(0x10_0000, 0x20_0000)), None);
        assert_eq!(Mirror { owner: None, ..mirror }.kept(), [Span::default(); 2]);
    }
}

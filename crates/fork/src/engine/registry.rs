//! What this process has frozen: tables outside the heap, one set for each process, inherited by children.
//!
//! Two parts with different rules:
//!
//! * [`State`] belongs to who holds the lock. Locking never waits: freezes and repairs by two threads at once are a
//!   mistake of the caller, and a signal handler that waited for the code it interrupted would wait for ever. The lock
//!   is the holder's process id, so that a child is never locked out by a thread that it does not have.
//! * [`Shared`] holds atomics that anybody reads at any time: counters, and the [map](super::frozen_map) of what is
//!   frozen.
//!
//! The memory is never given back, since guards may read it at any time.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use palimpsest_sys::MapError;
use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::extent::{Commit, FileId};
use palimpsest_sys::memory::vec::{Full, MappedVec, leak_zeroed};
use palimpsest_sys::memory::view::View;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Vma, VmaFlags, Vmas};
use palimpsest_sys::proc::sysctl;

use super::contents::Contents;
use super::frozen_map::FrozenMap;
use super::piece::PIECE;
use super::plan::{Eligible, Excluded, Skipped};
use super::repair::{HotPiece, MOST_HOT, may_be_replaced};
use super::span::Span;
use super::traits::Traits;
use crate::hazards::borrowed;

/// An extent that is, or was, mapped somewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) id: FileId,
    /// Its number in this process and its children; never 0.
    pub(crate) serial: u32,
    /// What it is mapped from again.
    view: Option<View>,
    /// Whether the view was seen by the inventory that is being worked on.
    is_view_seen: bool,
    /// Bytes that were stored in it.
    stored: usize,
    /// Whether it holds something that the program has erased.
    pub(crate) is_erased: bool,
    /// Whether a mapping of it, other than the view, was seen by that inventory.
    pub(crate) seen: bool,
    /// What all its mappings have; nothing if they differ.
    pub(crate) flags: Option<VmaFlags>,
    /// What the memory was that it was made of. Its own mappings are never counted.
    commit: Commit,
    /// Bytes of address space that show it.
    pub(crate) mapped: usize,
    /// Whether all of that may be replaced.
    pub(crate) hold: Hold,
}

/// Whether the mappings of an extent may be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// They may.
    Loose,
    /// One of them may not.
    Fast,
}

impl Held {
    /// A new extent with so many bytes, whose mappings have these traits.
    pub(crate) fn new(id: FileId, serial: u32, view: Option<View>, stored: usize, traits: Traits) -> Self {
        let (flags, commit) = (traits.known_flags(), traits.commit());
        let is_view_seen = view.is_some();
        Self {
            id,
            serial,
            view,
            is_view_seen,
            stored,
            is_erased: false,
            seen: true,
            flags,
            commit,
            mapped: 0,
            hold: Hold::Loose,
        }
    }

    /// Whether this mapping of it is the view.
    pub(crate) fn is_view(&self, vma: &Vma) -> bool {
        let has_no_rights = vma.permissions == Permissions::default();
        vma.offset == 0 && has_no_rights && self.view.is_some_and(|view| view.span() == Span::from(vma.range()))
    }

    /// The view, if the inventory that is being worked on has seen it.
    pub(crate) fn view(&self) -> Option<View> {
        self.view.filter(|_| self.is_view_seen)
    }

    /// Unmaps the view, if it was seen.
    pub(crate) fn drop_view(&mut self) {
        if let Some(view) = self.view() {
            // SAFETY: 1. seen by an inventory since which nobody else has run; forgotten below.
            unsafe { view.unmap() };
        }
        self.view = None;
    }

    /// Begins an inventory.
    pub(crate) fn look_again(&mut self) {
        (self.seen, self.is_view_seen) = (false, false);
    }

    /// What must replace a mapping of it.
    pub(crate) fn traits(&self, vma: &Vma) -> Traits {
        Traits::of(vma).with_commit(self.commit)
    }

    /// Notes a mapping of it that an inventory has found, with its flags.
    pub(crate) fn see(&mut self, vma: &Vma) {
        if self.is_view(vma) {
            self.is_view_seen = true;
            return;
        }
        let flags = self.traits(vma).known_flags();
        if !self.seen {
            (self.seen, self.flags, self.mapped, self.hold) = (true, flags, 0, Hold::Loose);
        }
        self.flags = self.flags.filter(|known| Some(*known) == flags);
        self.mapped += vma.range().len();
        if !may_be_replaced(vma) {
            self.hold = Hold::Fast;
        }
    }

    /// Whether all that shows it is to be moved elsewhere.
    pub(crate) fn is_to_go(&self) -> bool {
        self.is_erased || self.is_sparse()
    }

    /// Whether more than half of the memory that it takes is shown by nothing any more, so that moving the rest
    /// elsewhere frees more than it takes.
    fn is_sparse(&self) -> bool {
        // A mapping may show holes, so this is the least that is lost.
        self.hold == Hold::Loose && self.stored > 2 * self.mapped
    }
}

/// The tables that a freeze works with. Most live for one round: what stays mapped costs every fork a page table each.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) vmas: Vmas,
    pub(crate) eligible: MappedVec<Eligible>,
    pub(crate) skipped: MappedVec<Skipped>,
    /// Populated runs of the window that is being worked on.
    pub(crate) runs: MappedVec<Span>,
    /// Memory that must never be frozen: this library's, and what the kernel or running code writes to.
    pub(crate) excluded: MappedVec<Excluded>,
    /// Sorted by identity.
    pub(crate) extents: &'static mut MappedVec<Held>,
    /// Which pages the extents hold.
    pub(crate) contents: &'static mut Contents,
    pub(crate) hot: &'static mut MappedVec<HotPiece>,
}

/// The tables that last.
#[derive(Debug)]
struct Lasting {
    extents: MappedVec<Held>,
    contents: Contents,
    hot: MappedVec<HotPiece>,
}

/// Runs in a window of 1 GiB with pages of 4 KiB are at most half as many as its pages; bigger windows have their runs
/// cut off and taken up again.
const RUNS: usize = 1 << 17;
/// Mappings that a process has room for at most here, however high the sysctl is: the tables are address space only.
const MOST_MAPPINGS: usize = 1 << 21;

/// How many mappings the process can have.
fn most_mappings() -> usize {
    let limit = sysctl::max_map_count().unwrap_or(65_530);
    // Kernel mappings and those that a limit lowered later leaves over come on top.
    usize::try_from(limit).unwrap_or(MOST_MAPPINGS).min(MOST_MAPPINGS) + 1024
}

impl State {
    /// Allocates nothing from the heap.
    fn new(lasting: &'static mut Lasting) -> Result<Self, MapError> {
        let mappings = lasting.extents.capacity();
        Ok(Self {
            vmas: Vmas::with_capacity(mappings)?,
            eligible: MappedVec::with_capacity(2 * mappings)?,
            skipped: MappedVec::with_capacity(2 * mappings)?,
            runs: MappedVec::with_capacity(RUNS)?,
            excluded: MappedVec::with_capacity(mappings)?,
            extents: &mut lasting.extents,
            contents: &mut lasting.contents,
            hot: &mut lasting.hot,
        })
    }

    /// The addresses of these tables.
    pub(crate) fn own_spans(&self) -> impl Iterator<Item = Span> {
        let [list, text] = self.vmas.own_ranges();
        [
            list,
            text,
            self.eligible.range(),
            self.skipped.range(),
            self.runs.range(),
            self.excluded.range(),
            self.extents.range(),
            self.contents.range(),
            self.hot.range(),
        ]
        .into_iter()
        .map(Span::from)
    }

    /// Below this there is room for another view: below the tables and the other views, so that it fills no gap between
    /// the program's mappings.
    pub(crate) fn views_start(&self) -> usize {
        let views = self.extents.iter().filter_map(Held::view).map(|view| view.span().start);
        views.chain(shared().map(|shared| shared.span().start)).min().unwrap_or(0)
    }

    /// The extent that a mapping shows.
    pub(crate) fn held(&mut self, id: FileId) -> Option<&mut Held> {
        let place = self.extents.binary_search_by_key(&key(id), |held| key(held.id)).ok()?;
        self.extents.get_mut(place)
    }

    /// Adds an extent at its place in the order. New files need not have higher numbers than older ones: each CPU gives
    /// them out of a batch of its own (`get_next_ino` in `fs/inode.c`).
    pub(crate) fn add_extent(&mut self, held: Held) -> Result<(), Full> {
        let new = key(held.id);
        let place = self.extents.partition_point(|known| key(known.id) < new);
        self.extents.push(held)?;
        self.extents[place..].rotate_right(1);
        Ok(())
    }
}

fn key(id: FileId) -> (u32, u32, u64) {
    (id.device.major, id.device.minor, id.inode)
}

/// Figures that anybody may read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) frozen_bytes: AtomicUsize,
    pub(crate) chunks: AtomicUsize,
    pub(crate) hot_pieces: AtomicUsize,
    pub(crate) forks: AtomicU64,
    pub(crate) repairs: AtomicU64,
    /// Nanoseconds of CPU time, as all times of forks, that forks took above the clean time since the last repair.
    pub(crate) debt: AtomicU64,
    /// Nanoseconds of a fork when nothing was written; 0 before the first.
    pub(crate) clean: AtomicU64,
    /// Nanoseconds that the last look at what is written took.
    pub(crate) look: AtomicU64,
    /// Nanoseconds that a repair will take, as the last look told; 0 before the first since the last repair.
    pub(crate) quote: AtomicU64,
    /// Nanoseconds that copying a MiB took when it was frozen.
    pub(crate) per_mib: AtomicU64,
    /// By what quotes are multiplied, in units of [`SCALE`](super::round::SCALE).
    pub(crate) scale: AtomicU64,
    /// How many times its price a repair must be worth; doubled by each that gained nothing.
    pub(crate) patience: AtomicU64,
    /// The number of rounds: freezes and repairs.
    pub(crate) rounds: AtomicU64,
    /// 1 if repairs may stop other threads.
    pub(crate) may_stop_threads: AtomicUsize,
    /// Nanoseconds of the last fork; 0 if that was the first since a repair.
    pub(crate) last: AtomicU64,
    /// Nanoseconds of the quicker of the last two forks.
    pub(crate) typical: AtomicU64,
    /// What was typical before the last repair; 0 once it has been compared with the first fork after.
    pub(crate) before_repair: AtomicU64,
    /// What the caller of the last freeze answered for.
    pub(crate) answers: AtomicUsize,
    /// The length of chunks.
    pub(crate) chunk: AtomicUsize,
    /// What mappings must have at least to be frozen, in bytes.
    pub(crate) least: AtomicUsize,
    /// 1 if huge pages are wanted.
    pub(crate) collapses: AtomicUsize,
}

/// The part that is read without the lock.
pub(crate) struct Shared {
    /// Process id of who holds `lasting`; 0 for nobody.
    owner: AtomicI32,
    pub(crate) map: FrozenMap,
    /// Ranges in frozen memory that were discarded since the last freeze.
    replacements: AtomicUsize,
    /// 1 if the program has erased something that is still in an extent.
    erased: AtomicUsize,
    pub(crate) counters: Counters,
    lasting: UnsafeCell<Lasting>,
}

// SAFETY: everything is atomic but `lasting`, which only the holder of `owner` refers to, one at a time in a process.
unsafe impl Sync for Shared {}

/// Null in a process that has never frozen.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

/// The tables, if this process or one that it was forked from has frozen.
pub(crate) fn shared() -> Option<&'static Shared> {
    // Acquire, partner: the Release exchange in `lock`. Forbids to see the tables without their contents.
    // SAFETY: null, or memory that is never given back.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// The tables, made now if there are none.
pub(crate) fn known() -> Result<&'static Shared, MapError> {
    shared().map_or_else(make, Ok)
}

/// The tables, locked; made now if there are none. `None` if somebody holds them.
pub(crate) fn lock() -> Result<Option<Locked>, MapError> {
    known()?.lock()
}

fn make() -> Result<&'static Shared, MapError> {
    // One mapping for all, with what is used much at its start: mappings and page tables cost every fork.
    let page = rustix::param::page_size();
    let head = size_of::<Shared>().next_multiple_of(page);
    let hot = (MOST_HOT * size_of::<HotPiece>()).next_multiple_of(page);
    let contents = Contents::bytes().next_multiple_of(page);
    let extents = (most_mappings() * size_of::<Held>()).next_multiple_of(page);
    let len = head + hot + contents + extents;
    let room = leak_zeroed(len + PIECE)?;
    // What is used of a usual process's tables is then in one page table, which is all that a child gets a copy of.
    let ahead = room.as_ptr().addr().next_multiple_of(PIECE) - room.as_ptr().addr();
    // SAFETY: there are so many bytes more than are needed.
    let whole = unsafe { room.add(ahead) };
    let all = Span::new(whole.as_ptr().expose_provenance(), whole.as_ptr().addr() + len);
    // A huge page would be copied as a whole. A refusal is from a kernel that makes none.
    // SAFETY: 1. changes no contents.
    let _ = unsafe { calls::advise(all, libc::MADV_NOHUGEPAGE) };
    // SAFETY: inside the memory that was made for it.
    let hot_place = unsafe { whole.add(head) };
    // SAFETY: as above.
    let contents_place = unsafe { whole.add(head + hot) };
    // SAFETY: as above.
    let extents_place = unsafe { whole.add(head + hot + contents) };
    let lasting = Lasting {
        // SAFETY: 1. whole pages of the mapping made above, behind the head and before the contents.
        hot: unsafe { MappedVec::within(hot_place, hot) },
        // SAFETY: 1. whole pages of that mapping, before the extents.
        contents: Contents::new(unsafe { MappedVec::within(contents_place, contents) }),
        // SAFETY: 1. the last whole pages of that mapping.
        extents: unsafe { MappedVec::within(extents_place, extents) },
    };
    let place = whole.cast::<Shared>();
    // SAFETY: inside the memory that was made for it.
    let lasting_place = UnsafeCell::raw_get(unsafe { &raw const (*place.as_ptr()).lasting });
    // SAFETY: fresh memory of the right size, aligned to a page; all other fields are atomics, for which zero is valid.
    unsafe { lasting_place.write(lasting) };
    // Release, partner: the Acquire load in `shared`. Acquire on failure: the winner's tables are read.
    match SHARED.compare_exchange(ptr::null_mut(), place.as_ptr(), Ordering::Release, Ordering::Acquire) {
        // SAFETY: initialised above, and never given back.
        Ok(_) => Ok(unsafe { place.as_ref() }),
        // Ours leaks: address space and a page, once.
        // SAFETY: another thread's tables, never given back.
        Err(winner) => Ok(unsafe { &*winner }),
    }
}

impl Shared {
    fn lock(&'static self) -> Result<Option<Locked>, MapError> {
        if borrowed::owner().is_some() {
            return Ok(None);
        }
        let own = rustix::process::getpid().as_raw_nonzero().get();
        // Acquire, partner: the Release store in `Locked::drop`. Forbids to work on tables that the last holder is
        // still writing.
        let known = self.owner.load(Ordering::Relaxed);
        if known == own {
            return Ok(None);
        }
        // Another id than our own and 0 is a parent's: its holder does not exist here.
        if self.owner.compare_exchange(known, own, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Ok(None);
        }
        let held = Holding(self);
        // SAFETY: there is one holder at a time, and what it lends ends with it: `Locked` gives `State` out by
        // reference alone.
        let lasting = unsafe { &mut *self.lasting.get() };
        Ok(Some(Locked { state: State::new(lasting)?, shared: self, held }))
    }

    /// Whether there was a freeze. A snapshot and a survey make tables too.
    pub(crate) fn has_frozen(&self) -> bool {
        self.counters.rounds.load(Ordering::Relaxed) > 0
    }

    /// Where this lies.
    pub(crate) fn span(&self) -> Span {
        let start = ptr::from_ref(self).addr();
        Span::new(start, start + size_of::<Self>())
    }

    /// Counts a replacement in frozen memory, and tells how many there were.
    pub(crate) fn count_replacement(&self) -> usize {
        self.replacements.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that an extent holds what was erased. Relaxed, here and below: the map says which.
    pub(crate) fn note_erased(&self) {
        self.erased.store(1, Ordering::Relaxed);
    }

    /// Whether an extent may hold what was erased.
    pub(crate) fn has_erased(&self) -> bool {
        self.erased.load(Ordering::Relaxed) != 0
    }

    /// Begins anew: the map was rewritten.
    pub(crate) fn forget_erased(&self) {
        self.erased.store(0, Ordering::Relaxed);
    }

    /// Begins a new count of replacements.
    pub(crate) fn forget_replacements(&self) {
        self.replacements.store(0, Ordering::Relaxed);
    }
}

/// The state, until dropped.
#[derive(Debug)]
pub(crate) struct Locked {
    /// Dropped before the lock is given back.
    state: State,
    pub(crate) shared: &'static Shared,
    #[expect(dead_code, reason = "its drop is its purpose")]
    held: Holding,
}

impl Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

/// Gives the lock back when dropped.
#[derive(Debug)]
struct Holding(&'static Shared);

impl Drop for Holding {
    fn drop(&mut self) {
        // Release, partner: the Acquire exchange in `Shared::lock`.
        self.0.owner.store(0, Ordering::Release);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("counters", &self.counters).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_counted_again() {
        let permissions = Permissions::READ;
        let vma = |flags| Vma {
            start: 0x1000,
            end: 0x2000,
            permissions,
            offset: 0,
            device: Default::default(),
            inode: 1,
            label: palimpsest_sys::pages::vmas::Label::Extent,
            anonymous: 0,
            flags,
            protection_key: 0,
        };
        for (before, commit) in [(VmaFlags::default(), Commit::Counted), (VmaFlags::NO_RESERVE, Commit::Uncounted)] {
            let mut held = Held::new(FileId::default(), 1, None, 0, Traits::of(&vma(before)));
            // Each mapping of an extent is made without a reserve, whatever it replaces.
            held.seen = false;
            held.see(&vma(VmaFlags::NO_RESERVE));
            assert_eq!((held.traits(&vma(VmaFlags::NO_RESERVE)).commit(), held.flags), (commit, Some(before)));
        }
    }

    #[test]
    fn extents_are_found_whatever_the_order_of_their_numbers() {
        let mut locked = loop {
            if let Some(locked) = lock().expect("memory") {
                break locked;
            }
            std::thread::yield_now();
        };
        assert!(locked.extents.is_empty(), "no test of this program freezes");
        // As if each had been made on another CPU.
        let ids = [9, 8, 2, 6, 5, 4, 7, 3, 1].map(|inode| FileId { inode, ..FileId::default() });
        for (index, id) in ids.iter().enumerate() {
            let traits = Traits { permissions: Permissions::READ, flags: VmaFlags::default(), protection_key: 0 };
            locked.add_extent(Held::new(*id, 1 + index as u32, None, 0, traits)).expect("room");
            for known in &ids[..=index] {
                let found = locked.held(*known).map(|held| held.id);
                assert_eq!(found, Some(*known), "one of {} is lost", index + 1);
            }
        }
        locked.extents.clear();
    }
}

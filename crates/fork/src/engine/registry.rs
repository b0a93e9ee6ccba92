//! What this process has frozen: one set of tables per process, outside the heap, inherited by children.
//!
//! Two parts with different rules:
//!
//! * [`Lasting`] belongs to whoever holds the lock. Nobody waits for it long: if two threads want to repair, one is
//!   enough; two that freeze at once are the caller's mistake; and a signal handler that waited for the code it
//!   interrupted would wait for ever. The lock is the holder's process id, so that a thread that a child does not have
//!   never locks the child out.
//! * The rest of [`Shared`] is atomics that anybody reads at any time: [statistics](Statistics), and the
//!   [map](super::frozen_map) of what is frozen.
//!
//! The memory is never given back, since guards may read it at any time. What is used first lies among this library's
//! variables, and the rest [far away](super::near).

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use palimpsest_sys::MapError;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::threads::deputy::Desk;

use super::agenda::Agenda;
use super::contents::Contents;
use super::entry::Entry;
use super::frozen_map::FrozenMap;
use super::hot::HotPieces;
use super::ledger::Ledger;
use super::left_alone::LeftAlone;
use super::moves::Move;
use super::near::{Far, Near, Room};
use super::origins::Origins;
use super::prices::{Memory, Prices};
use super::progress;
use super::records::frozen;
use super::sight::Sight;
use super::statistics::Statistics;
use super::tables::{Lasting, Tables};
use super::tending::Tending;
use super::trials::Trials;
use super::turns::{FreezeTurn, Patience, Turn, Turns};
use super::waiting::Waiting;
use crate::figures::{NOTE_TYPE, Note, VERSION};
use crate::hazards::borrowed;
use crate::options::Options;

/// All that is known. What every fork uses comes first, on one page.
#[repr(C, align(4096))]
pub(crate) struct Shared {
    /// Process id of the holder of `lasting`; 0 for nobody; [`LOST`], or a parent's, in a child that was forked while
    /// another thread held it.
    owner: AtomicI32,
    /// Figures.
    pub(crate) statistics: Statistics,
    /// # Invariants
    ///
    /// Only the process that holds `owner` touches it.
    lasting: UnsafeCell<Lasting>,
    /// Ranges in frozen memory that were discarded since the last freeze. Guards add to it, in any thread and in signal
    /// handlers; rounds start it again.
    replacements: AtomicUsize,
    /// 1 if the program has erased something that is still in an extent. Guards set it, in any thread and in signal
    /// handlers, and rounds do; rounds clear it, and guards that find no mark left. Every fork reads it.
    erased: AtomicUsize,
    /// When forks try to get rid of it.
    pub(crate) trials: Trials,
    /// How far a freeze in slices has come.
    pub(crate) progress: progress::Gauges,
    pub(crate) tending: Tending,
    /// The process that asks for huge pages while this one goes on.
    pub(crate) desk: Desk,
    pub(crate) map: FrozenMap,
    pub(crate) origins: Origins,
    /// # Invariants
    ///
    /// Only the tables in `lasting` refer to it.
    near: UnsafeCell<Near>,
    pub(crate) left_alone: LeftAlone,
    far: &'static Far,
}

// SAFETY: everything is atomic but `lasting` and `near`, which only the holder of `owner` refers to, one at a time in a
// process; what the references lead to may be shared.
unsafe impl Sync for Shared {}

/// Room for the tables of a process, in whole pages: no child copies other variables with them.
///
/// # Invariants
///
/// Only whoever has set [`IS_TAKEN`] writes to it.
struct OwnRoom(UnsafeCell<MaybeUninit<Shared>>);

// SAFETY: by its invariant, one thread uses it; what others see of it they are given by `SHARED`.
unsafe impl Sync for OwnRoom {}

// In a section with other variables in whole pages, so that they leave no gaps between the rest.
#[cfg_attr(not(miri), unsafe(link_section = "palimpsest_room"))]
static ROOM: OwnRoom = OwnRoom(UnsafeCell::new(MaybeUninit::zeroed()));

/// Whether the room is taken: by another thread, perhaps in a parent. `Relaxed`: whoever takes it passes on what is in
/// it by [`SHARED`].
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the room, once.
fn take_room() -> Option<NonNull<Shared>> {
    let is_first = !IS_TAKEN.swap(true, Ordering::Relaxed);
    NonNull::new(ROOM.0.get().cast()).filter(|_| is_first)
}

/// Null in a process that has never frozen.
static SHARED: AtomicPtr<Shared> = AtomicPtr::new(ptr::null_mut());

// The note by which other processes find the figures (`figures`).
#[cfg(not(miri))]
std::arch::global_asm!(
    ".pushsection .note.palimpsest_fork,\"a\",%note",
    ".balign 4",
    ".long 11, {bytes}, {kind}",
    ".asciz \"Palimpsest\"",
    ".balign 4",
    ".long {version}, {tables} - . + 4, {offset}",
    ".popsection",
    bytes = const Note::LEN,
    kind = const NOTE_TYPE,
    version = const VERSION,
    tables = sym SHARED,
    offset = const std::mem::offset_of!(Shared, statistics),
);

// All figures are on the page that every fork uses.
const _: () = assert!(std::mem::offset_of!(Shared, statistics) + size_of::<Statistics>() <= 4096);

/// Returns the tables, if this process or one that it was forked from has frozen.
#[inline]
pub(crate) fn shared() -> Option<&'static Shared> {
    // Acquire, partner: the Release exchange in `make`. Forbids seeing the tables without their contents. SAFETY: null,
    // or memory that is never given back.
    unsafe { SHARED.load(Ordering::Acquire).as_ref() }
}

/// Waits until no deputy of this process is at work: whoever restores this memory restores its stack, too. Returns the
/// process id of one that does not end.
pub(crate) fn wait_for_deputy() -> Result<(), i32> {
    let Some(shared) = shared() else { return Ok(()) };
    let _ = shared.desk.dismiss();
    shared.desk.at_work().map_or(Ok(()), Err)
}

/// Whose turn it is. Not in the tables: a move may come before they are made, and the first freeze is to wait for it.
static TURNS: Turns = Turns::new();

/// Notes that a thread that is not there, or was too slow, may have changed the rights of `span`.
fn doubt(span: Span) {
    if let Some(shared) = shared() {
        // Of thawed memory no bytes can be lost.
        shared.map.rewrite(span, &|entry| (!entry.is_thawed()).then(|| entry.unsure()));
    }
}

/// Waits for a turn to replace frozen memory, to move it, or to change its rights.
pub(crate) fn take_turn(waiting: Waiting) -> Turn<'static> {
    TURNS.take(waiting, doubt)
}

/// Waits for a turn to freeze or to thaw. `None` in a handler that has interrupted a guard.
pub(crate) fn turn_to_freeze() -> Option<FreezeTurn<'static>> {
    TURNS.freeze(Patience::Long, doubt)
}

/// The same, and `None` if somebody else is at work: for a slice, which may be taken later.
pub(crate) fn turn_for_slice() -> Option<FreezeTurn<'static>> {
    TURNS.freeze(Patience::Short, doubt)
}

/// Begins a move of memory of which nothing is frozen. `None` if that needs a turn.
pub(crate) fn begin_move() -> Option<Move<'static>> {
    TURNS.begin_move()
}

/// Ends turns and moves of threads that a child, forked just now, does not have.
#[inline]
pub(crate) fn end_turns_in_child() {
    TURNS.end_in_child(doubt);
}

/// Returns the tables; makes them if there are none.
pub(crate) fn known() -> Result<&'static Shared, MapError> {
    shared().map_or_else(make, Ok)
}

/// The holder of a lock that a child does not have.
const LOST: i32 = -1;

/// How often a taken lock is tried. Whoever interrupts its holder gets past it.
const PATIENCE: usize = 1 << 10;

fn make() -> Result<&'static Shared, MapError> {
    let own = take_room();
    let room = Room::map(if own.is_none() { size_of::<Shared>() } else { 0 })?;
    let (far, place) = (room.far, own.unwrap_or(room.head.cast()));
    // SAFETY: inside the room that only this call has taken or made.
    let near = unsafe { &raw mut (*place.as_ptr()).near };
    // SAFETY: 1. in that room, which is never given back; by the field's invariant, once the value is written below,
    // which overwrites nothing of tables that are still empty.
    let tables = unsafe { room.begin(UnsafeCell::raw_get(near)) };
    let lasting = Lasting {
        ledger: Ledger::new(HotPieces::new(tables.hot), Prices::new(rustix::param::page_size())),
        agenda: Agenda::new(tables.items),
        contents: Contents::new(tables.contents),
        extents: tables.extents,
        options: Options::new(),
    };
    let made = Shared {
        owner: AtomicI32::new(0),
        statistics: Statistics::default(),
        lasting: UnsafeCell::new(lasting),
        replacements: AtomicUsize::new(0),
        erased: AtomicUsize::new(0),
        trials: Trials::default(),
        progress: progress::Gauges::default(),
        tending: Tending::default(),
        desk: Desk::new(&far.stack),
        map: FrozenMap::new(&far.map),
        origins: Origins::new(&far.origins),
        near: UnsafeCell::new(Near::new()),
        left_alone: LeftAlone::new(),
        far,
    };
    // SAFETY: room of the right size, aligned to a page, that only this call has taken or made.
    unsafe { place.write(made) };
    // Release, partner: the Acquire load in `shared`. Acquire on failure: the winner's tables are read.
    match SHARED.compare_exchange(ptr::null_mut(), place.as_ptr(), Ordering::Release, Ordering::Acquire) {
        // SAFETY: initialised above, and never given back.
        Ok(_) => Ok(unsafe { place.as_ref() }),
        // Ours leaks: address space, once. SAFETY: another thread's tables, never given back.
        Err(winner) => Ok(unsafe { &*winner }),
    }
}

impl Shared {
    /// Takes the lock. Returns `None` if somebody holds it for long, or in another process's memory.
    pub(crate) fn lock(&'static self) -> Option<Locked> {
        if borrowed::owner().is_some() {
            return None;
        }
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let mut last = 0;
        let mut is_taken = || {
            last = self.owner.load(Ordering::Relaxed);
            // An id other than 0 and our own is a parent's: its holder does not exist here. Acquire, partner: the
            // Release store in `Locked::drop`. Forbids working on tables that the last holder is still writing.
            last != own && self.owner.compare_exchange(last, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        // Whoever accounts for a fork holds it for an instant only.
        let mut trials = 0;
        while !is_taken() {
            trials += 1;
            if trials == PATIENCE {
                return None;
            }
            std::hint::spin_loop();
        }
        // SAFETY: there is one holder at a time, and its loans end with it: `Locked` gives it out by reference only.
        let lasting = unsafe { &mut *self.lasting.get() };
        if last != 0 {
            // Its holder may have been in the middle of them. Only what is changed while other threads run: whoever
            // freezes holds them.
            lasting.agenda.begin_in_child();
            lasting.ledger.hot.begin_in_child();
            self.progress.give_up();
            self.left_alone.end();
        }
        if !self.has_begun() {
            self.statistics.born();
            lasting.ledger.inherited();
            self.tending.forget_unbooked();
            borrowed::begun().inspect(|begun| begun.store(1, Ordering::Relaxed));
        }
        // A child has none: what its parent has noted is the parent's to book.
        borrowed::unbooked().inspect(|unbooked| {
            unbooked.book(|taken| {
                lasting.ledger.forked(taken);
                self.statistics.count_fork();
            });
        });
        Some(Locked { lasting, shared: self })
    }

    /// Frees the lock in a child that was forked just now: a child of this process may get the holder's process id. The
    /// child's account begins when it first takes the lock: until then it does not write to the page that every fork
    /// uses, which would be copied.
    #[inline]
    pub(crate) fn unlock_in_child(&self) {
        // Relaxed: there is one thread. Not written without need, since the page would be copied.
        if self.owner.load(Ordering::Relaxed) != 0 {
            self.owner.store(LOST, Ordering::Relaxed);
        }
    }

    /// Whether the account is this process's own, and not its parent's.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        // Relaxed: the holder of the lock writes it; whoever sees it late begins nothing without the lock.
        borrowed::begun().is_none_or(|begun| begun.load(Ordering::Relaxed) != 0)
    }

    /// Begins the account of this process, unless it has begun or somebody holds the lock.
    pub(crate) fn begin_account(&'static self) {
        if !self.has_begun() {
            drop(self.lock());
        }
    }

    /// Whether somebody holds the lock, or held it when this process was forked.
    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.owner.load(Ordering::Relaxed) > 0
    }

    /// Whether there was a freeze. Snapshots and surveys make tables too.
    pub(crate) fn has_frozen(&self) -> bool {
        self.statistics.has_rounds()
    }

    /// Whether nothing needs accounting but forks that become dearer: nothing is frozen, in huge pages of ours, or
    /// about to be, and what a fork takes is known.
    pub(crate) fn is_idle(&self) -> bool {
        let statistics = &self.statistics;
        let has_none = statistics.frozen_bytes() == 0 && statistics.hot_pieces() == 0;
        let is_empty = has_none && !self.has_erased() && !self.progress.is_under_way();
        is_empty && statistics.clean() > 0
    }

    /// Returns where this lies, and what is far away.
    pub(crate) fn spans(&self) -> [Span; 2] {
        let (own, far) = (ptr::from_ref(self).addr(), ptr::from_ref(self.far).addr());
        [Span::new(own, own + size_of::<Self>()), Span::new(far, far + size_of::<Far>())]
    }

    /// Counts a replacement in frozen memory. Returns how many there were.
    pub(crate) fn count_replacement(&self) -> usize {
        self.replacements.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes that an extent holds what was erased. Relaxed, here and below: the map says which extent.
    pub(crate) fn note_erased(&self) {
        self.erased.store(1, Ordering::Relaxed);
    }

    /// Marks all mappings of extents that may have held a byte of `span`. Begins again if a round comes in between.
    pub(crate) fn mark_erased(&self, span: Span) {
        loop {
            let generation = self.map.generation();
            self.map.change(self.map.bounds(), &|entry| match entry.extent() {
                Some(serial) if self.origins.may_have_held(serial, span) => entry.erased(),
                _ => entry,
            });
            if self.map.is_in_doubt() || self.has_marks() {
                self.note_erased();
            }
            if self.map.generation() == generation {
                return;
            }
        }
    }

    /// Whether an extent in the map holds what was erased.
    pub(crate) fn has_marks(&self) -> bool {
        self.map.find(|_, entry: Entry| entry.is_erased()).is_some()
    }

    /// Whether there is room for what slices publish.
    pub(crate) fn has_room(&self) -> bool {
        self.map.has_room() && self.origins.has_room()
    }

    /// Whether an extent may hold what was erased.
    #[inline]
    pub(crate) fn has_erased(&self) -> bool {
        self.erased.load(Ordering::Relaxed) != 0
    }

    /// Forgets that: the map was rewritten, or has no mark any more.
    pub(crate) fn forget_erased(&self) {
        self.erased.store(0, Ordering::Relaxed);
    }

    /// Begins a new count of replacements.
    pub(super) fn forget_replacements(&self) {
        self.replacements.store(0, Ordering::Relaxed);
    }
}

/// The held lock.
#[derive(Debug)]
pub(crate) struct Locked {
    lasting: &'static mut Lasting,
    pub(crate) shared: &'static Shared,
}

impl Locked {
    /// Returns the tables for one round.
    pub(crate) fn tables(&mut self) -> Result<Tables<'_>, MapError> {
        Tables::new(self.lasting, self.shared.spans())
    }

    /// Returns the account of forks and repairs.
    pub(crate) const fn ledger(&mut self) -> &mut Ledger {
        &mut self.lasting.ledger
    }

    /// Returns the tables, and what a freeze in slices has still to do.
    pub(crate) fn tables_and_agenda(&mut self) -> Result<(Tables<'_>, &mut Agenda), MapError> {
        Tables::with_agenda(self.lasting, self.shared.spans())
    }

    /// Returns what is frozen.
    pub(crate) fn frozen(&self) -> Memory {
        frozen(&self.lasting.extents)
    }

    /// Drops the plan: something else takes its place.
    pub(crate) fn drop_plan(&mut self) {
        if self.shared.progress.is_under_way() {
            self.agenda().end("another freeze, or a thaw, has taken its place".to_owned());
        }
        self.lasting.ledger.drops_plan();
        self.shared.progress.give_up();
        self.shared.left_alone.end();
    }

    /// Returns what a freeze in slices has still to do.
    pub(crate) const fn agenda(&mut self) -> &mut Agenda {
        &mut self.lasting.agenda
    }

    /// Returns the options of the last freeze, for repairs.
    pub(crate) const fn options(&self) -> Options {
        self.lasting.options
    }

    /// Keeps options for repairs.
    pub(crate) const fn remember(&mut self, options: Options) {
        self.lasting.options = options;
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // A process id is not negative.
        let process = u64::from(self.shared.owner.load(Ordering::Relaxed).unsigned_abs());
        let progress = self.shared.progress.read();
        self.shared.statistics.publish(&self.lasting.ledger, &progress, process);
        if self.lasting.ledger.huge() > 0 && self.lasting.ledger.hot.sight() != Sight::Told {
            self.shared.tending.count_forks();
        }
        // Release, partner: the Acquire exchange in `Shared::lock`.
        self.shared.owner.store(0, Ordering::Release);
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("statistics", &self.statistics).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;

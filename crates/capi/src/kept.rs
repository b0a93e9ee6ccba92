//! Snapshots that C holds, in memory that no snapshot restores: the other [handles](crate::handles) are in the heap,
//! which a snapshot of the whole process undoes.
//!
//! | state of a seat | who may touch the snapshot |
//! |---|---|
//! | `FREE` | nobody; there is none |
//! | `BUSY` | the thread that has made it so |
//! | `READY` | nobody; a thread of the owner may make it `BUSY` |

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use palimpsest_fork::snapshot::Snapshot;
use palimpsest_sys::memory::own::Own;

use crate::result::Failure;
use crate::result::palimpsest_result::{
    PALIMPSEST_BUSY, PALIMPSEST_NO_ROOM, PALIMPSEST_REFUSED, PALIMPSEST_STALE, PALIMPSEST_SYSTEM,
};

const FREE: u32 = 0;
const BUSY: u32 = 1;
const READY: u32 = 2;

/// Most snapshots at a time.
const SEATS: usize = 64;

/// A place for one snapshot.
struct Seat {
    /// Any thread exchanges it; see the module.
    state: AtomicU32,
    /// How often the place was taken: part of the handle, so that an old handle names nothing. The thread that has made
    /// the state `BUSY` writes it and the next field; anybody reads them.
    uses: AtomicU32,
    /// The thread that took the snapshot, as the C library calls it: what a snapshot knows is of that thread's stack.
    owner: AtomicUsize,
    /// # Invariants
    ///
    /// Touched only by whoever has made the state `BUSY`. `None` while it is `FREE`.
    snapshot: UnsafeCell<Option<Snapshot>>,
}

/// All of them.
struct Seats {
    seats: [Seat; SEATS],
    /// The pages that contain this.
    pages: Range<usize>,
}

// SAFETY: one thread at a time touches the cells (the state), and only the thread that took the snapshot touches what
// is in them (`owner`).
unsafe impl Sync for Seats {}
// SAFETY: made by one thread, before it holds any snapshot.
unsafe impl Send for Seats {}

static SEATS_OF_ALL: OnceLock<&'static Seats> = OnceLock::new();

/// Returns the table, which exists from the first snapshot on, for ever.
fn seats() -> Result<&'static Seats, Failure> {
    if let Some(seats) = SEATS_OF_ALL.get() {
        return Ok(seats);
    }
    let seat = || Seat {
        state: AtomicU32::new(FREE),
        uses: AtomicU32::new(0),
        owner: AtomicUsize::new(0),
        snapshot: UnsafeCell::new(None),
    };
    let made = Own::new(Seats { seats: std::array::from_fn(|_| seat()), pages: 0..0 });
    let mut made = made.map_err(|errno| Failure::new(PALIMPSEST_NO_ROOM, format_args!("no memory: {errno}")))?;
    made.pages = made.span().range();
    let mut made = Some(made);
    Ok(SEATS_OF_ALL.get_or_init(|| {
        let place = made.take().map(|made| {
            let place = made.place();
            std::mem::forget(made);
            place
        });
        match place {
            // SAFETY: initialised, and never unmapped, since its owner is forgotten.
            Some(place) => unsafe { place.as_ref() },
            None => unreachable!("an initialiser runs once"),
        }
    }))
}

/// A snapshot, or the place for one, that only this thread has.
pub(crate) struct Held {
    seat: &'static Seat,
    index: usize,
    /// The state after this is dropped.
    then: u32,
}

/// Returns this thread, for as long as it lives.
fn this_thread() -> usize {
    // SAFETY: has no conditions.
    unsafe { libc::pthread_self() as usize }
}

/// Returns the pages that a snapshot must leave alone.
pub(crate) fn pages() -> Result<Range<usize>, Failure> {
    seats().map(|seats| seats.pages.clone())
}

/// Takes a place for a snapshot about to be taken. Dropping it gives the place back, unless it is [kept](Held::keep).
pub(crate) fn reserve() -> Result<Held, Failure> {
    let seats = seats()?;
    // Acquire: pairs with `Held::drop` of the last one here; without it what that has left could be seen later.
    let take = |seat: &Seat| seat.state.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let Some((index, seat)) = seats.seats.iter().enumerate().find(|(_, seat)| take(seat)) else {
        let message = format_args!("there are {SEATS} snapshots already; drop one first");
        return Err(Failure::new(PALIMPSEST_NO_ROOM, message));
    };
    // Relaxed: whoever reads these has made the state `BUSY` after `Held::drop` below.
    seat.owner.store(this_thread(), Ordering::Relaxed);
    Ok(Held { seat, index, then: FREE })
}

/// Takes the snapshot that `handle` names.
pub(crate) fn held(handle: u64) -> Result<Held, Failure> {
    let stale = || {
        let message = format_args!("{handle:#x} names no snapshot: it was dropped, or never handed out");
        Failure::new(PALIMPSEST_STALE, message)
    };
    let index = usize::try_from(handle & u64::from(u32::MAX)).ok().and_then(|index| index.checked_sub(1));
    let (index, seats) = (index.ok_or_else(stale)?, SEATS_OF_ALL.get().ok_or_else(stale)?);
    let seat = seats.seats.get(index).ok_or_else(stale)?;
    let is_named = || u64::from(seat.uses.load(Ordering::Relaxed)) == handle >> 32;
    // Acquire: pairs with `Held::drop`; without it the previous snapshot could be used.
    match seat.state.compare_exchange(READY, BUSY, Ordering::Acquire, Ordering::Relaxed) {
        Ok(_) => {}
        Err(BUSY) if is_named() => {
            let message = "the snapshot is in use: by another thread, or by the call that this one was made from";
            return Err(Failure::new(PALIMPSEST_BUSY, message));
        }
        Err(_) => return Err(stale()),
    }
    let held = Held { seat, index, then: READY };
    // Relaxed: from now on nobody changes it.
    if !is_named() {
        return Err(stale());
    }
    if seat.owner.load(Ordering::Relaxed) != this_thread() {
        let message = "the snapshot is another thread's; let the thread that took it put it back and drop it";
        return Err(Failure::new(PALIMPSEST_REFUSED, message));
    }
    Ok(held)
}

impl Held {
    /// Returns what will name a snapshot that is kept here. Not 0, which names nothing.
    pub(crate) fn handle(&self) -> u64 {
        u64::from(self.next_use()) << 32 | (self.index as u64 + 1)
    }

    fn next_use(&self) -> u32 {
        // Relaxed: as in `reserve`.
        self.seat.uses.load(Ordering::Relaxed).checked_add(1).unwrap_or(1)
    }

    /// Keeps `snapshot` here.
    pub(crate) fn keep(mut self, snapshot: Snapshot) {
        // SAFETY: the state is `BUSY`, by this thread (the field's invariant).
        let place = unsafe { &mut *self.seat.snapshot.get() };
        *place = Some(snapshot);
        self.then = READY;
        // Relaxed: as in `reserve`.
        self.seat.uses.store(self.next_use(), Ordering::Relaxed);
    }

    /// Returns the snapshot here.
    pub(crate) fn snapshot(&mut self) -> Result<&mut Snapshot, Failure> {
        // SAFETY: the state is `BUSY`, by this thread (the field's invariant); the borrow is as long as that.
        let place = unsafe { &mut *self.seat.snapshot.get() };
        place.as_mut().ok_or_else(|| Failure::new(PALIMPSEST_SYSTEM, "the snapshot is gone"))
    }

    /// Ends it.
    pub(crate) fn end(mut self) {
        // SAFETY: as above.
        let place = unsafe { &mut *self.seat.snapshot.get() };
        drop(place.take());
        self.then = FREE;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Release: pairs with the exchanges of `held` and `reserve`; without it they could see the state before the
        // snapshot, or its end.
        self.seat.state.store(self.then, Ordering::Release);
    }
}

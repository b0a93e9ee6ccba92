//! Thaws with memory calls only, and needs no file: where one can be opened, [`sight`](super::sight) looks at what is
//! mapped first.
//!
//! Frozen memory is copied to fresh anonymous memory, which is moved into its place. Nothing may write to it meanwhile:
//! signals are blocked, and other threads are absent or held.
//!
//! *Forgetting* a range takes more: its extent holds the bytes of the freeze, and whoever has a mapping of any part of
//! the extent can grow it (`mremap`), or discard what was written over it. So everything that shows the extent becomes
//! anonymous, and the extent goes.

use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::memory::calls::{self, Commit};
use palimpsest_sys::memory::remap;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::{Traits, is_locked};
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::VmaFlags;
use palimpsest_sys::threads::hold::{self, World};
use palimpsest_sys::threads::own::Blocked;
use rustix::io::Errno;

use super::errno::Kept;
use super::parts::{Part, keeps_key, parts};
use super::sight::{Seen, Sight};
use super::touches;
use crate::engine::entry::Entry;
use crate::engine::frozen_map::FrozenMap;
use crate::engine::own::{exclude, is_alone_for_sure, is_home, is_in_use_here};
use crate::engine::piece::PIECE;
use crate::engine::registry::{self, Locked, Shared};
use crate::engine::turns::Turn;
use crate::engine::waiting::Waiting;
use crate::hazards::{borrowed, may_lock_new_memory};
use crate::options::OtherThreads;

/// Whether the program has reported a filter that confines it.
static CONFINED: AtomicBool = AtomicBool::new(false);

/// Notes that the program confines itself by a seccomp filter. From then on guards act on `madvise` and `mremap` only,
/// with memory calls, and [`fork`](crate::fork()) forks plainly; nothing else is done that the filter could forbid. A
/// filter from before the freeze allows the freeze.
pub fn confined() {
    // Before the first slice nothing is frozen, and forks take slices all the same.
    let is_concerned = |shared: &Shared| shared.has_frozen() || shared.progress.is_under_way();
    // Relaxed: a thread that does not see it yet is not confined yet.
    if registry::shared().is_some_and(is_concerned) {
        CONFINED.store(true, Ordering::Relaxed);
    }
}

/// Whether the program has reported a filter since it was frozen, or a freeze was planned.
pub(crate) fn is_confined() -> bool {
    // Relaxed: as above.
    CONFINED.load(Ordering::Relaxed)
}

/// Waits for a turn to replace frozen memory, to move it, or to change its rights (`engine::turns`).
pub(super) fn take_turn() -> Turn<'static> {
    registry::take_turn(if is_confined() { Waiting::Awake } else { Waiting::Asleep })
}

/// Turns the frozen parts of `range`, in whole pages, into anonymous memory with the same bytes. Blocks signals, and
/// holds other threads still if the last freeze was allowed to. Leaves memory of snapshots.
///
/// # Errors
///
/// ENOMEM if there is no memory; EBUSY if a freeze is under way, if there are other threads that cannot or must not be
/// held, if the calling code uses the memory itself, or if it has interrupted another guard; EINVAL if the memory has
/// tags, if flags of it have [changed](super::changed), or if its protection key, which it keeps, does not let this
/// thread read or a filter would end the program for `pkey_mprotect`. What was not thawed until then is still frozen.
pub fn thaw(range: Range<usize>) -> Result<(), Errno> {
    if !touches(range.clone()) {
        return Ok(());
    }
    let _errno = Kept::now();
    release(Span::of_pointers(range).rounded_out(rustix::param::page_size()))
}

/// Turns all frozen memory into anonymous memory with the same bytes, as [`thaw`] does for a range, and gives the
/// extents up. [`fork()`](crate::fork()) forks plainly until the next freeze.
///
/// # Errors
///
/// The first error, as of [`thaw`]. Everything that could be thawed is.
pub fn thaw_all() -> Result<(), Errno> {
    let Some(shared) = registry::shared().filter(|shared| shared.has_frozen()) else { return Ok(()) };
    let _errno = Kept::now();
    // A handler that leaves by `longjmp` would keep the lock.
    let _blocked = Blocked::all();
    // Held until the end: what another thread freezes meanwhile must not be reported as thawed.
    let mut locked = shared.lock().ok_or(Errno::BUSY)?;
    locked.drop_plan();
    let has_any = shared.statistics.extents() > 0 || is_frozen(shared.map.bounds());
    let done = if has_any { still(Some(&mut locked), |view| Ok(give_up_all(shared, |_| true, view)))? } else { Ok(()) };
    shared.statistics.end();
    if done.is_ok() {
        shared.statistics.emptied();
    }
    locked.ledger().thawed();
    recount(shared);
    done
}

/// Destroys the bytes that `range` held when it was frozen: call it after erasing a secret. The memory keeps its
/// present contents. No file, no mapping and no child made from now on has the old bytes.
///
/// Takes as long as copying each extent that has ever held any of the range once; their memory is anonymous then, until
/// the next freeze or repair.
///
/// # Errors
///
/// As [`guard::thaw`](crate::guard::thaw). Then it is done as soon as possible: by the next freeze or repair, and in
/// each child of [`fork`](crate::fork()) before that returns.
pub fn forget(range: Range<usize>) -> Result<(), Errno> {
    let Some(shared) = registry::shared().filter(|shared| shared.has_frozen()) else { return Ok(()) };
    let _errno = Kept::now();
    let span = Span::of_pointers(range).rounded_out(rustix::param::page_size());
    let done = destroy(span);
    if done.is_err() {
        shared.mark_erased(span);
    }
    done
}

/// Gives up all extents that have ever held any of `span`, including those whose memory has become anonymous or was
/// copied to another extent since.
pub(super) fn destroy(span: Span) -> Result<(), Errno> {
    let is_held = |shared: &&Shared| shared.map.holds(span) || shared.origins.may_hold(span);
    let Some(shared) = registry::shared().filter(is_held) else { return Ok(()) };
    let is_wanted = |entry: Entry| entry.extent().is_some_and(|serial| shared.origins.may_have_held(serial, span));
    let is_gone = || !shared.map.is_in_doubt() && shared.map.find(|_, entry| is_wanted(entry)).is_none();
    if is_gone() {
        return Ok(());
    }
    still(None, |view| {
        give_up_all(shared, is_wanted, view)?;
        if is_gone() { Ok(()) } else { Err(Errno::NOMEM) }
    })?;
    recount(shared);
    Ok(())
}

/// What tells a new child where memory is frozen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    /// The kernel, through a file: the parent may open it, so the child may before it is the program's.
    ByKernel,
    /// The map alone, since a filter may kill whoever opens a file.
    ByMap,
}

impl Told {
    /// For children that this process is about to fork.
    pub(crate) fn to_children() -> Self {
        if is_home() && !is_confined() { Self::ByKernel } else { Self::ByMap }
    }
}

/// Forgets, in a child that was forked just now, what its parent could not.
pub(crate) fn forget_erased(told: Told) {
    let Some(shared) = registry::shared().filter(|shared| shared.has_erased()) else { return };
    let _errno = Kept::now();
    let _blocked = Blocked::all();
    let sight = match told {
        Told::ByKernel => Sight::open_file().and_then(Sight::look),
        Told::ByMap => None,
    };
    if give_up_all(shared, Entry::is_erased, &View { is_in_use: &is_in_use_here, sight }).is_ok() {
        recount(shared);
    }
}

/// Notes whether any extent is left that holds something erased.
fn recount(shared: &Shared) {
    if !shared.map.is_in_doubt() && !shared.has_marks() {
        shared.forget_erased();
    }
}

/// Whether a thaw of `span` would do anything, or fail.
pub(super) fn is_frozen(span: Span) -> bool {
    parts(span).any(|part| matches!(part, Part::Frozen(_, entry) if entry.extent().is_some() || !entry.is_sure()))
}

pub(super) fn release(span: Span) -> Result<(), Errno> {
    if !is_frozen(span) {
        return Ok(());
    }
    still(None, |view| thaw_span(span, view))
}

/// What a thaw knows of the process while nothing else in it runs.
struct View<'a> {
    /// Tells whether running code uses a span.
    is_in_use: &'a dyn Fn(Span) -> bool,
    /// Tells what is mapped; `None` where only the map can.
    sight: Option<Sight>,
}

impl View<'_> {
    /// Of a process without other threads.
    fn alone() -> Self {
        Self { is_in_use: &is_in_use_here, sight: Sight::open().and_then(Sight::look) }
    }
}

/// Does `work` while nothing else in the process runs. A caller that holds the lock passes it.
fn still<T>(held: Option<&mut Locked>, work: impl FnOnce(&View<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
    // A child of `vfork` does not know its parent's other threads.
    if is_confined() || borrowed::owner().is_some() {
        return Err(Errno::BUSY);
    }
    let turn = || registry::turn_to_freeze().ok_or(Errno::BUSY);
    if is_alone_for_sure() {
        let (_turn, _blocked) = (turn()?, Blocked::all());
        return work(&View::alone());
    }
    // A child opens no file.
    if !is_home() {
        return Err(Errno::BUSY);
    }
    if hold::count().map_err(|_| Errno::NOMEM)? <= 1 {
        let (_turn, _blocked) = (turn()?, Blocked::all());
        return work(&View::alone());
    }
    let mut own;
    let locked = match held {
        Some(locked) => locked,
        None => {
            own = registry::shared().and_then(Shared::lock).ok_or(Errno::BUSY)?;
            &mut own
        }
    };
    if locked.options().other_threads != OtherThreads::Stop {
        return Err(Errno::BUSY);
    }
    let mut tables = locked.tables().map_err(|_| Errno::NOMEM)?;
    let (_turn, _blocked) = (turn()?, Blocked::all());
    let world = World::prepare().map_err(|_| Errno::BUSY)?;
    let sight = Sight::open();
    let stopped = world.stop_others().map_err(|_| Errno::BUSY)?;
    exclude(&mut tables, Some(&world), Some(&stopped)).map_err(|_| Errno::NOMEM)?;
    let sight = sight.and_then(Sight::look);
    work(&View { is_in_use: &|span| tables.is_in_use(span), sight })
}

/// Makes the frozen parts of `span` anonymous. Nothing else in the process runs.
fn thaw_span(span: Span, view: &View<'_>) -> Result<(), Errno> {
    let map = &registry::shared().ok_or(Errno::NOMEM)?.map;
    let mut room = None::<Room>;
    for part in parts(span) {
        let Part::Frozen(found, entry) = part else { continue };
        if !entry.is_sure() {
            return Err(Errno::NOMEM);
        }
        if entry.extent().is_some() {
            // One for all parts without a gap, so that they become one mapping again: the kernel joins what lay side by
            // side before. Not for more: from the heap to what `mmap` gave there may be half an address space.
            room = room.take_if(|room| found.start < room.place.end);
            let room = match &room {
                Some(room) => room,
                // The old one is gone: it would unmap what is made where it has been.
                None => room.insert(Room::of(Span::new(found.start, end_of_run(found, span.end)), entry)?),
            };
            thaw_part(map, found, entry, room, view)?;
        }
    }
    Ok(())
}

/// Returns where what the map knows without a gap from `first` on ends, at most `end`.
fn end_of_run(first: Span, end: usize) -> usize {
    let known = parts(Span::new(first.start, end)).take_while(|part| matches!(part, Part::Frozen(..)));
    known.last().map_or(first.end, |part| part.span().end)
}

/// Gives up each extent with an entry that `is_wanted`. Leaves those that cannot go, continues with the rest, and
/// returns the first error. Nothing else in the process runs.
fn give_up_all(shared: &Shared, is_wanted: impl Fn(Entry) -> bool, view: &View<'_>) -> Result<(), Errno> {
    let (mut result, mut last) = (Ok(()), 0);
    while let Some(serial) = shared.map.next_extent(last, &is_wanted) {
        last = serial;
        result = result.and(give_up(shared, serial, view));
    }
    result
}

/// Makes all mappings of an extent anonymous, as far as possible.
fn give_up(shared: &Shared, serial: u32, view: &View<'_>) -> Result<(), Errno> {
    let map = &shared.map;
    let is_its_own = |entry: Entry| entry.extent() == Some(serial);
    let (mut result, mut at) = (Ok(()), 0);
    while let Some((all, entry)) = map.next(at, is_its_own) {
        at = all.end;
        let thaw = |room: Room| thaw_part(map, all, entry, &room, view);
        let sure = if entry.is_sure() { Ok(()) } else { Err(Errno::NOMEM) };
        result = result.and(sure.and_then(|()| Room::of(all, entry)).and_then(thaw));
    }
    result?;
    shared.origins.forget(serial);
    Ok(())
}

/// Zeros that are mapped for a while, to be filled and moved away.
struct Room {
    /// What they are going to replace.
    place: Span,
    /// Where they lie.
    start: usize,
}

impl Room {
    fn of(place: Span, entry: Entry) -> Result<Self, Errno> {
        let commit = entry.traits().map_or(Commit::Uncounted, Traits::commit);
        Ok(Self { place, start: calls::map(place.len(), Permissions::READ_WRITE, commit)?.start })
    }

    const fn at(&self, address: usize) -> usize {
        self.start + (address - self.place.start)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let all = Span::new(self.start, self.start + self.place.len());
        // SAFETY: 1. made for this; what was moved away left a hole, nothing else runs that could have filled it, and
        // no thaw has two at a time.
        let _ = unsafe { calls::unmap(all) };
    }
}

/// Makes all of `span` anonymous, piece by piece, and notes it in the map. Leaves pieces that fail, continues with the
/// rest, and returns the first error.
fn thaw_part(map: &FrozenMap, span: Span, entry: Entry, room: &Room, view: &View<'_>) -> Result<(), Errno> {
    // A lock is taken again; too little is known about tags.
    let traits = entry.traits().filter(|_| entry.is_sure()).ok_or(Errno::INVAL)?;
    let thaw = |piece: Span| {
        if (view.is_in_use)(piece) {
            return Err(Errno::BUSY);
        }
        let Some(sight) = &view.sight else {
            // SAFETY: 1. private memory, by the map, to which nothing writes; 2. zeros of the room.
            return unsafe { make_anonymous(piece, room.at(piece.start), traits) };
        };
        let mut at = piece.start;
        while let Some((part, seen)) = sight.first(Span::new(at, piece.end))? {
            at = part.end;
            match seen {
                Seen::Ours(permissions) => {
                    let traits = Traits { permissions, ..traits };
                    // SAFETY: 1. private memory, by the kernel's answer, to which nothing writes; 2. zeros of the room.
                    unsafe { make_anonymous(part, room.at(part.start), traits) }?;
                    map.change(part, &|entry| entry.with_rights(permissions));
                }
                Seen::Foreign => map.forget(part),
            }
        }
        Ok(())
    };
    // While nothing else runs, so that neighbours are noted as one.
    let (mut result, mut made) = (Ok(()), Span::new(span.start, span.start));
    for piece in span.cut(PIECE) {
        let done = thaw(piece);
        if done.is_ok() {
            made.end = piece.end;
        } else {
            map.thaw(made);
            made = Span::new(piece.end, piece.end);
        }
        result = result.and(done);
    }
    map.thaw(made);
    result
}

/// Replaces `span` by anonymous memory with the same bytes. Holes stay. An error leaves everything unchanged.
///
/// # Safety
///
/// 1. `span` is private memory with these traits, or holes in such; nothing writes to it during the call.
/// 2. As many zeros at `room` belong to the caller.
unsafe fn make_anonymous(span: Span, room: usize, traits: Traits) -> Result<(), Errno> {
    let Traits { permissions, .. } = traits;
    if !keeps_key(traits.protection_key) {
        return Err(Errno::INVAL);
    }
    let page = rustix::param::page_size();
    let readable = permissions.union(Permissions::READ);
    if readable != permissions {
        // SAFETY: 1. for the time of the copy.
        match unsafe { calls::protect(span, readable) } {
            // A hole, which shows below.
            Ok(()) | Err(Errno::NOMEM) => {}
            Err(errno) => return Err(errno),
        }
    }
    // Finds holes and guards without risking a signal. Kernels before 5.14 do not know this advice. SAFETY: 1. changes
    // no contents.
    let readied = match unsafe { calls::advise(span, libc::MADV_POPULATE_READ) } {
        // Or the key does not let this thread read; which of the two cannot be told.
        Err(Errno::INVAL) if traits.protection_key != 0 => Err(Errno::INVAL),
        Err(Errno::INVAL) if calls::is_all_mapped(span) => Ok(()),
        Err(Errno::INVAL) => Err(Errno::NOMEM),
        told => told,
    };
    let made = match readied {
        // SAFETY: 1. and 2. are this function's own; readable by now.
        Ok(()) => unsafe { replace(span, room, traits) },
        Err(Errno::NOMEM) if span.len() > page => {
            let middle = span.start + (span.len() / page / 2) * page;
            // SAFETY: 1. and 2. parts of what is this function's own.
            let first = unsafe { make_anonymous(Span::new(span.start, middle), room, traits) };
            let room = room + (middle - span.start);
            // SAFETY: 1. and 2. as above.
            return first.and(unsafe { make_anonymous(Span::new(middle, span.end), room, traits) });
        }
        Err(Errno::NOMEM) if !calls::is_all_mapped(span) => return Ok(()),
        Err(Errno::NOMEM) => Err(Errno::NOMEM),
        Err(_) => Err(Errno::INVAL),
    };
    if made.is_err() && readable != permissions {
        // SAFETY: 1. the rights from before.
        let _ = unsafe { calls::protect(span, permissions) };
    }
    made
}

/// # Safety
///
/// 1. and 2. As [`make_anonymous`], and `span` can be read.
unsafe fn replace(span: Span, room: usize, traits: Traits) -> Result<(), Errno> {
    let was_locked = traits.flags.intersects(VmaFlags::LOCKED) && is_locked(span);
    let copy = Span::new(room, room + span.len());
    // SAFETY: 1. readable (1), and zeros of the caller's (2).
    unsafe { copy_pages(span, copy.start) };
    traits.advise(copy);
    if traits.permissions != Permissions::READ_WRITE {
        // SAFETY: 1. the caller's (2).
        unsafe { calls::protect(copy, traits.permissions) }?;
    }
    // SAFETY: 1. of one mapping (2), with all bytes of `span`; 2. nothing else runs (1).
    unsafe { remap::replace_by(copy, span) }.map_err(|_| Errno::NOMEM)?;
    if was_locked || traits.protection_key != 0 || may_lock_new_memory() {
        let flags = if was_locked { traits.flags } else { traits.flags.without(VmaFlags::LOCKED) };
        Traits { flags, ..traits }.restrict(span);
    }
    Ok(())
}

/// Copies pages that are not zero, word by word; not with a function of the C library, since a sanitizer would check
/// that against what it guards.
///
/// # Safety
///
/// 1. `from` is mapped readable, and as many bytes at `to` writable; nobody has a reference into either.
unsafe fn copy_pages(from: Span, to: usize) {
    const WORD: usize = size_of::<u64>();
    let page = rustix::param::page_size();
    for at in from.range().step_by(page) {
        let words = || (at..at + page).step_by(WORD);
        // SAFETY: an aligned word in memory that can be read (1).
        let read = |address: usize| unsafe { ptr::with_exposed_provenance::<u64>(address).read_volatile() };
        if words().all(|address| read(address) == 0) {
            continue;
        }
        for address in words() {
            let place = ptr::with_exposed_provenance_mut::<u64>(to + (address - from.start));
            // SAFETY: an aligned word in memory that can be written (1).
            unsafe { place.write_volatile(read(address)) };
        }
    }
}

/// Prepares `range` for `mlock`: thaws it, since locking writes to every page of a private mapping, and frozen memory
/// would be held twice. In a process with other threads, and in a child, it does nothing and memory is held twice:
/// threads would have to be held for each call, and a child opens no file.
///
/// # Errors
///
/// As [`thaw`].
pub fn before_mlock(range: Range<usize>) -> Result<(), Errno> {
    if !touches(range.clone()) {
        return Ok(());
    }
    let _errno = Kept::now();
    locked(range.clone());
    if is_confined() || borrowed::owner().is_some() {
        return Ok(());
    }
    let is_alone = is_alone_for_sure() || (is_home() && hold::count().map_err(|_| Errno::NOMEM)? <= 1);
    if is_alone { thaw(range) } else { Ok(()) }
}

/// Notes that an `mlock` may have locked memory at `range`, so that a thaw locks it again if it is. For after the call,
/// in a process with other threads: one of them may have frozen memory since [`before_mlock`] noted it. Leaves `errno`
/// alone.
pub fn locked(range: Range<usize>) {
    if let Some(shared) = registry::shared() {
        let span = Span::of_pointers(range).rounded_out(rustix::param::page_size());
        shared.map.change(span, &|entry| entry.with_flags(VmaFlags::LOCKED, VmaFlags::default()));
    }
}

/// Notes that something of unknown length was mapped at `start`, over what lay there. If memory there is known to be
/// frozen, its first page is not any longer; how much of the rest that adjoins it is, stays unknown until the next
/// round, and guards fail there.
pub fn replaced_from(start: usize) {
    let Some(shared) = registry::shared() else { return };
    let page = Span::of_pointers(start..start.saturating_add(rustix::param::page_size()));
    // A plan loses nothing but a part of itself.
    shared.left_alone.add(Span::new(page.start, usize::MAX));
    let rest = Span::new(page.end, end_of_run(page, usize::MAX));
    shared.map.forget(page);
    // Of thawed memory no bytes can be lost.
    shared.map.rewrite(rest, &|entry| (!entry.is_thawed()).then(|| entry.unsure()));
}

/// Prepares the process for `mlockall(MCL_CURRENT)`, as [`before_mlock`] does for a range.
///
/// # Errors
///
/// As [`thaw`].
pub fn before_mlockall() -> Result<(), Errno> {
    match registry::shared() {
        Some(shared) => before_mlock(shared.map.bounds().range()),
        None => Ok(()),
    }
}

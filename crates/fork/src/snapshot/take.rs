//! Takes a snapshot: copies memory to a file, piece by piece, and maps the file privately in its place.
//!
//! From listing the mappings to making the last one, nothing allocates and no signal handler runs: the heap is among
//! the memory that is replaced.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::AtomicPtr;

use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::extent::{self, Extent, Use};
use palimpsest_sys::memory::own::{Own, Reserved};
use palimpsest_sys::memory::remap;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::memory::vec::{Full, MappedVec};
use palimpsest_sys::pages::kept::KeptMaps;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::pagemap::{Pagemap, ScanWay, Wanted};
use palimpsest_sys::pages::vmas::{Detail, Label, Vma, VmaFlags, Vmas};
use palimpsest_sys::threads::own::Blocked;
use rustix::io::Errno;
use rustix::process::Resource;

use super::contents;
use super::descriptors;
use super::error::{Left, TakeError};
use super::heirs;
use super::layout;
use super::options::{Descriptors, Scope, SnapshotOptions, Sweep, Threads};
use super::state::{Contents, Copied, MAPPINGS, NotTaken, Part, Reach, State, Whole, pointer};
use super::thread::{Running, Thread};
use crate::arena;
use crate::engine::entry::Entry;
use crate::engine::registry::{self, Shared};

/// How much memory is copied and then replaced in one go, so that no more than that exists twice. Also the grain in
/// which untouched memory is told apart.
const PIECE: usize = 2 << 20;
/// Room between mappings in the file, so that a mapping that grows shows zeros.
const GAP: u64 = 256 << 20;
/// Bytes that each restore copies back are saved at multiples of this.
const COPIES_ALIGN: usize = 64;
/// A sweep also asks about gaps up to this size, which costs less than another system call.
const SHORT: usize = 256 << 10;

/// Which part of the stack is in the snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stack {
    /// None: its frames go on as they are.
    GoesOn,
    /// All from here to its end.
    From(usize),
}

/// Takes a snapshot.
///
/// # Safety
///
/// As [`Snapshot::take`](super::Snapshot::take).
pub(super) unsafe fn take(options: &SnapshotOptions, stack: Stack) -> Result<Own<State>, TakeError> {
    refuse_threads(options.threads)?;
    if rustix::process::getrlimit(Resource::Fsize).current.is_some() {
        return Err(TakeError::FileSize);
    }
    let page = rustix::param::page_size();
    let known = options.resident / page + 1;
    let mut vmas = Vmas::with_capacity(MAPPINGS)?;
    vmas.read(Detail::Places)?;
    let thread = Thread::look(&vmas);
    let reference = match options.scope {
        Scope::Ranges(_) => None,
        Scope::Whole => Some(Vmas::with_capacity(MAPPINGS)?),
    };
    // Now already: a handler that forks would wait for the lock of the thread that it interrupts.
    let _blocked = Blocked::all();
    let no_fork = heirs::keep_away()?;
    let kept = KeptMaps::open(MappedVec::with_capacity(MAPPINGS)?)?;
    let mut excluded = MappedVec::with_capacity(64 + options.except.len())?;
    let mut state = Own::new(State {
        reach: Reach::Ranges,
        sweep: options.sweep,
        resident: options.resident,
        page,
        process: std::process::id(),
        pagemap: Pagemap::open()?,
        extent: Extent::create(Use::Snapshot)?,
        parts: MappedVec::with_capacity(MAPPINGS)?,
        groups: MappedVec::with_capacity(MAPPINGS)?,
        copies: MappedVec::with_capacity(8)?,
        known: MappedVec::with_capacity(known)?,
        missed: false,
        declared: MappedVec::with_capacity(known)?,
        left: MappedVec::with_capacity(MAPPINGS)?,
        views: Reserved::none(),
        saved: Reserved::none(),
        descriptors: match options.descriptors {
            Descriptors::Leave => None,
            Descriptors::Restore => Some(descriptors::Table::with_capacity()?),
        },
        faults: 0,
        restores: 0,
        listed: false,
        next: AtomicPtr::default(),
    })
    .map_err(unmapped)?;
    heirs::enter(state.place());
    drop(no_fork);

    let tables = registry::known()?;
    registry::wait_for_deputy().map_err(|process| TakeError::Deputy { process })?;
    let no_files = match &options.scope {
        Scope::Ranges(_) => None,
        Scope::Whole => Some(arena::before_snapshot_of_all()?),
    };
    vmas.read(Detail::Figures)?;
    let mut running = None;
    match &options.scope {
        Scope::Ranges(ranges) => {
            if let Stack::From(_) = stack {
                copy_around(&mut state, &find_stack(&thread, &vmas)?, &options.scope, stack)?;
            }
            choose_ranges(&mut state, ranges, &vmas, tables)?;
            ranges.iter().for_each(arena::before_snapshot_of);
        }
        Scope::Whole => {
            let found = find_stack(&thread, &vmas)?;
            excluded.push(found.stack)?;
            for range in &options.except {
                let end = range.end.checked_next_multiple_of(page).unwrap_or(usize::MAX & !(page - 1));
                excluded.push(Span { start: range.start & !(page - 1), end })?;
            }
            let lists = reference.as_ref().map(Vmas::own_ranges).into_iter().chain([vmas.own_ranges()]).flatten();
            let kept = kept.as_ref().map(KeptMaps::range);
            for range in lists.chain([excluded.range()]).chain(kept) {
                excluded.push(range.into())?;
            }
            // Mappings of the kernel, such as the vDSO, never move, and some lists leave some of them out.
            for vma in vmas.iter().filter(|vma| vma.label == Label::Kernel) {
                excluded.push(vma.range().into())?;
            }
            exclude_own(&state, &mut excluded)?;
            copy_around(&mut state, &found, &options.scope, stack)?;
            choose_whole(&mut state, &vmas, &excluded, &found)?;
            running = Some(found);
        }
    }
    tell_guards(tables, &state.parts);
    // SAFETY: the caller's contract: nobody else writes to this memory, and it may be replaced by a mapping of the same
    // bytes.
    unsafe { replace(&mut state, &vmas) }?;
    if state.sweep == Sweep::OnFaults {
        let zeros = state.parts.iter().filter(|part| part.contents == Contents::Zeros);
        zeros.for_each(|part| layout::keep_small(Span::new(part.start, part.end)));
    }
    group(&mut state)?;
    if let (Some(running), Some(mut reference), Some(no_files)) = (running, reference, no_files) {
        excluded.push(state.views.span())?;
        excluded.push(state.saved.span())?;
        excluded.sort_unstable_by_key(|span| span.start);
        reference.read(Detail::Places)?;
        state.reach = Reach::Whole(Whole {
            layout: options.layout,
            reference,
            kept,
            current: vmas,
            excluded,
            program_break: calls::program_break(),
            stack: running.stack,
            _no_files: no_files,
        });
    }
    let own = state.own_files();
    if let Some(table) = &mut state.descriptors {
        table.read(own)?;
    }
    save_copies(&mut state);
    state.faults = contents::faults();
    Ok(state)
}

fn find_stack(thread: &Thread, vmas: &[Vma]) -> Result<Running, TakeError> {
    let found = thread.running(vmas);
    found.ok_or_else(|| TakeError::ForeignStack { stack_pointer: super::arch::stack_pointer() })
}

/// Tells [`guard`](crate::guard) which memory is about to become mappings of a file.
fn tell_guards(tables: &Shared, parts: &[Part]) {
    tables.map.begin_epoch();
    for part in parts.iter().filter(|part| part.saved(part.start).is_some()) {
        let span = Span::new(part.start, part.end);
        if !tables.map.add(span, Entry::of_snapshot(part.permissions)) {
            // Better a guard that fails than one that shows old bytes.
            tables.map.doubt();
        }
    }
}

fn refuse_threads(threads: Threads) -> Result<(), TakeError> {
    if threads == Threads::Asleep {
        return Ok(());
    }
    let count = palimpsest_sys::threads::hold::count().map_err(|errno| TakeError::Call { call: "stat", errno })?;
    if count > 1 { Err(TakeError::Threads { count }) } else { Ok(()) }
}

/// Enters the ranges in the table of parts, without the tables of guards, which also speak of other memory. What they
/// contain is found out later.
fn choose_ranges(state: &mut State, ranges: &[Range<usize>], vmas: &[Vma], tables: &Shared) -> Result<(), TakeError> {
    let State { parts, pagemap, page, .. } = state;
    let own = tables.spans().map(|span| span.rounded_out(*page));
    let mut last = 0;
    // Sorted by address, but not in place: the ranges are the caller's, and nothing may be allocated.
    while let Some(range) =
        ranges.iter().filter(|range| range.start >= last && !range.is_empty()).min_by_key(|range| range.start)
    {
        let refused = |reason| TakeError::Range { start: range.start, end: range.end, reason };
        if !range.start.is_multiple_of(*page) || !range.end.is_multiple_of(*page) {
            return Err(refused(Left::Unaligned));
        }
        let mut at = range.start;
        for vma in vmas.iter().filter(|vma| vma.end > range.start && vma.start < range.end) {
            if vma.start > at {
                break;
            }
            let end = vma.end.min(range.end);
            unfit(vma).map_or(Ok(()), |reason| Err(refused(reason)))?;
            if !vma.permissions.contains(Permissions::READ_WRITE) {
                return Err(refused(Left::ReadOnly));
            }
            if holds_guards(pagemap, at..end)? {
                return Err(refused(Left::Special));
            }
            outside(at..end, own.iter().copied()).try_for_each(|part| cut(parts, pagemap, vma, part))?;
            at = end;
        }
        if at != range.end {
            return Err(refused(Left::Unmapped));
        }
        last = range.end;
    }
    let overlapping = ranges
        .iter()
        .enumerate()
        .find(|(place, range)| ranges[..*place].iter().any(|other| other.start < range.end && range.start < other.end));
    overlapping.map_or(Ok(()), |(_, range)| {
        Err(TakeError::Range { start: range.start, end: range.end, reason: Left::Overlapping })
    })
}

/// Enters all private memory in the table of parts.
fn choose_whole(state: &mut State, vmas: &[Vma], excluded: &[Span], running: &Running) -> Result<(), TakeError> {
    let words = running.rseq_pages(state.page);
    let State { parts, pagemap, left, .. } = state;
    for vma in vmas {
        if let Some(reason) = unfit(vma) {
            if is_of_interest(vma, excluded) {
                left.push(NotTaken { start: vma.start, end: vma.end, reason })?;
            }
            continue;
        }
        // The program cannot have changed a file that it mapped without the right to write, such as program text.
        if vma.inode != 0 && !vma.permissions.contains(Permissions::WRITE) {
            continue;
        }
        for part in outside(vma.range(), excluded.iter().copied().chain([words])) {
            if holds_guards(pagemap, part.clone())? {
                left.push(NotTaken { start: part.start, end: part.end, reason: Left::Special })?;
            } else {
                cut(parts, pagemap, vma, part)?;
            }
        }
    }
    Ok(())
}

/// Returns the parts of a range that lie in no span of `avoided`.
fn outside(range: Range<usize>, avoided: impl Iterator<Item = Span> + Clone) -> impl Iterator<Item = Range<usize>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        while let Some(inside) = avoided.clone().find(|span| span.contains(at)) {
            at = inside.end;
        }
        let end = avoided.clone().map(|span| span.start).filter(|start| *start > at).fold(range.end, usize::min);
        let part = std::mem::replace(&mut at, end)..end;
        (part.start < part.end).then_some(part)
    })
}

/// Whether to tell the user that this mapping is not in the snapshot.
fn is_of_interest(vma: &Vma, excluded: &[Span]) -> bool {
    vma.permissions.contains(Permissions::WRITE)
        && vma.label != Label::Kernel
        && !excluded.iter().any(|span| span.contains(vma.start))
}

/// Returns why this mapping cannot be replaced by one of a file; `None` if it can.
fn unfit(vma: &Vma) -> Option<Left> {
    const SPECIAL: VmaFlags = VmaFlags::PAGE_FRAMES
        .union(VmaFlags::DEVICE)
        .union(VmaFlags::HUGETLB)
        .union(VmaFlags::MIXED)
        .union(VmaFlags::SHADOW_STACK)
        .union(VmaFlags::SEALED)
        .union(VmaFlags::TAGGED)
        .union(VmaFlags::GUARDED)
        .union(VmaFlags::DROPPABLE);
    let has = |flags| vma.flags.intersects(flags);
    if vma.permissions.contains(Permissions::SHARED) {
        Some(Left::Shared)
    } else if vma.label == Label::Kernel || has(SPECIAL) {
        Some(Left::Special)
    } else if vma.permissions.contains(Permissions::EXECUTE) {
        Some(Left::Executable)
    } else if has(VmaFlags::GROWS_DOWN) {
        Some(Left::Stack)
    } else if has(VmaFlags::LOCKED) || vma.protection_key != 0 {
        Some(Left::Locked)
    } else if has(VmaFlags::WIPE_ON_FORK) {
        Some(Left::WipedOnFork)
    } else if has(VmaFlags::USERFAULT) {
        Some(Left::Userfault)
    } else {
        None
    }
}

/// Whether replacing the range would lose guards, which few kernels show in a mapping's flags.
fn holds_guards(pagemap: &Pagemap, range: Range<usize>) -> Result<bool, TakeError> {
    // Reading entries one by one would tell nothing: kernels without the ioctl have no guards.
    if pagemap.way() == ScanWay::Entries {
        return Ok(false);
    }
    let mut found = false;
    pagemap.scan(range, Wanted::Guards, &mut |_| {
        found = true;
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Cuts `range`, inside `vma`, into parts to save and untouched parts.
fn cut(parts: &mut MappedVec<Part>, pagemap: &Pagemap, vma: &Vma, range: Range<usize>) -> Result<(), TakeError> {
    let permissions = vma.permissions;
    let saved = Contents::Saved { offset: 0, view: 0 };
    if vma.inode != 0 {
        // A file's pages all have contents.
        parts.push(Part { start: range.start, end: range.end, permissions, contents: saved })?;
        return Ok(());
    }
    let mut at = range.start;
    let mut full = Ok(());
    pagemap.scan(range.clone(), Wanted::Present, &mut |run| {
        // Whole pieces: one untouched page among others is not worth a mapping.
        let start = (run.start & !(PIECE - 1)).max(at);
        let end = run.end.next_multiple_of(PIECE).min(range.end);
        if end <= at {
            return ControlFlow::Continue(());
        }
        if start > at {
            full = parts.push(Part { start: at, end: start, permissions, contents: Contents::Zeros });
        }
        if full.is_ok() {
            full = match parts.last_mut() {
                Some(last) if last.end == start && start > range.start && last.contents == saved => {
                    last.end = end;
                    Ok(())
                }
                _ => parts.push(Part { start, end, permissions, contents: saved }),
            };
        }
        at = end;
        if full.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    full?;
    if at < range.end {
        parts.push(Part { start: at, end: range.end, permissions, contents: Contents::Zeros })?;
    }
    Ok(())
}

/// Notes the bytes that are copied one by one: the frames that are in the snapshot, and with the whole process those on
/// pages shared with the running stack, or with words that the kernel writes.
fn copy_around(state: &mut State, running: &Running, scope: &Scope, stack: Stack) -> Result<(), TakeError> {
    let words = running.rseq_pages(state.page);
    let beside_frames = running.frames_end..running.stack.end;
    // These pages may be the ones on which the stack ends.
    let meets_stack = words.start < running.stack.end && words.end > running.stack.start;
    let beside_words = if meets_stack { words.start.max(running.stack.end) } else { words.start }..words.end;
    let frames = match stack {
        Stack::GoesOn => 0..0,
        Stack::From(start) => start..running.frames_end,
    };
    let ranges = match scope {
        Scope::Ranges(_) => [frames, 0..0, 0..0],
        Scope::Whole => [frames, beside_frames, beside_words],
    };
    let mut len = 0_usize;
    for range in ranges {
        let (before, after) = (
            range.start..range.end.min(running.rseq.start.max(range.start)),
            range.start.max(running.rseq.end.min(range.end))..range.end,
        );
        // Without such words there is one range.
        let pieces = if running.rseq.start == running.rseq.end { [range, 0..0] } else { [before, after] };
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            len += piece.len().next_multiple_of(COPIES_ALIGN);
            state.copies.push(Copied { start: piece.start, len: piece.len(), saved: 0 })?;
        }
    }
    state.saved = Reserved::new(len.next_multiple_of(state.page), Permissions::READ_WRITE).map_err(unmapped)?;
    Ok(())
}

/// Moves every part with contents to the snapshot's file.
///
/// # Safety
///
/// 1. No other thread runs, and no user of the memory minds other pages with the same bytes.
unsafe fn replace(state: &mut State, vmas: &[Vma]) -> Result<(), TakeError> {
    let saved = |part: &&Part| part.contents != Contents::Zeros;
    let total = state.parts.iter().filter(saved).map(|part| part.end - part.start).sum();
    state.views = Reserved::new(total, Permissions::default()).map_err(unmapped)?;
    let mut view = state.views.span().start;
    let mut next: u64 = 0;
    let mut place = 0;
    let State { parts, pagemap, extent, .. } = state;
    for part in parts.iter_mut().filter(|part| part.contents != Contents::Zeros) {
        let offset = next.next_multiple_of(PIECE as u64) + (part.start % PIECE) as u64;
        next = offset + (part.end - part.start) as u64 + GAP;
        if next > extent::LENGTH {
            return Err(Full { capacity: place }.into());
        }
        part.contents = Contents::Saved { offset, view };
        view += part.end - part.start;
        while vmas[place].end <= part.start {
            place += 1;
        }
        // SAFETY: (1).
        unsafe { replace_part(part, offset, &vmas[place], pagemap, extent) }?;
    }
    extent.seal()?;
    for part in state.parts.iter() {
        if let Contents::Saved { offset, view } = part.contents {
            let span = Span::new(view, view + (part.end - part.start));
            // SAFETY: 1. inside the range that was reserved for views; 2. the other threads are absent or asleep.
            unsafe { remap::show(&state.extent, span, offset, Permissions::READ) }?;
        }
    }
    Ok(())
}

/// Moves one part to the file.
///
/// # Safety
///
/// 1. As [`replace`].
unsafe fn replace_part(
    part: &Part,
    offset: u64,
    vma: &Vma,
    pagemap: &Pagemap,
    extent: &Extent,
) -> Result<(), TakeError> {
    let span = Span::new(part.start, part.end);
    for piece in span.cut(PIECE) {
        let offset = offset + (piece.start - part.start) as u64;
        let readable = part.permissions.union(Permissions::READ);
        if readable != part.permissions {
            // For the time of the copy; the mapping below has the old rights. SAFETY: 1. no code that runs meanwhile
            // uses the memory.
            unsafe { calls::protect(piece, readable) }.map_err(|errno| TakeError::Call { call: "mprotect", errno })?;
        }
        // SAFETY: (1).
        let replaced = unsafe { replace_piece(piece, offset, part.permissions, vma, pagemap, extent) };
        if replaced.is_err() && readable != part.permissions {
            // The process goes on unchanged. If this is refused, it keeps the right to read what nobody reads. SAFETY:
            // as above.
            let _ = unsafe { calls::protect(piece, part.permissions) };
        }
        replaced?;
    }
    // Advice that a mapping of a file refuses has no effect on it.
    Traits::of(vma).advise(span);
    Ok(())
}

/// Moves one piece, which is readable, to the file at `offset`.
///
/// # Safety
///
/// 1. As [`replace`].
unsafe fn replace_piece(
    piece: Span,
    offset: u64,
    permissions: Permissions,
    vma: &Vma,
    pagemap: &Pagemap,
    extent: &Extent,
) -> Result<(), TakeError> {
    if vma.inode == 0 {
        let mut stored = Ok(());
        pagemap.scan(piece.range(), Wanted::Present, &mut |run| {
            stored = extent.store(run.clone(), offset + (run.start - piece.start) as u64);
            if stored.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        stored?;
    } else {
        extent.store(piece.range(), offset)?;
    }
    // SAFETY: 1. all bytes that are not zero are in the file at this offset, and (1) nobody has changed them since; 2.
    // (1).
    unsafe { remap::show(extent, piece, offset, permissions) }?;
    Ok(())
}

/// The kernel has no memory, or no room for a mapping.
fn unmapped(errno: Errno) -> TakeError {
    TakeError::Call { call: "mmap", errno }
}

/// Joins parts that one question to the kernel can cover.
fn group(state: &mut State) -> Result<(), TakeError> {
    let State { parts, groups, .. } = state;
    for part in parts.iter() {
        match groups.last_mut() {
            Some(last) if part.start - last.end <= SHORT => last.end = part.end,
            _ => groups.push(Span { start: part.start, end: part.end })?,
        }
    }
    Ok(())
}

/// Excepts the snapshot's own memory.
fn exclude_own(state: &Own<State>, excluded: &mut MappedVec<Span>) -> Result<(), TakeError> {
    let State { parts, groups, copies, known, declared, left, descriptors, .. } = &**state;
    let tables = [parts.range(), groups.range(), copies.range(), known.range(), declared.range(), left.range()];
    let more = descriptors.as_ref().map(descriptors::Table::range);
    for range in tables.into_iter().chain(more) {
        excluded.push(range.into())?;
    }
    excluded.push(state.span())?;
    Ok(())
}

/// Saves the present value of the bytes that each restore copies back.
fn save_copies(state: &mut State) {
    let State { copies, saved, .. } = state;
    let mut at = saved.span().start;
    for copy in copies.iter_mut() {
        copy.saved = at;
        at += copy.len.next_multiple_of(COPIES_ALIGN);
        // SAFETY: both are mapped, the first as thread-local storage or stack of this thread, the second for this
        // purpose.
        unsafe { std::ptr::copy_nonoverlapping(pointer(copy.start), pointer(copy.saved), copy.len) };
    }
}

//! Restores bytes: finds the pages that were written, and copies or drops them.
//!
//! Nothing here calls the allocator, or anything that could: the heap is among what is restored.

use std::ops::{ControlFlow, Range};

use palimpsest_sys::memory::calls::{self, Discard};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::pagemap::{Pagemap, Wanted};
use rustix::io::Errno;

use super::error::RestoreError;
use super::layout;
use super::options::Sweep;
use super::state::{Contents, Known, Part, State, pointer};

/// One restore in this many drops the pages not written since the last such restore. Until then each costs a copy (0.1
/// µs); a page dropped too early costs a fault (2 µs).
const WEEDING: u32 = 64;

/// What was done about memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) by_memcpy: usize,
    pub(super) by_drop: usize,
    pub(super) swept: bool,
}

/// Restores the bytes of all parts.
pub(super) fn restore(state: &mut State) -> Result<Counts, RestoreError> {
    let mut counts = Counts::default();
    let turn = state.restores;
    state.restores = turn.wrapping_add(1);
    let weeds = turn % WEEDING == WEEDING - 1;
    let sweeps = match state.sweep {
        Sweep::Never => false,
        Sweep::Always => true,
        _ if state.missed => true,
        Sweep::Every(rounds) => turn.is_multiple_of(rounds.max(1)),
        // A forked child counts its faults from 0.
        Sweep::OnFaults => weeds || std::process::id() != state.process || faults() != state.faults,
    };
    if sweeps {
        counts.swept = true;
        sweep(state, weeds, &mut counts)?;
    } else {
        let State { known, declared, page, sweep, .. } = state;
        known.iter().for_each(put_back);
        let mut bytes: usize = known.iter().map(|known| known.len).sum();
        // With `OnFaults`, a sweep is skipped only if nothing faulted: then only known pages are written.
        if *sweep != Sweep::OnFaults {
            declared.iter().for_each(put_back);
            bytes += declared.iter().map(|known| known.len).sum::<usize>();
        }
        counts.by_memcpy = bytes / *page;
    }
    for copy in state.copies.iter() {
        // SAFETY: both are mapped while the snapshot lives: part of this thread's storage or stack that nobody uses
        // now, and its saved bytes.
        unsafe { std::ptr::copy_nonoverlapping(pointer(copy.saved), pointer(copy.start), copy.len) };
    }
    if state.sweep == Sweep::OnFaults && counts.swept {
        state.faults = faults();
    }
    Ok(counts)
}

/// Finds all private pages of the parts, restores them, and notes those that stay.
fn sweep(state: &mut State, weeds: bool, counts: &mut Counts) -> Result<(), RestoreError> {
    let process = std::process::id();
    if state.process != process {
        // A forked child: the file shows its parent's page tables.
        state.pagemap = Pagemap::open()?;
        state.process = process;
    }
    let State { pagemap, parts, groups, known, missed, resident, page, sweep, .. } = state;
    known.clear();
    let small = (*sweep == Sweep::OnFaults).then_some(Span::default());
    let mut keeper = Keeper { known, room: *resident, page: *page, weeds, counts, small, missed: false, failed: None };
    let mut first = 0;
    for group in groups.iter() {
        let found = &mut |run: Range<usize>| {
            while parts.get(first).is_some_and(|part| part.end <= run.start) {
                first += 1;
            }
            for part in parts[first..].iter().take_while(|part| part.start < run.end) {
                keeper.take(part, run.start.max(part.start)..run.end.min(part.end));
            }
            if keeper.failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        pagemap.scan(group.range(), Wanted::Written, found)?;
    }
    *missed = keeper.missed;
    keeper.failed.map_or(Ok(()), Err)
}

/// Decides what to do with written pages.
struct Keeper<'a> {
    known: &'a mut palimpsest_sys::memory::vec::MappedVec<Known>,
    /// Bytes of pages that may stay.
    room: usize,
    page: usize,
    weeds: bool,
    counts: &'a mut Counts,
    /// The last hole that was kept from becoming huge pages; `None` if none need be.
    small: Option<Span>,
    /// Whether pages stay that are not known.
    missed: bool,
    failed: Option<RestoreError>,
}

impl Keeper<'_> {
    fn take(&mut self, part: &Part, run: Range<usize>) {
        // A hole that the round has mapped anew lacks the advice. The kernel fills only those that have a page.
        let hole = Span::new(part.start, part.end);
        if part.contents == Contents::Zeros
            && let Some(last) = self.small.as_mut().filter(|last| **last != hole)
        {
            layout::keep_small(hole);
            *last = hole;
        }
        if !part.is_writable() {
            return self.drop(part, run);
        }
        if !self.weeds {
            let kept = run.len().min(self.room & !(self.page - 1));
            self.keep(part, run.start..run.start + kept);
            return self.drop(part, run.start + kept..run.end);
        }
        for start in run.step_by(self.page) {
            let page = start..start + self.page;
            if self.room < self.page || is_as_saved(&page, part.saved(start)) {
                self.drop(part, page);
            } else {
                self.keep(part, page);
            }
        }
    }

    /// Copies the saved bytes to `run`, and notes it.
    fn keep(&mut self, part: &Part, run: Range<usize>) {
        if run.is_empty() {
            return;
        }
        let known = Known { start: run.start, len: run.len(), saved: part.saved(run.start) };
        if self.known.push(known).is_err() {
            return self.drop(part, run);
        }
        put_back(&known);
        self.room -= run.len();
        self.counts.by_memcpy += run.len() / self.page;
    }

    /// Drops the private pages of `run`, so that the mapping shows again: the saved bytes, or zeros.
    fn drop(&mut self, part: &Part, run: Range<usize>) {
        if run.is_empty() {
            return;
        }
        match discard(run.clone().into()) {
            Ok(()) => self.counts.by_drop += run.len() / self.page,
            // Locked memory before Linux 5.18: stays, however much is known already.
            Err(Errno::INVAL) if part.is_writable() => {
                put_back(&Known { start: run.start, len: run.len(), saved: part.saved(run.start) });
                self.missed = true;
                self.counts.by_memcpy += run.len() / self.page;
            }
            Err(errno) => self.failed = Some(RestoreError::Call { call: "madvise", address: run.start, errno }),
        }
    }
}

/// Drops private pages inside a part, even if the program has locked them since the snapshot was taken.
fn discard(run: Span) -> Result<(), Errno> {
    // SAFETY: inside a part, which shows its file or zeros once the private pages are gone, as the caller of restore
    // wants.
    match unsafe { calls::discard(run, Discard::Private) } {
        // SAFETY: 1. as above.
        Err(Errno::INVAL) => unsafe { calls::advise(run, libc::MADV_DONTNEED_LOCKED) },
        outcome => outcome,
    }
}

/// Stores the saved bytes, or zeros.
fn put_back(known: &Known) {
    match known.saved {
        // SAFETY: whole pages of a part that is mapped readable and writable, as the layout was just checked for or the
        // caller answers for; the saved bytes are mapped while the snapshot lives.
        Some(saved) => unsafe {
            std::ptr::copy_nonoverlapping(pointer(saved).cast_const(), pointer(known.start), known.len);
        },
        // SAFETY: as above.
        None => unsafe { pointer(known.start).write_bytes(0, known.len) },
    }
}

/// Whether the page has the saved bytes, or is all zeros if none are saved.
fn is_as_saved(page: &Range<usize>, saved: Option<usize>) -> bool {
    let start: *const u8 = pointer(page.start);
    match saved {
        // SAFETY: both are mapped readable, as in `put_back`.
        Some(saved) => unsafe { libc::memcmp(start.cast(), pointer(saved).cast(), page.len()) == 0 },
        // SAFETY: mapped readable, as in `put_back`; nobody writes to it now.
        None => unsafe { std::slice::from_raw_parts(start, page.len()) }
            .as_chunks::<64>()
            .0
            .iter()
            .all(|line| *line == [0; 64]),
    }
}

/// Returns the page faults of this process, and of the children that it has waited for, since children of `vfork` write
/// to its memory. Neither number shrinks, so that an equal sum means that neither has grown.
pub(super) fn faults() -> u64 {
    let of = |whose| {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the kernel fills a local.
        unsafe { libc::getrusage(whose, usage.as_mut_ptr()) };
        // SAFETY: zeros are a valid value, which the call has overwritten.
        let usage = unsafe { usage.assume_init() };
        usage.ru_minflt.wrapping_add(usage.ru_majflt).cast_unsigned()
    };
    of(libc::RUSAGE_SELF).wrapping_add(of(libc::RUSAGE_CHILDREN))
}

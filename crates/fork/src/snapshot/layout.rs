//! Restores mappings: compares the present list with the one of the snapshot, and undoes the differences.

use std::ops::Range;

use palimpsest_sys::memory::calls::{self, Commit, map_zeros_over};
use palimpsest_sys::memory::extent::{Extent, ExtentError};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::vmas::{Detail, Vma};

use super::error::RestoreError;
use super::options::{Layout, Sweep};
use super::state::{Contents, Part, Reach, State};

/// What was done about mappings, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) unmapped: usize,
    pub(super) remade: usize,
    pub(super) protected: usize,
}

/// How to restore a range of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Unmap,
    Remake,
    Protect(Permissions),
}

/// Restores the mappings and the program break.
pub(super) fn restore(state: &mut State) -> Result<Counts, RestoreError> {
    let mut counts = Counts::default();
    let State { reach, parts, extent, sweep, .. } = state;
    let Reach::Whole(whole) = reach else { return Ok(counts) };
    if whole.layout == Layout::Trust {
        return Ok(counts);
    }
    // First, since moving it maps and unmaps.
    set_program_break(whole.program_break)?;
    let current = match &mut whole.kept {
        Some(kept) => kept.read(&whole.excluded)?,
        None => {
            whole.current.read(Detail::Places)?;
            &*whole.current
        }
    };
    compare(&whole.reference, current, &whole.excluded, &mut |range, change| {
        match change {
            Change::Unmap => {
                // SAFETY: mapped since the snapshot was taken, which the caller wants undone; it is none of ours, since
                // those are excluded.
                unsafe { calls::unmap(range.clone().into()) }.map_err(|errno| RestoreError::Call {
                    call: "munmap",
                    address: range.start,
                    errno,
                })?;
                counts.unmapped += range.len();
            }
            Change::Protect(permissions) => {
                // SAFETY: gives a mapping of the snapshot its old rights.
                unsafe { calls::protect(range.clone().into(), permissions) }.map_err(|errno| RestoreError::Call {
                    call: "mprotect",
                    address: range.start,
                    errno,
                })?;
                counts.protected += range.len();
            }
            Change::Remake => {
                // Not by `remap`: these bytes are lost already, and the error says that the process cannot go on.
                let mut at = range.start;
                let first = parts.partition_point(|part| part.end <= range.start);
                for part in parts[first..].iter().take_while(|part| part.start < range.end) {
                    if part.start > at {
                        break;
                    }
                    let piece = at..part.end.min(range.end);
                    at = piece.end;
                    match part.contents {
                        Contents::Zeros => {
                            // SAFETY: 1. these addresses were zeros when the snapshot was taken, and will be again.
                            unsafe { map_zeros_over(piece.clone().into(), part.permissions, Commit::Counted) }
                                .map_err(|errno| ExtentError::unmapped(piece.clone().into(), errno))?;
                            if *sweep == Sweep::OnFaults {
                                keep_small(piece.into());
                            }
                        }
                        Contents::Saved { .. } => {
                            // SAFETY: 1. the caller wants these addresses restored.
                            unsafe { remake(part, piece.into(), extent) }?;
                        }
                    }
                }
                if at != range.end {
                    return Err(RestoreError::Lost { start: at, end: range.end });
                }
                counts.remade += range.len();
            }
        }
        Ok(())
    })?;
    Ok(counts)
}

/// Keeps the kernel from making a huge page of anonymous pages at `piece` (khugepaged, `MADV_COLLAPSE`), which fills
/// holes with pages that can be written without a fault. A kernel without huge pages refuses, and has no need.
pub(super) fn keep_small(piece: Span) {
    // SAFETY: 1. changes no contents.
    let _ = unsafe { calls::advise(piece, libc::MADV_NOHUGEPAGE) };
}

/// Maps what a part of the snapshot had at `piece`. Without a descriptor, as in a child, the mapping is a duplicate of
/// the view of these bytes. (Anonymous memory with a copy of them would show zeros after the next drop.)
///
/// # Safety
///
/// 1. `piece` is whole pages of `part`, which has contents, and the caller may replace what is mapped there.
unsafe fn remake(part: &Part, piece: Span, extent: &Extent) -> Result<(), ExtentError> {
    let Contents::Saved { offset, view } = part.contents else { return Ok(()) };
    let ahead = piece.start - part.start;
    // SAFETY: 1. these addresses showed this part of the file when the snapshot was taken, and will again.
    let mapped = unsafe { extent.map_over(piece.range(), offset + ahead as u64, part.permissions) };
    if !matches!(mapped, Err(ExtentError::Closed { .. })) {
        return mapped;
    }
    let view = Span::new(view + ahead, view + ahead + piece.len());
    let failed = |errno| ExtentError::unmapped(piece, errno);
    // SAFETY: 1. the view is the snapshot's, and stays; and (1).
    unsafe { calls::duplicate_over(view, piece.start) }.map_err(failed)?;
    // SAFETY: gives a mapping of the snapshot its old rights.
    unsafe { calls::protect(piece, part.permissions) }.map_err(failed)
}

/// Calls `change` for each stretch in which the lists differ, ascending, outside what is excluded.
pub(super) fn compare(
    reference: &[Vma],
    current: &[Vma],
    excluded: &[Span],
    change: &mut dyn FnMut(Range<usize>, Change) -> Result<(), RestoreError>,
) -> Result<(), RestoreError> {
    let (mut then, mut now, mut out) =
        (reference.iter().peekable(), current.iter().peekable(), excluded.iter().peekable());
    let mut at = 0;
    loop {
        while then.next_if(|vma| vma.end <= at).is_some() {}
        while now.next_if(|vma| vma.end <= at).is_some() {}
        while out.next_if(|span| span.end <= at).is_some() {}
        let starts = [then.peek().map(|vma| vma.start), now.peek().map(|vma| vma.start)];
        let Some(start) = starts.into_iter().flatten().min() else { return Ok(()) };
        let start = start.max(at);
        while out.next_if(|span| span.end <= start).is_some() {}
        if let Some(span) = out.peek().filter(|span| span.contains(start)) {
            at = span.end;
            continue;
        }
        let covering = |vma: Option<&&Vma>| vma.filter(|vma| vma.start <= start).map(|vma| **vma);
        let (was, is) = (covering(then.peek()), covering(now.peek()));
        // Up to where nothing begins or ends in either list.
        let edge = |vma: Option<&&Vma>| vma.map(|vma| if vma.start > start { vma.start } else { vma.end });
        let edges = [edge(then.peek()), edge(now.peek()), out.peek().map(|span| span.start)];
        let end = edges.into_iter().flatten().min().unwrap_or(usize::MAX);
        match (was, is) {
            (Some(was), Some(is)) if is_same(&was, &is, start) => {
                if was.permissions != is.permissions {
                    change(start..end, Change::Protect(was.permissions))?;
                }
            }
            (Some(_), _) => change(start..end, Change::Remake)?,
            (None, Some(_)) => change(start..end, Change::Unmap)?,
            (None, None) => {}
        }
        at = end;
    }
}

/// Whether both mappings show the same object at `address`, in the same way.
fn is_same(was: &Vma, is: &Vma, address: usize) -> bool {
    let shown = |vma: &Vma| {
        // Anonymous memory has no place in a file; the kernel prints one for some of it.
        let place = if vma.inode == 0 { 0 } else { vma.offset + (address - vma.start) as u64 };
        (vma.device, vma.inode, place, vma.permissions.contains(Permissions::SHARED))
    };
    shown(was) == shown(is)
}

fn set_program_break(wanted: usize) -> Result<(), RestoreError> {
    if calls::program_break() == wanted {
        return Ok(());
    }
    // SAFETY: 1. the break that the process had when the snapshot was taken; nobody needs memory above it, and the C
    // library's own variable is restored with the rest of its data.
    unsafe { calls::set_program_break(wanted) }.map_err(|errno| RestoreError::Call {
        call: "brk",
        address: wanted,
        errno,
    })
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::pages::maps::{Device, MapLine};
    use palimpsest_sys::pages::vmas::Label;

    use super::*;

    fn vma(range: Range<usize>, permissions: Permissions, inode: u64, offset: u64) -> Vma {
        let (device, Range { start, end }) = (Device::default(), range);
        Vma::new(MapLine { start, end, permissions, offset, device, inode }, Label::None)
    }

    fn changes(then: &[Vma], now: &[Vma], excluded: &[Span]) -> Vec<(Range<usize>, Change)> {
        let mut all = Vec::new();
        compare(then, now, excluded, &mut |range, change| {
            all.push((range, change));
            Ok(())
        })
        .unwrap();
        all
    }

    #[test]
    fn splits_and_merges_are_no_changes() {
        let one = [vma(10..40, Permissions::READ_WRITE, 7, 100)];
        let three = [
            vma(10..20, Permissions::READ_WRITE, 7, 100),
            vma(20..30, Permissions::READ_WRITE, 7, 110),
            vma(30..40, Permissions::READ_WRITE, 7, 120),
        ];
        assert_eq!(changes(&one, &three, &[]), []);
        assert_eq!(changes(&three, &one, &[]), []);
    }

    #[test]
    fn each_difference_has_its_change() {
        let then = [vma(10..40, Permissions::READ_WRITE, 7, 100), vma(50..60, Permissions::READ_WRITE, 0, 0)];
        let now = [
            vma(5..12, Permissions::READ_WRITE, 0, 0),
            vma(12..20, Permissions::READ, 7, 102),
            vma(25..40, Permissions::READ_WRITE, 7, 116),
            vma(45..65, Permissions::READ_WRITE, 0, 0),
        ];
        let expected = [
            (5..10, Change::Unmap),
            (10..12, Change::Remake),
            (12..20, Change::Protect(Permissions::READ_WRITE)),
            (20..25, Change::Remake),
            (25..40, Change::Remake),
            (45..50, Change::Unmap),
            (60..65, Change::Unmap),
        ];
        assert_eq!(changes(&then, &now, &[]), expected);
    }

    #[test]
    fn what_is_excluded_is_left_alone() {
        let now = [vma(10..100, Permissions::READ_WRITE, 0, 0)];
        let excluded = [Span { start: 0, end: 5 }, Span { start: 20, end: 30 }, Span { start: 90, end: 200 }];
        assert_eq!(changes(&[], &now, &excluded), [(10..20, Change::Unmap), (30..90, Change::Unmap)]);
        assert_eq!(changes(&now, &[], &excluded), [(10..20, Change::Remake), (30..90, Change::Remake)]);
    }
}

//! Thaws: back to anonymous memory, in base pages or in a huge page.

use std::ptr;

use arrayvec::ArrayVec;
use palimpsest_sys::memory::calls::{self, map_zeros_over};
use palimpsest_sys::memory::extent::{Extent, ExtentError, Use};
use palimpsest_sys::memory::remap::{self, give_up};
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::memory::traits::Traits;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::proc::thp::needs_writable_page;
use rustix::io::Errno;

use super::huge::Asked;
use super::piece::{PIECE, Target, show};
use super::runs::PieceRuns;

/// Replaces `piece` by anonymous memory with the same bytes. An error leaves the bytes unchanged.
///
/// # Safety
///
/// 1. `piece` is whole pages of private memory of this process, `runs` hold all of its bytes that are not zero, and
///    nothing writes to it.
pub(super) unsafe fn make_anonymous(piece: Span, runs: &[Span], traits: Traits) -> Result<(), ExtentError> {
    let permissions = traits.permissions;
    let mut copy = Extent::create(Use::Frozen)?;
    let offset = |at: usize| (at - piece.start) as u64;
    if !permissions.contains(Permissions::READ) {
        protect(piece, permissions.union(Permissions::READ));
    }
    let stored = runs.iter().try_for_each(|run| copy.store(run.range(), offset(run.start)));
    if let Err(error) = stored {
        copy.close();
        protect(piece, permissions);
        return Err(error);
    }
    let writable = permissions.union(Permissions::READ).union(Permissions::WRITE);
    // SAFETY: 1. all bytes are in `copy`.
    let mapped = unsafe { map_zeros_over(piece, writable, traits.commit()) };
    let filled = mapped.map_err(|errno| ExtentError::unmapped(piece, errno)).and_then(|()| {
        traits.advise(piece);
        // SAFETY: 1. mapped writable above, and the caller's.
        runs.iter().try_for_each(|run| unsafe { copy.load(run.range(), offset(run.start)) })
    });
    if let Err(error) = filled {
        // What was there may be gone, but the copy has it: show that instead. SAFETY: 1. all bytes are in `copy`; 2.
        // the caller's contract.
        if let Err(second) = unsafe { show(Target { extent: &copy, base: piece.start }, piece, traits) } {
            give_up(piece, &second);
        }
        let _ = copy.seal();
        copy.close();
        return Err(error);
    }
    copy.close();
    if permissions != writable {
        protect(piece, permissions);
    }
    traits.restrict(piece);
    Ok(())
}

/// Most mappings of a piece that becomes a huge page: a freeze in slices takes at least a sixteenth at a time.
pub(super) const MOST_PARTS: usize = 16;

/// The mappings of a piece.
pub(super) type Parts = ArrayVec<Span, MOST_PARTS>;

/// Replaces `piece`, which can be read, by an anonymous huge page with the same bytes. Takes one huge page more
/// meanwhile. An error leaves everything unchanged.
///
/// The page is made before it is filled: filling base pages and having the kernel collapse them takes three times as
/// long. The old mappings are moved aside for that, and go back whole if no huge page can be had.
///
/// # Safety
///
/// 1. `parts` make up `piece`, and each is of one private mapping of this process; `runs` tells where a part has bytes
///    that are not zero; and nothing reads or writes the piece, nor maps anything.
pub(super) unsafe fn make_huge(
    piece: Span,
    parts: &Parts,
    runs: impl Fn(usize, Span) -> PieceRuns,
    traits: Traits,
) -> Result<Asked, ExtentError> {
    let mut aside = Parts::new();
    let writable = traits.permissions.union(Permissions::READ).union(Permissions::WRITE);
    // SAFETY: 1. (1).
    let made = unsafe { move_aside(parts, &mut aside) }.and_then(|()| {
        // SAFETY: 1. all bytes are aside by now, and what is left shows the bare files; 2. (1).
        unsafe { remap::zero(piece, writable, traits.commit()) }
            .map_err(|errno| ExtentError::unmapped(piece, errno))?;
        traits.advise(piece);
        Ok(collapse_empty(piece))
    });
    if made != Ok(Asked::Made) {
        for (part, from) in parts.iter().zip(&aside) {
            // SAFETY: 1. made by one call; the part shows nothing that is not aside. 2. (1).
            if let Err(error) = unsafe { remap::replace_by(*from, *part) } {
                give_up(*part, &error);
            }
        }
        return made;
    }
    for (index, (part, from)) in parts.iter().zip(&aside).enumerate() {
        for run in runs(index, *part).iter() {
            let source = ptr::with_exposed_provenance::<u8>(from.start + (run.start - part.start));
            let place = ptr::with_exposed_provenance_mut::<u8>(run.start);
            // SAFETY: the runs are in the part (1): `source` is in the mapping aside, which can be read as the part
            // could, and the piece was made writable above; they are apart.
            unsafe { ptr::copy_nonoverlapping(source, place, run.len()) };
        }
        // SAFETY: 1. made above, and nobody else's. The call cannot be refused for too many mappings, since it divides
        // none.
        let _ = unsafe { calls::unmap(*from) };
    }
    if traits.permissions != writable {
        protect(piece, traits.permissions);
    }
    traits.restrict(piece);
    Ok(Asked::Made)
}

/// Maps each part a second time, with everything written to it.
///
/// # Safety
///
/// As [`make_huge`].
unsafe fn move_aside(parts: &Parts, aside: &mut Parts) -> Result<(), ExtentError> {
    for part in parts {
        let refused = |errno| ExtentError::unmapped(*part, errno);
        // SAFETY: 1. (1).
        let start = unsafe { calls::duplicate(*part) }.map_err(refused)?;
        aside.push(Span::new(start, start + part.len()));
    }
    Ok(())
}

/// Makes the first page of `piece` writable in the page tables, if the program may write there: after a fork no page is
/// until it is written to.
///
/// The caller has just seen that private anonymous memory is there, but holds nobody. If a thread maps something else
/// there in between, no byte changes either: of a file's private mapping the process gets a copy of one page, which
/// later writes to the file do not reach; a file's shared page counts as written to, and takes its place on the disk.
fn make_writable(piece: Span) {
    let first = Span::new(piece.start, piece.start + rustix::param::page_size());
    // If the kernel refuses, nothing has changed. SAFETY: 1. faults a page in, and keeps contents and rights.
    let _ = unsafe { calls::advise(first, libc::MADV_POPULATE_WRITE) };
}

/// Asks for a huge page in place of fresh zeros.
fn collapse_empty(piece: Span) -> Asked {
    // The kernel needs a page table that it can replace. SAFETY: the caller's own fresh memory, which it has mapped
    // writable.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(piece.start).write_volatile(0) };
    Asked::of(ask(piece))
}

/// How often to ask again for pages that were in use: compaction and DAMON refer to one for a moment.
const ASK_AGAIN: usize = 3;

/// Asks the kernel for huge pages in place of base pages, whose bytes stay. Threads notice nothing.
fn ask(run: Span) -> Result<(), Errno> {
    // SAFETY: 1. a collapse keeps contents and rights.
    let once = || unsafe { calls::advise(run, libc::MADV_COLLAPSE) };
    (0..ASK_AGAIN).fold(once(), |answer, _| if answer == Err(Errno::AGAIN) { once() } else { answer })
}

/// Asks for a huge page in place of the base pages of `piece`. Returns whether it is one.
pub(super) fn makes(piece: Span) -> bool {
    ask(piece).is_ok()
}

/// Asks for a huge page in place of the base pages of `piece`, as [`collapse_run`] does.
pub(super) fn collapse(piece: Span, is_private: impl FnMut(Span) -> bool) -> Asked {
    let mut answer = Asked::Unfit;
    collapse_run(piece, |_| false, is_private, |_, came| answer = came);
    answer
}

/// Asks for huge pages in place of the base pages of neighbouring pieces, whose bytes stay. Asks for all in one call,
/// since each call first makes the kernel empty a list of every CPU, and may sleep meanwhile. Calls `told` for each
/// piece below the address that it returns; `is_huge` tells whether a piece is huge. After a run that failed, asks for
/// one piece by itself: a caller with time for more comes again.
///
/// If an old kernel refuses the run, makes a page of each piece writable and asks for the run a second time. That may
/// write only to private anonymous memory: `is_private` looks whether it is still there.
pub(super) fn collapse_run(
    run: Span,
    is_huge: impl Fn(Span) -> bool,
    mut is_private: impl FnMut(Span) -> bool,
    told: impl FnMut(Span, Asked),
) -> usize {
    let write = |piece| {
        let may_write = needs_writable_page() && is_private(piece);
        if may_write {
            make_writable(piece);
        }
        may_write
    };
    collapse_run_by(ask, write, run, is_huge, told)
}

/// `write` returns whether it made a page of the piece writable.
fn collapse_run_by(
    mut ask: impl FnMut(Span) -> Result<(), Errno>,
    mut write: impl FnMut(Span) -> bool,
    run: Span,
    is_huge: impl Fn(Span) -> bool,
    mut told: impl FnMut(Span, Asked),
) -> usize {
    let mut answer = ask(run);
    // `SCAN_PAGE_RO` is one of the reasons for this errno.
    if answer == Err(Errno::INVAL) {
        let mut has_written = false;
        run.cut(PIECE).filter(|piece| !is_huge(*piece)).for_each(|piece| has_written |= write(piece));
        if has_written {
            answer = ask(run);
        }
    }
    let all = Asked::of(answer);
    let mut has_retried = false;
    for piece in run.cut(PIECE) {
        let came = match all {
            Asked::Made => Asked::Made,
            _ if is_huge(piece) => Asked::Made,
            Asked::Refused => Asked::Refused,
            // At some errors the kernel leaves out the others of the run.
            Asked::Unfit if run == piece => Asked::Unfit,
            Asked::Unfit if has_retried => return piece.start,
            Asked::Unfit => {
                has_retried = true;
                Asked::of(ask(piece))
            }
        };
        told(piece, came);
        if came == Asked::Refused {
            return piece.end;
        }
    }
    run.end
}

/// Gives a piece rights: the program's, and for a moment the right to be read. If this is refused for too many
/// mappings, whoever reads or writes the piece meets the refusal again.
fn protect(piece: Span, permissions: Permissions) {
    // SAFETY: 1. no code that runs meanwhile uses the memory.
    let _ = unsafe { calls::protect(piece, permissions) };
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::vec::leak_zeroed;

    use super::*;

    /// Fails on: asking for each piece of a run that failed; never getting behind a bad piece.
    #[test]
    fn after_a_run_that_has_failed_one_piece_is_asked_for_and_the_rest_is_handed_back() {
        let at = |piece: usize| piece * PIECE;
        let run = Span::new(at(1), at(9));
        // The kernel has left the run at the second piece, which is never fit.
        let (mut asked, mut told) = (Vec::new(), Vec::new());
        let collapse = |span: Span| {
            asked.push(span);
            Err(Errno::INVAL)
        };
        let is_huge = |piece: Span| piece.start == at(1);
        let upto = collapse_run_by(collapse, |_| true, run, is_huge, |piece, came| told.push((piece, came)));
        assert_eq!(upto, at(3));
        assert_eq!(asked, [run, run, Span::new(at(2), at(3))]);
        assert_eq!(told, [(Span::new(at(1), at(2)), Asked::Made), (Span::new(at(2), at(3)), Asked::Unfit)]);
        // No huge page at all.
        let mut told = 0;
        let none = |piece| -> bool { panic!("{piece:?} is written to in vain") };
        let upto = collapse_run_by(|_| Err(Errno::NOMEM), none, run, |_| false, |_, _| told += 1);
        assert_eq!((upto, told), (at(2), 1));
        let upto = collapse_run_by(|_| Ok(()), none, run, |_| false, |_, came| assert_eq!(came, Asked::Made));
        assert_eq!(upto, run.end);
    }

    /// Fails on: a write, or a second call for the run, that cannot help: pages are in use, or something else is mapped
    /// there by now.
    #[test]
    fn a_run_is_not_asked_for_again_if_no_page_was_made_writable() {
        let run = Span::new(PIECE, 4 * PIECE);
        for (errno, may_write, expected) in [
            (Errno::AGAIN, true, (0, 1)),
            (Errno::NOMEM, true, (0, 1)),
            (Errno::INVAL, false, (3, 1)),
            (Errno::INVAL, true, (3, 2)),
        ] {
            let (mut writes, mut calls) = (0, 0);
            let ask = |span| {
                calls += usize::from(span == run);
                Err(errno)
            };
            let write = |_| {
                writes += 1;
                may_write
            };
            collapse_run_by(ask, write, run, |_| false, |_, _| ());
            assert_eq!((writes, calls), expected, "{errno} {may_write}");
        }
    }

    /// Fails on: a write by kernels that need none.
    #[test]
    fn only_old_kernels_get_a_writable_page() {
        let memory = leak_zeroed(2 * PIECE).expect("memory");
        let start = memory.as_ptr().expose_provenance().next_multiple_of(PIECE);
        let piece = Span::new(start, start + PIECE);
        // SAFETY: 1. this test's memory, which keeps its contents.
        unsafe { calls::advise(piece, libc::MADV_NOHUGEPAGE) }.expect("MADV_NOHUGEPAGE");
        assert_eq!(ask(piece), Err(Errno::INVAL), "base pages are wanted there");
        let mut looks = 0;
        let is_private = |_| {
            looks += 1;
            false
        };
        assert_eq!(collapse(piece, is_private), Asked::Unfit);
        assert_eq!(looks, usize::from(needs_writable_page()));
    }

    /// Fails on: leaving it to kernels before 6.18, which make no huge page of a piece that was not written to since a
    /// fork.
    #[test]
    fn a_piece_without_a_writable_page_is_asked_for_again_with_one() {
        let at = |piece: usize| piece * PIECE;
        for run in [Span::new(at(1), at(4)), Span::new(at(1), at(2))] {
            // The first one was written to.
            let writable = std::cell::RefCell::new(vec![Span::new(at(1), at(2))]);
            let is_writable = |piece: &Span| writable.borrow().contains(piece);
            let mut calls = 0;
            let collapse = |span: Span| {
                calls += 1;
                if span.cut(PIECE).all(|piece| is_writable(&piece)) { Ok(()) } else { Err(Errno::INVAL) }
            };
            let is_huge = |piece: Span| piece.start == at(1);
            let mut made = 0;
            let write = |piece: Span| {
                writable.borrow_mut().push(piece);
                true
            };
            let told = |_, came| made += usize::from(came == Asked::Made);
            assert_eq!(collapse_run_by(collapse, write, run, is_huge, told), run.end);
            assert_eq!((made, calls), (run.len() / PIECE, run.len().min(2 * PIECE) / PIECE));
            assert_eq!(writable.borrow().len(), run.len() / PIECE, "pages that need not be are not touched");
        }
    }

    /// Fails on: an advice that changes bytes.
    #[test]
    fn making_a_page_writable_changes_no_byte() {
        let memory = leak_zeroed(2 * PIECE).expect("memory");
        let start = memory.as_ptr().expose_provenance().next_multiple_of(PIECE);
        let place = ptr::with_exposed_provenance_mut::<u8>(start);
        for value in [1, 2] {
            // SAFETY: inside the memory made above.
            unsafe { place.write_volatile(value) };
            make_writable(Span::new(start, start + PIECE));
            // SAFETY: as above.
            assert_eq!(unsafe { place.read_volatile() }, value);
        }
    }
}

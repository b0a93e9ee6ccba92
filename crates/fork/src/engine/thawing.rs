//! Back to anonymous memory.

use palimpsest_sys::memory::calls;
use palimpsest_sys::memory::extent::{Extent, ExtentError, Use, map_zeros_over};
use palimpsest_sys::memory::remap::give_up;
use palimpsest_sys::pages::maps::Permissions;

use super::piece::{Target, show};
use super::span::Span;
use super::traits::Traits;

/// Replaces `piece` by anonymous memory with the same bytes. An error leaves the bytes as they were.
///
/// # Safety
///
/// 1. `piece` is whole pages of private memory of this process, `runs` hold all bytes of it that are not zero, and
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
    let mapped = unsafe { map_zeros_over(piece.range(), writable, traits.commit()) };
    let filled = mapped.and_then(|()| {
        traits.advise(piece);
        // SAFETY: 1. mapped writable above, and the caller's.
        runs.iter().try_for_each(|run| unsafe { copy.load(run.range(), offset(run.start)) })
    });
    if let Err(error) = filled {
        // What was there may be gone, but it is in the copy: show that instead.
        // SAFETY: 1. all bytes are in `copy`; 2. the caller's contract.
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

/// Gives a piece rights: those of the program, and for a moment the right to be read. A refusal, for too many mappings,
/// is met again by who reads or writes it.
fn protect(piece: Span, permissions: Permissions) {
    // SAFETY: 1. no code that runs meanwhile uses the memory.
    let _ = unsafe { calls::protect(piece, permissions) };
}

//! Back to anonymous memory.

use std::ops::Range;
use std::sync::atomic::Ordering;

use palimpsest_sys::pagemap::{Pagemap, Wanted};
use palimpsest_sys::vmas::VmaFlags;
use palimpsest_sys::world::{self, World};
use rustix::io::Errno;

use super::errno::Kept;
use super::frozen::{Kind, any, each_part};
use super::{changed, touches};
use crate::engine::piece::{PIECE, Target};
use crate::engine::registry;
use crate::engine::runs::{PieceRuns, add_contents};
use crate::engine::signals::Blocked;
use crate::engine::span::Span;
use crate::engine::thawing::make_anonymous;

/// Makes anonymous memory with the same bytes of the frozen parts of `range`, of which pages are taken whole. Other threads are held still meanwhile, if the last
/// freeze was allowed to do so, and signals are blocked. Memory of snapshots stays what it is.
///
/// # Errors
///
/// ENOMEM if there is no memory or no `/proc`, EBUSY if a freeze is under way, if there are other threads that cannot or must not be held, or if the calling code uses
/// the memory itself, EINVAL if the memory has tags or is watched by a userfaultfd; what was not thawed until then is still frozen.
pub fn thaw(range: Range<usize>) -> Result<(), Errno> {
    if !touches(range.clone()) {
        return Ok(());
    }
    let _errno = Kept::now();
    let _blocked = Blocked::all();
    let span = Span::of_pointers(range).rounded_out(rustix::param::page_size());
    if !any(span)? {
        return Ok(());
    }
    let is_alone = world::count().map_err(|_| Errno::NOMEM)? <= 1;
    if !is_alone && !may_stop_threads() {
        return Err(Errno::BUSY);
    }
    let pagemap = Pagemap::open().map_err(|_| Errno::NOMEM)?;
    let mut locked = registry::lock().map_err(|_| Errno::NOMEM)?.ok_or(Errno::BUSY)?;
    let world = if is_alone { None } else { Some(World::prepare().map_err(|_| Errno::BUSY)?) };
    let stopped = world.as_ref().map(World::stop_others).transpose().map_err(|_| Errno::BUSY)?;
    locked.exclude(world.as_ref(), stopped.as_ref()).map_err(|_| Errno::NOMEM)?;
    each_part(span, |part| {
        if part.kind != Kind::Frozen {
            return Ok(());
        }
        let Some(extent) = locked.extent_of(&part.vma) else { return Ok(()) };
        let traits = part.traits()?;
        if traits.flags.intersects(VmaFlags::TAGGED.union(VmaFlags::USERFAULT)) {
            return Err(Errno::INVAL);
        }
        let shown = Target { extent: &extent, base: part.vma.start.wrapping_sub(part.vma.offset as usize) };
        for piece in part.span.cut(PIECE) {
            if locked.is_in_use(piece) {
                return Err(Errno::BUSY);
            }
            let mut runs = PieceRuns::new();
            pagemap.scan(piece.range(), Wanted::Written, &mut |run| runs.push(run.into())).map_err(|_| Errno::NOMEM)?;
            add_contents(&mut runs, shown, piece).map_err(|_| Errno::NOMEM)?;
            // SAFETY: 1. private memory, says the kernel; the runs are its written pages and the contents of its file; signals are blocked, and
            // other threads are held or absent.
            unsafe { make_anonymous(piece, runs.as_slice(), traits) }.map_err(|_| Errno::NOMEM)?;
        }
        Ok(())
    })
}

/// Whether the last freeze was allowed to hold other threads.
fn may_stop_threads() -> bool {
    // Relaxed: a figure that was written before the memory was frozen.
    registry::shared().is_some_and(|shared| shared.counters.may_stop_threads.load(Ordering::Relaxed) != 0)
}

/// Prepares `range` for `mlock`: locking writes to every page of a private mapping, so that frozen memory would be held twice. In a process with other
/// threads that is put up with, since they would have to be held for each call.
///
/// # Errors
///
/// As [`thaw`].
pub fn before_mlock(range: Range<usize>) -> Result<(), Errno> {
    if !touches(range.clone()) {
        return Ok(());
    }
    let _errno = Kept::now();
    changed(range.clone());
    if world::count().map_err(|_| Errno::NOMEM)? > 1 { Ok(()) } else { thaw(range) }
}

/// Prepares the process for `mlockall(MCL_CURRENT)`, as [`before_mlock`].
///
/// # Errors
///
/// As [`thaw`].
pub fn before_mlockall() -> Result<(), Errno> {
    match registry::shared() {
        Some(shared) => before_mlock(shared.touched.bounds().range()),
        None => Ok(()),
    }
}

//! What an extent is mapped from again once its descriptor is closed.
//!
//! A view is a private mapping of the extent without rights, which nobody reads or writes. `mremap` with
//! `MREMAP_DONTUNMAP` makes a second mapping of a part of it and leaves the first (`mremap(2)`; for files since Linux
//! 5.13). The second is as good as fresh from `mmap`: nothing was ever written to it, so that it has no `anon_vma`.
//!
//! So nobody needs a descriptor, and no child gets one.

use rustix::io::Errno;

use super::calls;
use super::extent::{Extent, ExtentError};
use super::remap;
use super::span::Span;
use crate::pages::maps::Permissions;

/// The first bytes of an extent, mapped without rights. A plain value: who has it unmaps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    span: Span,
}

impl View {
    /// Maps the first `len` bytes, whole pages, right below the address `above` if there is room.
    ///
    /// # Errors
    ///
    /// [`ExtentError::Map`], [`ExtentError::Closed`].
    pub fn of(extent: &Extent, len: usize, above: usize) -> Result<Self, ExtentError> {
        let start = extent.map_near(len, above.saturating_sub(len))?;
        Ok(Self { span: Span::new(start, start + len) })
    }

    /// Where it lies.
    pub const fn span(&self) -> Span {
        self.span
    }

    /// Maps the extent's bytes from `offset` privately over `place`.
    ///
    /// # Safety
    ///
    /// 1. This view is mapped.
    /// 2. `place` is whole pages, and the caller may replace what is mapped there: its bytes are in the extent at
    ///    `offset`.
    /// 3. No other thread maps or unmaps anything there during the call.
    ///
    /// # Errors
    ///
    /// [`ExtentError::Map`]: what was mapped is still there.
    pub unsafe fn show(&self, place: Span, offset: u64, permissions: Permissions) -> Result<(), ExtentError> {
        let refused = |errno| ExtentError::Map { address: place.start, len: place.len(), errno };
        let start = usize::try_from(offset).ok().and_then(|offset| self.span.start.checked_add(offset));
        let part = start.map(|start| Span::new(start, start + place.len()));
        let part = part.filter(|part| part.intersection(self.span) == *part).ok_or(refused(Errno::INVAL))?;
        // SAFETY: 1. by (1) this view, which stays.
        let copy = unsafe { calls::duplicate(part) }.map_err(refused)?;
        let copy = Span::new(copy, copy + place.len());
        // All that may be refused comes before the place is touched.
        // SAFETY: 1. made above, and nobody else's.
        let moved = match unsafe { calls::protect(copy, permissions) } {
            // SAFETY: 1. as above; the place is the caller's to replace (2) and (3).
            Ok(()) => unsafe { remap::replace_by(copy, place) },
            Err(errno) => Err(refused(errno)),
        };
        if moved.is_err() {
            // SAFETY: 1. made above, and still there.
            let _ = unsafe { calls::unmap(copy) };
        }
        moved
    }

    /// Unmaps it.
    ///
    /// # Safety
    ///
    /// 1. This view is mapped, and no copy of this value is used afterwards.
    pub unsafe fn unmap(self) {
        // SAFETY: 1. by (1). A refusal, for too many mappings, cannot be: nothing is divided.
        let _ = unsafe { calls::unmap(self.span) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::extent::Use;
    use crate::memory::mapping::{Mapping, Protection, Source};
    use crate::pages::maps::Maps;

    const READ_WRITE: Permissions = Permissions::READ.union(Permissions::WRITE);

    #[test]
    fn an_extent_is_shown_again_and_again_without_a_descriptor() {
        let page = rustix::param::page_size();
        let place = Mapping::new(Source::Anonymous, 4 * page, Protection::ReadWrite, page).unwrap();
        let span = Span::from(place.range());
        // SAFETY: inside the mapping that this test owns.
        unsafe { place.as_ptr().wrapping_add(page).write_bytes(7, page) };
        let mut extent = Extent::create(Use::Frozen).unwrap();
        extent.store(span.start + page..span.start + 2 * page, page as u64).unwrap();
        extent.seal().unwrap();
        let view = View::of(&extent, span.len(), span.start).unwrap();
        extent.close();
        let id = extent.id();
        for _ in 0..3 {
            // SAFETY: 1. made above; 2. and 3. this test's own memory.
            unsafe { view.show(span, 0, READ_WRITE) }.unwrap();
            // SAFETY: mapped, and this test's own.
            assert_eq!(unsafe { place.as_ptr().wrapping_add(page).read_volatile() }, 7);
            // SAFETY: as above.
            unsafe { place.as_ptr().wrapping_add(page).write_volatile(9) };
        }
        // SAFETY: 1. to 3. as above: the second page alone.
        unsafe { view.show(Span::new(span.start + page, span.start + 2 * page), page as u64, READ_WRITE) }.unwrap();
        // SAFETY: mapped, and this test's own.
        assert_eq!(unsafe { place.as_ptr().wrapping_add(page).read_volatile() }, 7);
        let maps = Maps::read().unwrap();
        let of_extent = maps.iter().filter(|mapping| mapping.inode == id.inode && mapping.device == id.device);
        let lengths: usize = of_extent.map(|mapping| mapping.end - mapping.start).sum();
        assert_eq!(lengths, 8 * page, "the place and the view, and nothing is left over");
        // SAFETY: 1. as above; what is asked for is beyond it.
        assert!(unsafe { view.show(span, page as u64, READ_WRITE) }.is_err());
        // SAFETY: 1. not used afterwards.
        unsafe { view.unmap() };
    }
}

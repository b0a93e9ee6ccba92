//! Address space that is filled with mappings piece by piece.

use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags};

use super::area::{Area, reserve_aligned};
use super::error::MapError;
use super::gaps::{Growing, candidates, gaps};
use super::huge::HUGE_PAGE;
use super::mapping::{Mapping, Protection, Recovered, Source, map_over, recover};
use crate::pages::maps::Maps;

/// Reserved address space. It can only be accessed through the [`PlacedMapping`]s that are placed in it.
#[derive(Debug)]
pub struct Reservation {
    area: Area,
    /// Locked by a thread that places a view or gives one back, until the kernel has done it.
    places: Mutex<Places>,
}

/// The parts of a reservation that are not simply reserved. Lengths by offset, in bytes.
#[derive(Debug, Default)]
struct Places {
    /// Where views live; keeps two of them apart.
    taken: BTreeMap<usize, usize>,
    /// What may belong to anybody, since the kernel failed in the middle of replacing it.
    lost: BTreeMap<usize, usize>,
}

impl Places {
    fn is_free(&self, offset: usize, len: usize) -> bool {
        [&self.taken, &self.lost].into_iter().all(|places| {
            let before = places.range(..offset + len).next_back();
            before.is_none_or(|(&start, &length)| start + length <= offset)
        })
    }
}

impl Reservation {
    /// Reserves `len` bytes (a multiple of the page size) at a multiple of `align` (a power of two, in bytes).
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn new(len: usize, align: usize) -> Result<Self, MapError> {
        Ok(Self::over(reserve_aligned(len, align)?))
    }

    /// Does the same as [`new`](Self::new), with every byte within `reach` bytes of `target`, in the free gap nearest
    /// to it.
    ///
    /// # Errors
    ///
    /// [`MapError::NoneNear`] if there is no such gap, or if the gaps are unknown without `/proc`.
    pub fn near(target: usize, reach: usize, len: usize, align: usize) -> Result<Self, MapError> {
        let none = MapError::NoneNear { len, target, reach };
        let Ok(maps) = Maps::read() else { return Err(none) };
        for base in candidates(&gaps(&maps, Growing::now()), target, reach, len, align) {
            // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; kernels before 4.17 take it for a hint, checked below.
            let mapped = unsafe {
                rustix::mm::mmap_anonymous(
                    ptr::with_exposed_provenance_mut(base),
                    len,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
                )
            };
            match mapped {
                Ok(at) => {
                    let Some(at_base) = NonNull::new(at.cast::<u8>()) else { continue };
                    // SAFETY: 1. just mapped, page-aligned, and handed to its owner.
                    let reservation = Self::over(unsafe { Area::new(at_base, len) });
                    if at.addr() == base {
                        return Ok(reservation);
                    }
                }
                // Another thread took the gap meanwhile, or this process may not map there after all.
                Err(Errno::EXIST | Errno::NOMEM | Errno::INVAL | Errno::PERM) => {}
                Err(errno) => return Err(MapError::diagnose("mmap", len, errno)),
            }
        }
        Err(none)
    }

    fn over(area: Area) -> Self {
        Self { area, places: Mutex::default() }
    }

    /// Maps `len` bytes of `source` at `offset` bytes from the base.
    ///
    /// # Errors
    ///
    /// [`MapError::Place`] if the place is out of bounds, is not whole pages, or overlaps a live view; otherwise the
    /// kernel's error.
    pub fn place(
        self: &Arc<Self>,
        offset: usize,
        len: usize,
        source: Source<'_>,
        protection: Protection,
    ) -> Result<PlacedMapping, MapError> {
        self.place_as(offset, len, source, protection, Announcement::AsIs)
    }

    /// Does the same as [`place`](Self::place), for code in shared memory that `perf record` should take for anonymous
    /// memory.
    ///
    /// perf uses a perf map only for anonymous executable mappings, and takes a memfd for a file. It learns when a
    /// mapping is made, but not when it is moved (`perf_event_mmap` in `mm/mmap.c`, not in `mm/mremap.c`): so anonymous
    /// memory is mapped first, and the memory object is moved over it. If that is refused (SELinux may demand `execmem`
    /// for it), the object is placed directly.
    ///
    /// # Errors
    ///
    /// As for [`place`](Self::place).
    pub fn place_unnamed(
        self: &Arc<Self>,
        offset: usize,
        len: usize,
        source: Source<'_>,
        protection: Protection,
    ) -> Result<PlacedMapping, MapError> {
        self.place_as(offset, len, source, protection, Announcement::Anonymous)
    }

    fn place_as(
        self: &Arc<Self>,
        offset: usize,
        len: usize,
        source: Source<'_>,
        protection: Protection,
        announcement: Announcement,
    ) -> Result<PlacedMapping, MapError> {
        let page = rustix::param::page_size();
        let refused = MapError::Place { offset, wanted: len, len: self.area.len() };
        if len == 0
            || !len.is_multiple_of(page)
            || !offset.is_multiple_of(page)
            || offset.checked_add(len).is_none_or(|end| end > self.area.len())
        {
            return Err(refused);
        }
        let mut places = self.lock();
        if !places.is_free(offset, len) {
            return Err(refused);
        }
        let base = NonNull::new(self.area.as_ptr().wrapping_add(offset)).ok_or(refused)?;
        // SAFETY: 1. page multiples; mapped now, inaccessibly, until `PlacedMapping::drop` ends it.
        let area = unsafe { Area::new(base, len) };
        let is_unnamed = announcement == Announcement::Anonymous && may_execute_anonymous_memory();
        let mapped = if is_unnamed {
            // SAFETY: 1. the range lies in this reservation and, by `places`, in no other view of it.
            unsafe { move_over_anonymous(&area, source, protection) }
        } else {
            // SAFETY: 1. as above.
            unsafe { map_over(area.address(), len, source, protection) }
        };
        if let Err(error) = mapped {
            if recover(area.range().into()) == Recovered::Unknown {
                places.lost.insert(offset, len);
            }
            return Err(error);
        }
        places.taken.insert(offset, len);
        Ok(PlacedMapping { area, offset, reservation: Arc::clone(self) })
    }
}

impl Reservation {
    /// Returns whether a view can be placed at the `len` bytes from `offset` bytes behind the base.
    pub fn is_free(&self, offset: usize, len: usize) -> bool {
        self.lock().is_free(offset, len)
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Reservation {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.area
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let places = self.places.get_mut().unwrap_or_else(PoisonError::into_inner);
        let end = (self.area.len(), 0);
        let mut start = 0;
        for (offset, len) in places.lost.iter().map(|(&offset, &len)| (offset, len)).chain([end]) {
            if offset > start {
                let first = self.area.as_ptr().wrapping_add(start);
                // SAFETY: part of the range that belongs to this value, without what is lost, and no view is left: each
                // holds an `Arc` of the reservation. If it fails (ENOMEM at vm.max_map_count), the range leaks.
                let _ = unsafe { rustix::mm::munmap(first.cast(), offset - start) };
            }
            start = offset + len;
        }
    }
}

/// A mapping inside a [`Reservation`]; on drop its place becomes inaccessible and free again.
#[derive(Debug)]
pub struct PlacedMapping {
    area: Area,
    offset: usize,
    reservation: Arc<Reservation>,
}

impl Deref for PlacedMapping {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.area
    }
}

impl Drop for PlacedMapping {
    fn drop(&mut self) {
        if !self.area.is_mapped_here() {
            return;
        }
        let mut places = self.reservation.lock();
        let len = self.area.len();
        // SAFETY: 1. the range belongs to this view, which ends here.
        let cleared = unsafe { map_over(self.area.address(), len, Source::Anonymous, Protection::None) };
        places.taken.remove(&self.offset);
        // At a limit on mappings or on locked memory the kernel may refuse to unmap it. Then it stays, and its place
        // stays taken.
        if cleared.is_err() && recover(self.area.range().into()) == Recovered::Unknown {
            places.lost.insert(self.offset, len);
        }
    }
}

/// What a profiler that watches mappings should see.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Announcement {
    AsIs,
    Anonymous,
}

/// Maps anonymous memory over `area`, then moves a mapping of `source` over it. If that fails, [`recover`] tells whose
/// the range is.
///
/// # Safety
///
/// 1. The range belongs to the caller, and there is no reference into it.
unsafe fn move_over_anonymous(area: &Area, source: Source<'_>, protection: Protection) -> Result<(), MapError> {
    let len = area.len();
    let elsewhere = ManuallyDrop::new(Mapping::new(source, len, protection, HUGE_PAGE)?);
    // SAFETY: the caller's contract.
    let moved = unsafe { map_over(area.address(), len, Source::Anonymous, protection) }.and_then(|()| {
        let (from, to) = (elsewhere.as_ptr().cast(), area.as_ptr().cast());
        // SAFETY: both ranges belong to the caller, are of equal length, and unreferenced; this gives up the old one.
        unsafe { rustix::mm::mremap_fixed(from, len, len, MremapFlags::MAYMOVE, to) }
            .map(drop)
            .map_err(|errno| MapError::diagnose("mremap", len, errno))
    });
    if moved.is_err() {
        drop(ManuallyDrop::into_inner(elsewhere));
    }
    moved
}

/// Returns whether this process may have anonymous executable memory.
fn may_execute_anonymous_memory() -> bool {
    let page = rustix::param::page_size();
    Mapping::new(Source::Anonymous, page, Protection::ReadExecute, page).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn views_do_not_overlap_and_places_come_back() {
        let reservation = Arc::new(Reservation::new(8 * MIB, 2 * MIB).unwrap());
        let first = reservation.place(0, 2 * MIB, Source::Anonymous, Protection::ReadWrite).unwrap();
        for (offset, len) in [(0, MIB), (MIB, MIB), (MIB, 4 * MIB), (7 * MIB, 2 * MIB), (1, MIB), (0, 0)] {
            let error = reservation.place(offset, len, Source::Anonymous, Protection::Read).unwrap_err();
            assert!(matches!(error, MapError::Place { .. }), "{error}");
        }
        let second = reservation.place(2 * MIB, MIB, Source::Anonymous, Protection::Read).unwrap();
        assert_eq!(second.address(), first.address() + 2 * MIB);
        drop(first);
        reservation.place(MIB, MIB, Source::Anonymous, Protection::Read).unwrap();
    }

    #[test]
    fn an_unnamed_view_shows_the_object_and_leaves_nothing_elsewhere() {
        let reservation = Arc::new(Reservation::new(4 * MIB, 2 * MIB).unwrap());
        let memory = crate::SharedMemory::create("unnamed-test", 2 * MIB, crate::Pages::Base).unwrap();
        let source = Source::Shared(&memory);
        let alias = Mapping::unforked(source, 2 * MIB, 2 * MIB).unwrap();
        let view = reservation.place_unnamed(2 * MIB, 2 * MIB, source, Protection::ReadExecute).unwrap();
        // SAFETY: mapped writable, and nobody else has its address.
        unsafe { alias.as_ptr().write(9) };
        // SAFETY: mapped readable.
        assert_eq!(unsafe { view.as_ptr().read() }, 9);
        let maps = Maps::read().unwrap();
        let named = |entry: &&crate::pages::maps::MapEntry| {
            entry.path.as_ref().is_some_and(|path| path.to_string_lossy().contains("unnamed-test"))
        };
        assert_eq!(maps.iter().filter(named).count(), 2);
    }

    #[test]
    fn near_means_within_reach() {
        let target = near_means_within_reach as fn() as usize;
        let reach = crate::arch::DIRECT_BRANCH_REACH;
        let near = Reservation::near(target, reach, 16 * MIB, 2 * MIB).unwrap();
        assert_eq!(near.address() % (2 * MIB), 0);
        let range = near.range();
        assert!(range.start.abs_diff(target) <= reach && range.end.abs_diff(target) <= reach);
        let error = Reservation::near(target, 16 * MIB, 64 * MIB, 2 * MIB).unwrap_err();
        assert!(error.to_string().contains(&format!("{target:#x}")), "{error}");
    }
}

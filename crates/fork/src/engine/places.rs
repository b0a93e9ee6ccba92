//! Finds what is mapped where, for a slice: one mapping at a time if the kernel can tell (Linux 6.11), else from a
//! list.

use std::time::Duration;

use palimpsest_sys::brief_file::BriefFile;
use palimpsest_sys::memory::span::Span;
use palimpsest_sys::pages::maps::Permissions;
use palimpsest_sys::pages::query;
use palimpsest_sys::pages::vmas::{Detail, Label, Vma, Vmas, VmasError};
use rustix::fd::AsFd;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::budget::Stopped;
use crate::clock::CpuMoment;
use crate::error::FreezeError;

/// Mappings with fewer pages are left alone. The C library's own mappings that children must not get are that small,
/// and a slice does not see their flags.
const LEAST_PAGES: usize = 16;

/// Slices that gather list this many mappings in any case. A list takes up to a microsecond for each.
const LEAST_LISTED: usize = 1000;

/// Who is asked.
#[derive(Debug)]
pub(crate) enum Places {
    /// The kernel, through this file.
    Asked(BriefFile),
    /// A list that was read at the start of the slice.
    Listed,
}

impl Places {
    /// Opens the file, or finds that a list must be read.
    pub(crate) fn open() -> Result<Self, FreezeError> {
        // Of the thread: the first one, to which the process's name leads, has no memory once it has ended.
        let file = BriefFile::open(c"/proc/thread-self/maps", OFlags::RDONLY)
            .map_err(|source| FreezeError::NoProc { path: "/proc/thread-self/maps", source })?;
        Ok(if query::next_above(file.as_fd(), 0).is_ok() { Self::Asked(file) } else { Self::Listed })
    }

    /// Reads the list if there must be one. It is true as long as the caller holds the process still.
    pub(crate) fn begin(&self, list: &mut Vmas) -> Result<(), VmasError> {
        match self {
            Self::Asked(_) => Ok(()),
            Self::Listed => list.read(Detail::Places),
        }
    }

    /// Does the same for a slice of this length that holds nobody. The list may be out of date at once: it tells where
    /// to look, and what is there the caller asks the kernel, right before it asks for huge pages.
    pub(crate) fn begin_beside(&self, list: &mut Vmas, slice: Duration) -> Result<(), Stopped> {
        let Self::Listed = self else { return Ok(()) };
        let most = usize::try_from(slice.as_micros()).unwrap_or(usize::MAX).max(LEAST_LISTED);
        list.read_most(Detail::Places, most).map_err(|error| match error {
            VmasError::TooMany(_) => Stopped::List { most },
            other => other.into(),
        })
    }

    /// Returns the first mapping that ends above `address`.
    pub(super) fn next_above(&self, list: &Vmas, address: usize) -> Option<Vma> {
        self.look_above(list, address).ok().flatten()
    }

    /// Returns the same for those to whom "nothing" and "not told" differ.
    pub(crate) fn look_above(&self, list: &Vmas, address: usize) -> Result<Option<Vma>, Errno> {
        match self {
            Self::Asked(file) => match query::next_above(file.as_fd(), address) {
                Ok(vma) => Ok(Some(vma)),
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(errno),
            },
            Self::Listed => Ok(list.get(list.partition_point(|vma| vma.end <= address)).copied()),
        }
    }

    /// Returns the kind of a mapping, by its name.
    pub(crate) fn label(&self, vma: &Vma) -> Result<Label, Errno> {
        match self {
            Self::Asked(file) => query::label_at(file.as_fd(), vma.start),
            Self::Listed => Ok(vma.label),
        }
    }

    /// Whether all of `piece` lies in one private anonymous mapping that the program may write to.
    pub(super) fn is_private(&self, list: &Vmas, piece: Span) -> bool {
        self.next_above(list, piece.start).is_some_and(|vma| {
            let is_whole = vma.start <= piece.start && piece.end <= vma.end;
            is_whole && is_still_eligible(&vma) && vma.permissions.contains(Permissions::WRITE)
        })
    }
}

/// What a run of pieces is in, for whoever holds nobody and is about to write to it: the slice's own list may be out of
/// date by then. Where mappings must be listed, it lists them anew, once, when it is asked first.
#[derive(Debug)]
pub(super) struct Anew<'a> {
    places: &'a Places,
    slice: Duration,
    listed: Option<Result<(), Stopped>>,
    took: u64,
}

impl<'a> Anew<'a> {
    pub(super) const fn new(places: &'a Places, slice: Duration) -> Self {
        Self { places, slice, listed: None, took: 0 }
    }

    /// Whether all of `piece` lies in one private anonymous mapping that the program may write to, as far as is known.
    pub(super) fn is_private(&mut self, list: &mut Vmas, piece: Span) -> bool {
        let (places, slice, took) = (self.places, self.slice, &mut self.took);
        let listed = self.listed.get_or_insert_with(|| {
            let before = CpuMoment::now();
            let listed = places.begin_beside(list, slice);
            *took = before.elapsed();
            listed
        });
        listed.is_ok() && places.is_private(list, piece)
    }

    /// Returns the nanoseconds that the list has taken. If it could not be read, none can be used until it is read
    /// again.
    pub(super) fn end(self) -> Result<u64, Stopped> {
        self.listed.transpose().map(|_| self.took)
    }
}

/// Whether a part of this mapping, planned as one that can be frozen, still can be: rights may have changed, and
/// something else may be there.
pub(super) fn is_still_eligible(vma: &Vma) -> bool {
    let has = |permission| vma.permissions.contains(permission);
    let is_ordinary = has(Permissions::READ) && !has(Permissions::EXECUTE) && !has(Permissions::SHARED);
    is_ordinary && vma.inode == 0 && vma.range().len() >= LEAST_PAGES * rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use palimpsest_sys::memory::calls;
    use palimpsest_sys::memory::vec::leak_zeroed;

    use super::*;

    /// Fails on: a file's page, or memory that must not be written to, taken for private memory.
    #[test]
    fn memory_is_private_until_something_else_is_mapped_there() {
        use rustix::mm::{MapFlags, ProtFlags};
        let page = rustix::param::page_size();
        let memory = leak_zeroed(3 * LEAST_PAGES * page).expect("memory");
        let start = memory.as_ptr().expose_provenance();
        let at = |pages: usize| start + pages * LEAST_PAGES * page;
        let (whole, middle) = (Span::new(at(0), at(3)), Span::new(at(1), at(2)));
        let mut list = Vmas::with_capacity(1 << 16).expect("memory");
        let mut told = |piece: Span| {
            list.read(Detail::Places).expect("/proc");
            let listed = Places::Listed.is_private(&list, piece);
            let asked = Places::open().expect("/proc");
            assert_eq!(asked.is_private(&list, piece), listed, "{piece:?}");
            listed
        };
        assert!(told(whole) && told(middle));
        // SAFETY: 1. this test's memory, which nobody writes to.
        unsafe { calls::protect(middle, Permissions::READ) }.expect("mprotect");
        assert!(!told(whole) && !told(middle));
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let (place, rights) = (std::ptr::with_exposed_provenance_mut(middle.start), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: this test's memory, which is not used any more.
        unsafe { rustix::mm::mmap(place, middle.len(), rights, MapFlags::PRIVATE | MapFlags::FIXED, &file, 0) }
            .expect("mmap");
        assert!(!told(middle) && told(Span::new(at(0), at(1))));
    }

    /// Fails on: a list for each piece; a list that was cut short, and is taken for all there is.
    #[test]
    fn mappings_are_listed_once_for_a_run_and_a_failed_list_is_told() {
        let page = rustix::param::page_size();
        let memory = leak_zeroed(2 * LEAST_PAGES * page).expect("memory");
        let start = memory.as_ptr().expose_provenance();
        let piece = Span::new(start, start + LEAST_PAGES * page);
        let mut list = Vmas::with_capacity(1 << 16).expect("memory");
        let mut anew = Anew::new(&Places::Listed, Duration::ZERO);
        assert!(anew.is_private(&mut list, piece));
        // SAFETY: 1. this test's memory, which nobody writes to.
        unsafe { calls::protect(piece, Permissions::READ) }.expect("mprotect");
        assert!(anew.is_private(&mut list, piece), "listed again");
        assert!(anew.end().expect("listed") > 0);
        let untouched = Anew::new(&Places::Listed, Duration::ZERO);
        assert_eq!(untouched.end().expect("nobody has asked"), 0);
        let mut short = Vmas::with_capacity(1).expect("memory");
        let mut anew = Anew::new(&Places::Listed, Duration::ZERO);
        assert!(!anew.is_private(&mut short, piece));
        assert!(anew.end().is_err());
    }

    #[test]
    fn both_ways_tell_the_same() {
        let mut list = Vmas::with_capacity(1 << 16).expect("memory");
        list.read(Detail::Places).expect("/proc");
        let asked = Places::open().expect("/proc");
        if matches!(asked, Places::Listed) {
            return println!("skipped: a kernel before 6.11");
        }
        let here = std::hint::black_box([0_u8; 1]);
        let place = here.as_ptr().addr();
        for address in [place, both_ways_tell_the_same as fn() as usize] {
            let told = [&asked, &Places::Listed].map(|way| way.next_above(&list, address).expect("mapped"));
            assert_eq!(told[0].permissions, told[1].permissions);
            assert_eq!((told[0].start, told[0].inode), (told[1].start, told[1].inode));
        }
    }
}

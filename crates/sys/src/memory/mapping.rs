//! Mappings that end with their owner, and their rights.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use super::area::{Area, OnFork, reserve_aligned};
use super::error::MapError;
use super::sealed_file::SealedFile;
use super::shared_memory::SharedMemory;
use super::span::Span;

/// The rights of a mapping. There is no value for *writable and executable*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No access: only address space.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    ReadWrite,
    /// Reads and instruction fetch.
    ReadExecute,
    /// The same; branches through registers lead to landing pads only, where the machine checks that
    /// ([`landing_pad_rights`](crate::arch::landing_pad_rights)).
    ReadExecuteFromLandingPads,
}

impl Protection {
    fn map_flags(self) -> ProtFlags {
        match self {
            Self::None => ProtFlags::empty(),
            Self::Read => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Self::ReadExecute => ProtFlags::READ | ProtFlags::EXEC,
            Self::ReadExecuteFromLandingPads => ProtFlags::READ | ProtFlags::EXEC | crate::arch::landing_pad_rights(),
        }
    }
}

/// What a mapping shows.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Zeroed private memory.
    Anonymous,
    /// The start of a memory object, shared with its other mappings.
    Shared(&'a SharedMemory),
    /// The start of a constant memory object, shared with its other mappings.
    Sealed(&'a SealedFile),
    /// The start of another process's memory object, which that process may change.
    Foreign(BorrowedFd<'a>),
}

/// A mapping at an address that the kernel chooses; unmapped on drop.
#[derive(Debug)]
pub struct Mapping(Area);

impl Mapping {
    /// Maps `len` bytes (a multiple of the page size) of `source` at a multiple of `align` (a power of two, in bytes).
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn new(source: Source<'_>, len: usize, protection: Protection, align: usize) -> Result<Self, MapError> {
        let mapping = ManuallyDrop::new(Self(reserve_aligned(len, align)?));
        // SAFETY: the range is only ours, just reserved, and there is no reference into it.
        match unsafe { map_over(mapping.address(), len, source, protection) } {
            Ok(()) => Ok(ManuallyDrop::into_inner(mapping)),
            Err(error) => {
                if recover(mapping.range().into()) == Recovered::Ours {
                    drop(ManuallyDrop::into_inner(mapping));
                }
                Err(error)
            }
        }
    }

    /// Maps `source` for reading and writing so that no forked child ever gets it, not even one that another thread
    /// forks during this call.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn unforked(source: Source<'_>, len: usize, align: usize) -> Result<Self, MapError> {
        let mapping = Self::new(source, len, Protection::None, align)?;
        mapping.on_fork(OnFork::Omit)?;
        mapping.set_protection(MprotectFlags::READ | MprotectFlags::WRITE)?;
        Ok(mapping)
    }
}

impl Deref for Mapping {
    type Target = Area;

    fn deref(&self) -> &Area {
        &self.0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.0.is_mapped_here() {
            return;
        }
        // SAFETY: the range belongs to this value (invariant 1), which ends here. The only possible error for a whole
        // mapping is ENOMEM at vm.max_map_count, where the range leaks.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.0.len()) };
    }
}

/// The owner of a range after [`map_over`] has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovered {
    /// The caller: it is inaccessible address space again.
    Ours,
    /// Unknown: perhaps the caller, perhaps somebody else by now. It must never be touched again.
    Unknown,
}

/// Tries to take back a range after [`map_over`] has failed.
///
/// The kernel may have unmapped the old mapping before it found that it could not make the new one (`mmap(2)`,
/// `MAP_FIXED`; it does so when the pool of huge pages is empty), and another thread's mapping may lie there by now.
pub(crate) fn recover(span: Span) -> Recovered {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let place = ptr::with_exposed_provenance_mut(span.start);
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; kernels before 4.17 take it for a hint, checked below.
    match unsafe { rustix::mm::mmap_anonymous(place, span.len(), ProtFlags::empty(), flags) } {
        Ok(at) if at.addr() == span.start => Recovered::Ours,
        Ok(elsewhere) => {
            // SAFETY: made just now, and only known here.
            let _ = unsafe { rustix::mm::munmap(elsewhere, span.len()) };
            Recovered::Unknown
        }
        Err(_) => Recovered::Unknown,
    }
}

/// Does the same for a private mapping of a file, of which the kernel tells by `errno` why it refused it: what it asks
/// before it unmaps anything (`do_mmap` in `mm/mmap.c`: a file system without execution, or without mappings) leaves
/// the old mapping.
pub(crate) fn recover_from(errno: Errno, span: Span) -> Recovered {
    match errno {
        Errno::PERM | Errno::ACCESS | Errno::NODEV => Recovered::Ours,
        _ => recover(span),
    }
}

/// Replaces what is mapped at `address..address + len` in one step. If that fails, [`recover`] tells whose the range
/// is.
///
/// # Safety
///
/// 1. The range belongs to the caller, and there is no reference into it.
pub(crate) unsafe fn map_over(
    address: usize,
    len: usize,
    source: Source<'_>,
    protection: Protection,
) -> Result<(), MapError> {
    let at = ptr::with_exposed_provenance_mut(address);
    let flags = protection.map_flags();
    match source {
        Source::Anonymous => {
            // SAFETY: the range belongs to the caller (1).
            unsafe {
                rustix::mm::mmap_anonymous(at, len, flags, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE)
            }
        }
        Source::Shared(memory) => {
            // SAFETY: the range belongs to the caller (1); other mappings of the object are accessed only as raw
            // memory.
            unsafe { rustix::mm::mmap(at, len, flags, MapFlags::SHARED | MapFlags::FIXED, memory.as_fd(), 0) }
        }
        Source::Foreign(file) => {
            // SAFETY: the range belongs to the caller (1); as above.
            unsafe { rustix::mm::mmap(at, len, flags, MapFlags::SHARED | MapFlags::FIXED, file, 0) }
        }
        Source::Sealed(file) => file.verified().and_then(|file| {
            // SAFETY: the range belongs to the caller (1).
            unsafe { rustix::mm::mmap(at, len, flags, MapFlags::SHARED | MapFlags::FIXED, file, 0) }
        }),
    }
    .map(drop)
    .map_err(|errno| MapError::diagnose("mmap", len, errno))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::Pages;
    use crate::pages::maps::Maps;
    use crate::proc::sysctl;

    #[test]
    fn two_views_show_the_same_bytes() {
        let page = rustix::param::page_size();
        let memory = SharedMemory::create("test", page, Pages::Base).unwrap();
        let write = Mapping::unforked(Source::Shared(&memory), page, page).unwrap();
        let read = Mapping::new(Source::Shared(&memory), page, Protection::ReadExecute, 1 << 21).unwrap();
        assert_eq!(read.address() % (1 << 21), 0);
        // SAFETY: the page is mapped writable and nobody else has its address.
        unsafe { write.as_ptr().write(7) };
        // SAFETY: the page is mapped readable.
        assert_eq!(unsafe { read.as_ptr().read() }, 7);
    }

    #[test]
    fn rights_are_those_asked_for() {
        let page = rustix::param::page_size();
        for (protection, letters) in [
            (Protection::None, "---p"),
            (Protection::Read, "r--p"),
            (Protection::ReadWrite, "rw-p"),
            (Protection::ReadExecute, "r-xp"),
            (Protection::ReadExecuteFromLandingPads, "r-xp"),
        ] {
            let mapping = Mapping::new(Source::Anonymous, 2 * page, protection, page).unwrap();
            let maps = Maps::read().unwrap();
            let entry = maps.at(mapping.address()).unwrap();
            assert_eq!(entry.permissions.to_string(), letters);
        }
    }

    /// With an empty pool of huge pages the kernel unmaps first and then fails.
    #[test]
    fn a_mapping_that_fails_takes_nobody_elses_memory() {
        let huge = crate::HUGE_PAGE;
        let free = sysctl::free_huge_pages_2_mib().unwrap_or(0) as usize;
        let Ok(memory) = SharedMemory::create("test", (free + 1) * huge, Pages::Hugetlb) else {
            eprintln!("skipped: no hugetlbfs here");
            return;
        };
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mapping = Mapping::new(Source::Anonymous, huge, Protection::ReadWrite, huge).unwrap();
                    for page in (0..huge).step_by(4096) {
                        // SAFETY: in bounds of a writable mapping that nobody else has.
                        unsafe { mapping.as_ptr().wrapping_add(page).write(1) };
                    }
                }
            });
            for _ in 0..2000 {
                Mapping::new(Source::Shared(&memory), memory.len(), Protection::ReadWrite, huge).unwrap_err();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn more_than_the_address_space_is_an_error() {
        let error = Mapping::new(Source::Anonymous, 1 << 60, Protection::None, 4096).unwrap_err();
        assert!(error.to_string().contains(&(1_usize << 60).to_string()), "{error}");
    }

    #[test]
    fn alignment_costs_no_address_space() {
        const ALIGN: usize = 1 << 30;
        let in_use = || Maps::read().unwrap().iter().map(|entry| entry.range().len()).sum::<usize>();
        let page = rustix::param::page_size();
        let before = in_use();
        let aligned = || Mapping::new(Source::Anonymous, page, Protection::None, ALIGN).unwrap();
        let _kept: Vec<_> = (0..64).map(|_| aligned()).collect();
        // Other tests of this process map megabytes meanwhile, but not gigabytes.
        assert!(in_use().saturating_sub(before) < 8 * ALIGN);
    }
}

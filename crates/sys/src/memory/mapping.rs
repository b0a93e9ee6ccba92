//! Mappings that end with their owner, and the rights that they can have.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{ControlFlow, Deref, Range};
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::Resource;

use crate::memory::sealed::SealedFile;
use crate::memory::shared_memory::SharedMemory;
use crate::pages::vmas::each_mapping;
use crate::proc::sysctl;

/// What a mapping may be used for. There is no value for *writable and executable*.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// No access: address space alone.
    None,
    /// Reads.
    Read,
    /// Reads and writes.
    ReadWrite,
    /// Reads and instruction fetch.
    ReadExecute,
}

impl Protection {
    fn map_flags(self) -> ProtFlags {
        match self {
            Self::None => ProtFlags::empty(),
            Self::Read => ProtFlags::READ,
            Self::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
            Self::ReadExecute => ProtFlags::READ | ProtFlags::EXEC,
        }
    }
}

/// What a mapping shows.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Zeroed memory of this process alone.
    Anonymous,
    /// The start of a memory object, shared with its other mappings.
    Shared(&'a SharedMemory),
    /// The start of a memory object that nobody can change, shared with its other mappings.
    Sealed(&'a SealedFile),
}

/// What a process that is forked from this one gets of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFork {
    /// The mapping: the same memory if shared, a copy if private.
    Inherit,
    /// Nothing at these addresses (`MADV_DONTFORK`).
    Omit,
    /// The addresses, filled with zeros (`MADV_WIPEONFORK`; private anonymous memory only).
    Wipe,
}

/// Why memory could not be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The process has nearly as many mappings as the kernel grants.
    #[error("cannot map {len} bytes: the process has {count} mappings and vm.max_map_count is {limit}; raise it (`sysctl -w vm.max_map_count={}`)", limit * 4)]
    TooManyMappings {
        /// Bytes that were wanted.
        len: usize,
        /// Mappings at the time of the failure.
        count: usize,
        /// The kernel's limit.
        limit: u64,
    },
    /// The process may not have that much address space.
    #[error(
        "cannot map {len} bytes: RLIMIT_AS is {limit} bytes; raise it (`ulimit -v unlimited`) or ask for a smaller region"
    )]
    AddressSpaceLimit {
        /// Bytes that were wanted.
        len: usize,
        /// The soft limit, in bytes.
        limit: u64,
    },
    /// All memory is to be locked (`mlockall(MCL_FUTURE)`), and the process may not lock so much.
    #[error(
        "cannot map {len} bytes, which would be locked: RLIMIT_MEMLOCK is {limit} bytes; raise it (`ulimit -l unlimited`) or do without MCL_FUTURE"
    )]
    LockedLimit {
        /// Bytes that were wanted.
        len: usize,
        /// The soft limit, in bytes.
        limit: u64,
    },
    /// A place was asked for that is out of bounds or already in use.
    #[error("bytes {offset:#x}..{end:#x} of a reservation of {len:#x} bytes are out of bounds, misaligned or occupied", end = offset.saturating_add(*wanted))]
    Place {
        /// Start of the place, in bytes from the reservation's base.
        offset: usize,
        /// Length of the place, in bytes.
        wanted: usize,
        /// Length of the reservation, in bytes.
        len: usize,
    },
    /// No gap of the address space is near enough to the target.
    #[error(
        "no {len} free bytes within {reach:#x} bytes of {target:#x}; ask for a smaller region or let it lie anywhere"
    )]
    NoneNear {
        /// Bytes that were wanted.
        len: usize,
        /// The address to be near to.
        target: usize,
        /// The largest allowed distance, in bytes.
        reach: usize,
    },
    /// The kernel refused for another reason.
    #[error("the kernel refused {call} of {len} bytes")]
    Kernel {
        /// The system call.
        call: &'static str,
        /// Bytes that were wanted.
        len: usize,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

impl MapError {
    /// Finds out which limit an errno stands for; the kernel has one for several.
    pub(crate) fn diagnose(call: &'static str, len: usize, errno: Errno) -> Self {
        let limit = |resource| rustix::process::getrlimit(resource).current;
        match errno {
            Errno::NOMEM => {
                // Without the heap, for which there may be no mapping left either.
                let (mut count, mut used) = (0_usize, 0_u64);
                let counted = each_mapping(&mut |mapping| {
                    count += 1;
                    used += (mapping.end - mapping.start) as u64;
                    ControlFlow::Continue(())
                });
                if counted.is_ok()
                    && let Ok(limit) = sysctl::max_map_count()
                    // A fixed mapping inside another needs two more than it ends with.
                    && count as u64 + 3 > limit
                {
                    return Self::TooManyMappings { len, count, limit };
                }
                let is_above = |limit: &u64| used + len as u64 > *limit || counted.is_err();
                if let Some(limit) = limit(Resource::As).filter(is_above) {
                    return Self::AddressSpaceLimit { len, limit };
                }
            }
            // `mlock_future_ok` in mm/mmap.c.
            Errno::AGAIN => {
                if let Some(limit) = limit(Resource::Memlock) {
                    return Self::LockedLimit { len, limit };
                }
            }
            _ => {}
        }
        Self::Kernel { call, len, source: errno.into() }
    }
}

/// Where a live mapping lies. Owners ([`Mapping`], [`View`](crate::View)) deref to it.
#[derive(Debug)]
pub struct Area {
    /// # Invariants
    ///
    /// 1. `base..base + len` is mapped by this process for as long as the owner lives, and by nobody else's account;
    ///    but not in a forked child that does not get the mapping.
    /// 2. Both are multiples of the page size.
    base: NonNull<u8>,
    len: usize,
    /// The only process that has the mapping, if forked children do not get it; zero if they do.
    omitted_from_children_of: AtomicI32,
}

// SAFETY: an area is an address range; whoever reads or writes through it does so by unsafe code of its own.
unsafe impl Send for Area {}
// SAFETY: as above; the methods only pass the range to the kernel.
unsafe impl Sync for Area {}

impl Area {
    /// # Safety
    ///
    /// 1. `base..base + len` is mapped, page-aligned, and stays so until the owner of this value is dropped.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len, omitted_from_children_of: AtomicI32::new(0) }
    }

    /// Whether the mapping is there: it is not in a child that did not get it, where other memory may lie by now.
    pub(crate) fn is_mapped_here(&self) -> bool {
        // Relaxed: set long before any fork that matters.
        match self.omitted_from_children_of.load(Ordering::Relaxed) {
            0 => true,
            owner => owner == own_pid(),
        }
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// First address.
    pub fn address(&self) -> usize {
        self.base.as_ptr().addr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Always false: the kernel maps no empty range.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The addresses.
    pub fn range(&self) -> Range<usize> {
        self.address()..self.address() + self.len
    }

    /// Tells the kernel what a forked child gets of this area.
    ///
    /// # Errors
    ///
    /// [`MapError::Kernel`]: `EINVAL` for [`OnFork::Wipe`] of shared memory or before Linux 4.14.
    pub fn on_fork(&self, what: OnFork) -> Result<(), MapError> {
        let advice = match what {
            OnFork::Inherit => Advice::LinuxDoFork,
            OnFork::Omit => Advice::LinuxDontFork,
            OnFork::Wipe => Advice::LinuxWipeOnFork,
        };
        self.advise(advice)?;
        let owner = if what == OnFork::Omit { own_pid() } else { 0 };
        self.omitted_from_children_of.store(owner, Ordering::Relaxed);
        Ok(())
    }

    /// Asks for transparent huge pages at the first touch (`MADV_HUGEPAGE`).
    ///
    /// # Errors
    ///
    /// [`MapError::Kernel`]: `EINVAL` where the kernel has none.
    pub fn prefer_huge_pages(&self) -> Result<(), MapError> {
        self.advise(Advice::LinuxHugepage)
    }

    fn advise(&self, advice: Advice) -> Result<(), MapError> {
        // SAFETY: the range is mapped (invariant 1); none of the advices above drops this process's contents.
        unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }
            .map_err(|errno| MapError::diagnose("madvise", self.len, errno))
    }

    pub(crate) fn set_protection(&self, protection: MprotectFlags) -> Result<(), MapError> {
        // SAFETY: the range is mapped (invariant 1); callers in this crate pick rights that never join write and
        // execute and hold no reference into it.
        unsafe { rustix::mm::mprotect(self.base.as_ptr().cast(), self.len, protection) }
            .map_err(|errno| MapError::diagnose("mprotect", self.len, errno))
    }
}

/// A mapping at an address of the kernel's choice; unmapped on drop.
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
        // SAFETY: the range is ours alone, just reserved, and nobody has a reference into it.
        match unsafe { map_over(mapping.address(), len, source, protection) } {
            Ok(()) => Ok(ManuallyDrop::into_inner(mapping)),
            Err(error) => {
                if recover(&mapping) == Recovered::Ours {
                    drop(ManuallyDrop::into_inner(mapping));
                }
                Err(error)
            }
        }
    }

    /// Maps `source` for reading and writing in such a way that no forked child ever sees it, not even one that is
    /// forked by another thread during this call.
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
        // SAFETY: the range is this value's own (invariant 1) and the value is gone after this.
        // An error is impossible for a whole mapping but for ENOMEM at vm.max_map_count, where the range leaks.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.0.len()) };
    }
}

/// Takes `len` bytes of inaccessible address space at a multiple of `align`, and nothing beside them.
pub(crate) fn reserve_aligned(len: usize, align: usize) -> Result<Area, MapError> {
    let page = rustix::param::page_size();
    let padded = if align > page { len.saturating_add(align - page) } else { len };
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let start = unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), padded, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
    }
    .map_err(|errno| MapError::diagnose("mmap", padded, errno))?
    .cast::<u8>();
    let head = start.addr().next_multiple_of(align) - start.addr();
    let base = start.wrapping_add(head);
    trim(start, head);
    trim(base.wrapping_add(len), padded - head - len);
    let base = NonNull::new(base).ok_or(MapError::Kernel {
        call: "mmap",
        len,
        source: io::Error::from(io::ErrorKind::AddrNotAvailable),
    })?;
    // SAFETY: 1. the range was mapped above, start and length are page multiples, and it is handed to its owner here.
    Ok(unsafe { Area::new(base, len) })
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn trim(start: *mut u8, len: usize) {
    if len > 0 {
        // SAFETY: the range is part of the mapping that `reserve_aligned` has just made and given to nobody.
        // Were it refused, some address space would stay reserved and unused.
        let _ = unsafe { rustix::mm::munmap(start.cast(), len) };
    }
}

/// Whose a range is after [`map_over`] has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovered {
    /// Inaccessible address space of the caller again.
    Ours,
    /// Perhaps still what the caller had there, perhaps by now somebody else's: never to be touched again.
    Unknown,
}

/// Takes a range back after [`map_over`] has failed.
///
/// The kernel may have unmapped the old mapping before it found that it could not make the new one (`mmap(2)`,
/// `MAP_FIXED`; so it does where the pool of huge pages is empty), and another thread's mapping may lie there by now.
pub(crate) fn recover(area: &Area) -> Recovered {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; kernels before 4.17 take it for a hint, checked below.
    match unsafe { rustix::mm::mmap_anonymous(area.as_ptr().cast(), area.len(), ProtFlags::empty(), flags) } {
        Ok(at) if at.addr() == area.address() => Recovered::Ours,
        Ok(elsewhere) => {
            // SAFETY: made this instant, and nobody else's.
            let _ = unsafe { rustix::mm::munmap(elsewhere, area.len()) };
            Recovered::Unknown
        }
        Err(_) => Recovered::Unknown,
    }
}

/// Replaces what is mapped at `address..address + len` in one step. If that fails, [`recover`] must be asked whose the
/// range is.
///
/// # Safety
///
/// 1. The range belongs to the caller, and no reference into it is live.
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
            // SAFETY: the range is the caller's own (1).
            unsafe {
                rustix::mm::mmap_anonymous(at, len, flags, MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE)
            }
        }
        Source::Shared(memory) => {
            // SAFETY: the range is the caller's own (1); other mappings of the object are raw memory to everybody.
            unsafe { rustix::mm::mmap(at, len, flags, MapFlags::SHARED | MapFlags::FIXED, memory.as_fd(), 0) }
        }
        Source::Sealed(file) => file.verified().and_then(|file| {
            // SAFETY: the range is the caller's own (1).
            unsafe { rustix::mm::mmap(at, len, flags, MapFlags::SHARED | MapFlags::FIXED, file, 0) }
        }),
    }
    .map(drop)
    .map_err(|errno| MapError::diagnose("mmap", len, errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use crate::pages::maps::Maps;

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
        ] {
            let mapping = Mapping::new(Source::Anonymous, 2 * page, protection, page).unwrap();
            let maps = Maps::read().unwrap();
            let entry = maps.at(mapping.address()).unwrap();
            assert_eq!(entry.permissions.to_string(), letters);
        }
    }

    /// An empty pool of huge pages makes the kernel unmap first and fail then.
    #[test]
    fn a_mapping_that_fails_takes_nobody_elses_memory() {
        let huge = crate::HUGE_PAGE;
        let free = sysctl::free_huge_pages_2_mib().unwrap_or(0) as usize;
        let Ok(memory) = SharedMemory::create("test", (free + 1) * huge, Pages::Hugetlb) else {
            eprintln!("SKIPPED: no hugetlbfs here");
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
        // Other tests of this process map megabytes meanwhile, not gigabytes.
        assert!(in_use().saturating_sub(before) < 8 * ALIGN);
    }
}

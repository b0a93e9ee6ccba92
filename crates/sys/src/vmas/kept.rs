//! Asking about mappings where no file can be opened any more: at the limit of descriptors, and after a `chroot` to where there is no `/proc`.
//!
//! Two descriptors are kept: the process's own `maps`, and the directory `/proc`, through which a forked child finds *its* `maps` and flags are read.
//! Programs close descriptors that they do not know, and open others with their numbers. So each is known by its file too, which is looked at before
//! each use, and what is lost is opened anew if that is possible. A program may have opened the same files, so a descriptor is only closed if it has the mark of those
//! opened here: they do not block, which nobody asks of such a file.
//!
//! Whoever asks takes no lock. Who replaces a descriptor has a lock that is only ever tried; a reader who sees half of a replacement finds that number
//! and file do not belong together, and opens a file for itself.

use std::ffi::CStr;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::query::{label_of, next_above};
use super::{Detail, Vma, VmasError, find_above};
use crate::extent::out_of_the_way;

/// The descriptors. Zeroed memory is a valid one that has none yet; it may lie in memory that children inherit.
#[derive(Debug, Default)]
pub struct KeptMaps {
    /// Process id of who replaces a descriptor; 0 for nobody. A child takes over what its parent held.
    holder: AtomicI32,
    /// Whose `maps` it is.
    process: AtomicI32,
    maps: Kept,
    proc: Kept,
}

/// A descriptor and its file.
#[derive(Debug, Default)]
struct Kept {
    /// The number and one; 0 for none.
    descriptor: AtomicI32,
    device: AtomicU64,
    inode: AtomicU64,
}

impl Kept {
    /// The descriptor, if it still is that file's.
    fn verified(&self) -> Option<BorrowedFd<'_>> {
        // Relaxed, here and below: what is read is compared with what the kernel says.
        let number = self.descriptor.load(Ordering::Relaxed).checked_sub(1).filter(|number| *number >= 0)?;
        // SAFETY: not -1. The number may be another file's by now, or nobody's; the call below finds out. Between that and its use only a program that closes
        // what it does not know could make it another's, and what is done with it is to ask and to read.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let stat = rustix::fs::fstat(fd).ok()?;
        let known = (self.device.load(Ordering::Relaxed), self.inode.load(Ordering::Relaxed));
        (known == (stat.st_dev, stat.st_ino)).then_some(fd)
    }

    /// Takes `fresh` in the place of what there was.
    fn replace(&self, fresh: OwnedFd) {
        let Ok(stat) = rustix::fs::fstat(&fresh) else { return };
        self.device.store(stat.st_dev, Ordering::Relaxed);
        self.inode.store(stat.st_ino, Ordering::Relaxed);
        self.descriptor.store(fresh.into_raw_fd() + 1, Ordering::Relaxed);
    }

    /// Gives the descriptor back, if it is still there.
    fn close(&self) {
        let is_marked = |fd: &BorrowedFd<'_>| rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(MARK));
        if let Some(number) = self.verified().filter(is_marked).map(|fd| fd.as_raw_fd()) {
            self.descriptor.store(0, Ordering::Relaxed);
            // SAFETY: verified to be the file that was opened here, in the way that it is opened here; nobody else knows of it.
            unsafe { rustix::io::close(number) };
        }
    }
}

/// What tells descriptors that were opened here from a program's own.
const MARK: OFlags = OFlags::NONBLOCK;

impl KeptMaps {
    /// Opens what is not open. A refusal is no error: it is tried again when it is needed.
    pub fn prepare(&self) {
        let own = own_id();
        if self.process.load(Ordering::Relaxed) != own || self.maps.verified().is_none() {
            let _: Result<(), Errno> = self.with_maps(own, &mut |_| ());
        }
    }

    /// The first mapping that ends above `address`, of process `process`, which is the calling one, or the one in whose memory it runs (`vfork`). Flags and figures
    /// are left out. Allocates nothing.
    ///
    /// # Errors
    ///
    /// See [`VmasError`].
    pub fn first_above(&self, process: i32, address: usize) -> Result<Option<Vma>, VmasError> {
        let mut answer = Err(Errno::BADF);
        let read = |source| VmasError::Read { file: "maps", source };
        self.with_maps(process, &mut |maps| {
            answer = next_above(maps, address).map(|vma| match vma.inode {
                0 => vma,
                _ => Vma { label: label_of(maps, vma.start), ..vma },
            });
        })
        .map_err(read)?;
        match answer {
            Ok(vma) => Ok(Some(vma)),
            Err(Errno::NOENT) => Ok(None),
            // An older kernel, or one that forbids the ioctl. A file of one's own is read evenly whoever else reads.
            Err(_) => match self.open(c"self/maps", c"/proc/self/maps") {
                Ok(own) => find_above(own.as_fd(), Detail::Places, address),
                Err(_) => {
                    let mut found = Ok(None);
                    self.with_maps(process, &mut |maps| found = find_above(maps, Detail::Places, address))
                        .map_err(read)?;
                    found
                }
            },
        }
    }

    /// The same with flags and figures, for which the kernel walks the page tables of all mappings up to there.
    ///
    /// # Errors
    ///
    /// See [`VmasError`].
    pub fn figures_above(&self, address: usize) -> Result<Option<Vma>, VmasError> {
        let list = self
            .open(c"self/smaps", c"/proc/self/smaps")
            .map_err(|source| VmasError::Read { file: "smaps", source })?;
        find_above(list.as_fd(), Detail::Figures, address)
    }

    /// Calls `with` with the `maps` of `process`.
    fn with_maps(&self, process: i32, with: &mut dyn FnMut(BorrowedFd<'_>)) -> Result<(), Errno> {
        let known = self.process.load(Ordering::Relaxed);
        if known == process
            && let Some(maps) = self.maps.verified()
        {
            with(maps);
            return Ok(());
        }
        // In the memory of another process nothing is replaced: the numbers are that process's.
        let own = own_id();
        let holder = if process == own { self.hold(own) } else { None };
        if holder.is_some() && self.proc.verified().is_none() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            if let Ok(proc) = rustix::fs::openat(CWD, c"/proc", flags, Mode::empty()) {
                self.proc.replace(out_of_the_way(proc));
            }
        }
        let mut opened = self.open(c"self/maps", c"/proc/self/maps");
        if holder.is_some() && known != process {
            // What a child has inherited tells of its parent, and may have the place of what it needs.
            self.maps.close();
            if opened.is_err() {
                opened = self.open(c"self/maps", c"/proc/self/maps");
            }
        }
        let opened = opened?;
        if holder.is_none() {
            with(opened.as_fd());
            return Ok(());
        }
        let opened = out_of_the_way(opened);
        with(opened.as_fd());
        self.maps.replace(opened);
        self.process.store(process, Ordering::Relaxed);
        Ok(())
    }

    /// Opens a file through the directory that is kept, or else by its path.
    fn open(&self, below: &CStr, path: &CStr) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | MARK;
        match self.proc.verified().map(|proc| rustix::fs::openat(proc, below, flags, Mode::empty())) {
            Some(Ok(file)) => Ok(file),
            _ => rustix::fs::openat(CWD, path, flags, Mode::empty()),
        }
    }

    /// The right to replace descriptors, unless somebody has it.
    fn hold(&self, own: i32) -> Option<Holding<'_>> {
        let known = self.holder.load(Ordering::Relaxed);
        if known == own {
            return None;
        }
        // Acquire, partner: the Release store in `Holding::drop`. Forbids that two replace one descriptor and one of them is lost.
        self.holder.compare_exchange(known, own, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Holding(self))
    }
}

/// Gives the right back when dropped.
struct Holding<'a>(&'a KeptMaps);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        // Release, partner: the Acquire exchange in `hold`.
        self.0.holder.store(0, Ordering::Release);
    }
}

fn own_id() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the mapping with this function is told.
    fn tells(kept: &KeptMaps) -> bool {
        let here = tells as *const () as usize;
        kept.first_above(own_id(), here).expect("/proc is mounted").is_some_and(|vma| vma.range().contains(&here))
    }

    #[test]
    fn a_descriptor_that_became_another_file_is_left_alone_and_opened_anew() {
        let kept = KeptMaps::default();
        assert!(tells(&kept));
        let first = kept.maps.verified().expect("kept").as_raw_fd();
        let other = std::fs::File::open("/proc/self/status").expect("/proc is mounted");
        // SAFETY: both are this test's own; the first is replaced in place, as programs do that close what they do not know.
        assert_eq!(unsafe { libc::dup3(other.as_raw_fd(), first, libc::O_CLOEXEC) }, first);
        assert!(kept.maps.verified().is_none());
        assert!(tells(&kept));
        assert_ne!(kept.maps.verified().expect("kept").as_raw_fd(), first);
        // SAFETY: only asks.
        assert!(unsafe { libc::fcntl(first, libc::F_GETFD) } >= 0, "another's descriptor is left alone");
        // SAFETY: this test's own.
        unsafe { libc::close(first) };
    }

    #[test]
    fn a_programs_own_descriptor_of_the_same_file_is_not_closed() {
        let kept = KeptMaps::default();
        assert!(tells(&kept));
        let (maps, proc) = (&kept.maps, &kept.proc);
        let numbers = [maps, proc].map(|kept| kept.verified().expect("kept").as_raw_fd());
        for (number, path) in numbers.into_iter().zip(["/proc/self/maps", "/proc"]) {
            let own = std::fs::File::open(path).expect("/proc is mounted");
            // SAFETY: both are this test's own.
            assert_eq!(unsafe { libc::dup3(own.as_raw_fd(), number, libc::O_CLOEXEC) }, number);
        }
        // As a child does that has inherited them.
        kept.process.store(1, Ordering::Relaxed);
        assert!(tells(&kept));
        for number in numbers {
            // SAFETY: only asks.
            let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
            assert!(flags >= 0 && flags & libc::O_NONBLOCK == 0, "{number} was closed, and is another one");
            // SAFETY: this test's own.
            unsafe { libc::close(number) };
        }
        // Lost, and the next ones get the same numbers.
        kept.process.store(1, Ordering::Relaxed);
        assert!(tells(&kept) && kept.maps.verified().is_some() && kept.proc.verified().is_some());
    }

    #[test]
    fn figures_hold_the_flags_of_the_one_mapping() {
        use crate::mapping::{Mapping, OnFork, Protection, Source};
        let page = rustix::param::page_size();
        let place = Mapping::new(Source::Anonymous, 2 * page, Protection::ReadWrite, page).expect("memory");
        place.on_fork(OnFork::Omit).expect("a private mapping");
        let kept = KeptMaps::default();
        let found = kept.figures_above(place.address() + page).expect("/proc is mounted").expect("mapped");
        assert!(found.range().contains(&place.address()) && found.flags.intersects(super::super::VmaFlags::DONT_FORK));
        let next = kept.figures_above(found.end).expect("/proc is mounted").expect("there is more above");
        assert!(next.start >= found.end && !next.flags.intersects(super::super::VmaFlags::DONT_FORK));
    }
}

//! File descriptors: which there were, their offsets, and duplicates to restore them from.
//!
//! A duplicate shares the open file, and so its offset, with the original. Only regular files, directories and devices
//! are duplicated: one more end of a pipe or socket would keep the other end waiting for a close that never comes.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::FromRawFd;

use palimpsest_sys::memory::extent::FileId;
use palimpsest_sys::memory::vec::MappedVec;
use palimpsest_sys::{MapError, is_one_open_file};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use rustix::fs::{CWD, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::{DupFlags, Errno, FdFlags};
use rustix::process::Resource;

use super::error::{RestoreError, TakeError};

/// Room for this many descriptors; more are an error.
const DESCRIPTORS: usize = 1 << 16;

/// One descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    number: RawFd,
    id: FileId,
    close_on_exec: DupFlags,
    /// `None` if it has no offset.
    offset: Option<u64>,
    spare: Option<RawFd>,
}

/// The descriptors of the process when the snapshot was taken, ascending.
#[derive(Debug)]
pub(super) struct Table {
    entries: MappedVec<Entry>,
}

/// What was done about descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) closed: usize,
    pub(super) reopened: usize,
    pub(super) lost: usize,
}

impl Table {
    pub(super) fn with_capacity() -> Result<Self, MapError> {
        Ok(Self { entries: MappedVec::with_capacity(DESCRIPTORS)? })
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.entries.range()
    }

    /// Notes all descriptors but those of `own` files.
    pub(super) fn read(&mut self, own: [FileId; 3]) -> Result<(), TakeError> {
        let failed = |call| move |errno| TakeError::Call { call, errno };
        let Self { entries, .. } = self;
        let mut full = Ok(());
        each(0, &mut |number| {
            let Some((fd, stat)) = look(number).filter(|(_, stat)| !own.contains(&FileId::of(stat))) else { return };
            let close_on_exec = match rustix::io::fcntl_getfd(fd) {
                Ok(flags) if flags.contains(FdFlags::CLOEXEC) => DupFlags::CLOEXEC,
                _ => DupFlags::empty(),
            };
            let offset = rustix::fs::tell(fd).ok();
            let entry = Entry { number, id: FileId::of(&stat), close_on_exec, offset, spare: None };
            full = full.and(entries.push(entry));
        })
        .map_err(failed("getdents64"))?;
        full?;
        // After the listing, which would list the duplicates.
        for entry in entries.iter_mut() {
            let Some((fd, stat)) = look(entry.number) else { continue };
            if matches!(
                FileType::from_raw_mode(stat.st_mode),
                FileType::RegularFile | FileType::Directory | FileType::CharacterDevice | FileType::BlockDevice
            ) {
                entry.spare = Some(spare(fd, 0).map_err(failed("fcntl(F_DUPFD_CLOEXEC)"))?.into_raw_fd());
            }
        }
        Ok(())
    }

    /// Closes what was opened, except `own` files, restores what was closed, and sets offsets.
    pub(super) fn restore(&self, own: [FileId; 3]) -> Result<Counts, RestoreError> {
        let mut counts = Counts::default();
        let Self { entries } = self;
        let mut next = 0;
        let mut failed = Ok(());
        let above = entries.last().map_or(0, |last| last.number.saturating_add(1));
        let listed = each(above, &mut |number| {
            while entries.get(next).is_some_and(|entry| entry.number < number) {
                self.put_back(&entries[next], &mut counts, &mut failed);
                next += 1;
            }
            if entries.get(next).is_some_and(|entry| entry.number == number) {
                self.put_back(&entries[next], &mut counts, &mut failed);
                next += 1;
            } else if !entries.iter().any(|entry| entry.spare == Some(number))
                && look(number).is_some_and(|(_, stat)| !own.contains(&FileId::of(&stat)))
            {
                // SAFETY: opened after the snapshot was taken, by code whose effects are all undone, so that nobody
                // owns it any more.
                unsafe { rustix::io::close(number) };
                counts.closed += 1;
            }
        });
        listed.map_err(|errno| RestoreError::Call { call: "getdents64", address: 0, errno })?;
        for entry in entries.iter().skip(next) {
            self.put_back(entry, &mut counts, &mut failed);
        }
        failed.map(|()| counts)
    }

    /// Closes the duplicates: from now on, closed descriptors are lost.
    pub(super) fn close(&mut self) {
        for entry in self.entries.iter_mut() {
            let number = entry.spare.take();
            if let Some(number) =
                number.filter(|number| look(*number).is_some_and(|(_, stat)| FileId::of(&stat) == entry.id))
            {
                // SAFETY: a duplicate that `read` made, still of the same file, and used no more.
                unsafe { rustix::io::close(number) };
            }
        }
    }

    fn put_back(&self, entry: &Entry, counts: &mut Counts, failed: &mut Result<(), RestoreError>) {
        let same_file = |number| look(number).filter(|(_, stat)| FileId::of(stat) == entry.id).map(|(fd, _)| fd);
        let there = same_file(entry.number);
        let fd = match (there, entry.spare.and_then(same_file)) {
            (Some(fd), None) => fd,
            (Some(fd), Some(spare)) if is_still_open(fd, spare, entry.offset) => fd,
            (_, Some(spare)) => {
                // SAFETY: the number was this file's when the snapshot was taken and will be again, whatever it is now;
                // it is forgotten below, not closed.
                let mut target = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(entry.number) });
                if let Err(errno) = rustix::io::dup3(spare, &mut target, entry.close_on_exec) {
                    let address = usize::try_from(entry.number).unwrap_or(0);
                    *failed = Err(RestoreError::Call { call: "dup3", address, errno });
                    return;
                }
                counts.reopened += 1;
                spare
            }
            (None, None) => {
                counts.lost += 1;
                return;
            }
        };
        if let Some(offset) = entry.offset {
            // A file whose offset could be read can set it. A device that refuses has no offset that matters.
            let _ = rustix::fs::seek(fd, SeekFrom::Start(offset));
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.close();
    }
}

/// Whether `fd` is still of the open file of which `spare` is a duplicate. Nothing is replaced without need: to close a
/// descriptor takes away the process's locks on its file (`fcntl(2)`).
fn is_still_open(fd: BorrowedFd<'_>, spare: BorrowedFd<'_>, offset: Option<u64>) -> bool {
    is_one_open_file(fd, spare).unwrap_or_else(|_| {
        // Where the kernel does not tell, their offset does, which is one if the file is. A file without, such as
        // `/dev/null`, is most likely the same.
        let follows = |place: u64| {
            rustix::fs::seek(spare, SeekFrom::Start(place)) != Ok(place) || rustix::fs::tell(fd) == Ok(place)
        };
        offset.is_none_or(|offset| follows(offset.saturating_add(1)) && follows(offset))
    })
}

/// Returns the descriptor of this number and what it is, if it is open.
fn look(number: RawFd) -> Option<(BorrowedFd<'static>, Stat)> {
    // SAFETY: not -1. The call below finds out whether there is such a descriptor; if there is, it stays while signals
    // are blocked and other threads sleep.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::fs::fstat(fd).ok().map(|stat| (fd, stat))
}

/// Duplicates the descriptor to a number that programs do not use, `above` or higher if one is free. No higher than
/// necessary: each fork copies the table of descriptors up to the highest (`dup_fd` in `fs/file.c`).
pub(super) fn spare(fd: BorrowedFd<'_>, above: RawFd) -> Result<OwnedFd, Errno> {
    const ENOUGH: u64 = 1 << 12;
    let limit = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(ENOUGH).min(ENOUGH);
    let least = RawFd::try_from(limit / 2).unwrap_or(0);
    rustix::io::fcntl_dupfd_cloexec(fd, least.max(above)).or_else(|_| rustix::io::fcntl_dupfd_cloexec(fd, least))
}

/// Calls `found` with the number of each descriptor, ascending, except the one that lists them, which is `above` or
/// higher.
fn each(above: RawFd, found: &mut dyn FnMut(RawFd)) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Not at a number that was closed and must be restored while the list is read.
    let directory = spare(rustix::fs::openat(CWD, c"/proc/thread-self/fd", flags, Mode::empty())?.as_fd(), above)?;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut buffer);
    while let Some(entry) = entries.next() {
        let entry = entry?;
        // `.` and `..` are not numbers.
        let number = entry.file_name().to_str().ok().and_then(|name| name.parse().ok());
        if let Some(number) = number.filter(|number| *number != directory.as_raw_fd()) {
            found(number);
        }
    }
    Ok(())
}

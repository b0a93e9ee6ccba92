//! The text and constants of the running program and its libraries, and what is shown in their place.
//!
//! A [`Part`] is a mapping that shows an object's file and cannot be written. A [`Stand`] is the same bytes in a memory
//! object that nobody can change, mapped privately beside it; [`exchange`] moves stands over what they stand for. At no
//! moment is anything mapped writable and executable, and no code is copied to run from elsewhere: a thread that
//! executes a page which is being exchanged waits in its fault until the kernel has done it.
//!
//! The new mappings are private, as the old ones were: a breakpoint, a static key or a relocation makes a copy of its
//! page, as ever. Pages that have such a copy already are never exchanged, for their bytes are not those of the file.
//!
//! To be moved there (`mremap`), and not mapped, has a reason: perf hears of mappings and not of moves, and goes on to
//! tell symbols by the program's own file.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;

use rustix::fs::{Mode, OFlags};
use rustix::mm::Advice;

use crate::memory::area::reserve_aligned;
use crate::memory::calls::protection;
use crate::memory::error::MapError;
use crate::memory::extent::ExtentError;
use crate::memory::file::FileId;
use crate::memory::huge::HUGE_PAGE;
use crate::memory::sealed_file::{NAME, SealedFile};
use crate::memory::span::Span;
use crate::memory::{calls, remap};
use crate::objects::{Build, build_of, keep_loaded};
use crate::pages::maps::Permissions;
use crate::pages::pagemap::{Pagemap, PagemapError, Wanted};
use crate::pages::smaps;
use crate::pages::vmas::each_mapping;
use crate::proc::ProcError;
use crate::threads::hold::{self, StopError, World};

/// Bytes that are read at a time.
const AT_ONCE: usize = 16 << 10;

/// A mapping of an object's file that cannot be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it is.
    pub span: Span,
    /// Its rights.
    pub permissions: Permissions,
    /// The file.
    pub file: FileId,
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// Its name, when it was mapped.
    pub path: PathBuf,
    /// Where indirect branches may go in it.
    pub branches: Branches,
}

/// Where indirect branches may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Branches {
    /// To every instruction.
    Anywhere,
    /// To those alone that are marked for it: `PROT_BTI` of AArch64.
    Marked,
}

/// How much of a part is exchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Whole huge pages: what is gained by these is gained, and there are few mappings.
    HugePages,
    /// Heads, tails, and what lies around pages that were written, too, but for the smallest pieces: so that they are
    /// on the node.
    Everything,
}

/// Pieces that are not worth a mapping, in bytes.
const LEAST: usize = 64 << 10;

/// `arch/arm64/include/uapi/asm/mman.h`.
const PROT_BTI: u32 = 0x10;

fn is_memory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"/memfd:")
}

/// Why a part stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// No object has it, or it cannot be kept loaded.
    #[error("the mapping at {:#x} belongs to no object that can be kept loaded", .0.start)]
    NotLoaded(Span),
    /// Its bytes could not be read.
    #[error("the bytes at {:#x} cannot be read", span.start)]
    Read {
        /// Where.
        span: Span,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The stand could not be mapped.
    #[error("no room for a second mapping")]
    Room(#[source] MapError),
    /// The stand could not be mapped.
    #[error("the stand cannot be mapped")]
    Map(#[source] rustix::io::Errno),
    /// It cannot be told whether pages were written.
    #[error(transparent)]
    Pagemap(#[from] PagemapError),
    /// The bytes of the stand are others.
    #[error("other bytes than those at {:#x} were to stand there", .0.start)]
    Different(Span),
    /// Something else is mapped there by now, or with other rights.
    #[error("the mapping at {:#x} has changed meanwhile", .0.start)]
    Changed(Span),
    /// Pages were written since: a breakpoint, a key.
    #[error("pages at {:#x} were written meanwhile", .0.start)]
    Written(Span),
    /// The kernel did not move it.
    #[error("the kernel does not put the stand in place")]
    Move(#[from] ExtentError),
}

/// The parts of the program and the libraries that it has loaded: private mappings of files, of which some part can be
/// executed, that can be read and not written; and what was exchanged before, to be exchanged again. Locked and
/// otherwise special ones are left out, and so is what a protection key guards.
///
/// # Errors
///
/// `/proc` is not mounted, or a line has an unknown form.
pub fn parts() -> Result<Vec<Part>, ProcError> {
    let (mut executed, mut parts) = (Vec::new(), Vec::new());
    smaps::each_overlapping(0..usize::MAX, &mut |entry| {
        let file = FileId { device: entry.map.device, inode: entry.map.inode };
        if entry.map.permissions.contains(Permissions::EXECUTE) && executed.last() != Some(&file) {
            executed.push(file);
        }
        parts.extend(Part::of(entry, file));
    })?;
    parts.retain(|part| match part.is_copy() {
        true => keep_loaded(part.span.start).is_ok(),
        false => executed.contains(&part.file),
    });
    Ok(parts)
}

impl Part {
    /// The mapping, if it is one of a file that can be read and not written, and nothing special.
    fn of(entry: smaps::SmapsEntry, file: FileId) -> Option<Self> {
        // Locked; sealed; of hugetlbfs; watched by userfaultfd; a device's.
        const SPECIAL: [&[u8; 2]; 7] = [b"lo", b"sl", b"ht", b"um", b"uw", b"io", b"pf"];
        let (map, flags) = (entry.map, &entry.vm_flags);
        let rights = map.permissions;
        let is_plain = !SPECIAL.iter().any(|flag| flags.contains(flag)) && entry.protection_key == 0;
        let is_constant = rights.contains(Permissions::READ)
            && !rights.contains(Permissions::WRITE)
            && !rights.contains(Permissions::SHARED);
        // Of other memory files nobody says that they will not change.
        let is_file = |path: &Path| path == Path::new(NAME) || (path.is_absolute() && !is_memory(path));
        let branches = if flags.contains(b"bt") { Branches::Marked } else { Branches::Anywhere };
        let (span, offset, inode) = (Span::new(map.start, map.end), map.offset, map.inode);
        let path = map.path.filter(|path| is_file(path))?;
        let part = Self { span, permissions: rights, file, offset, path, branches };
        (inode != 0 && is_plain && is_constant).then_some(part)
    }

    /// The pages in it that were not written, in runs of which each is whole huge pages if that is the reach.
    ///
    /// # Errors
    ///
    /// [`TextError::Pagemap`].
    pub fn clean_runs(&self, reach: Reach) -> Result<Vec<Span>, TextError> {
        let grain = match reach {
            Reach::HugePages => HUGE_PAGE,
            Reach::Everything => rustix::param::page_size(),
        };
        let start = self.span.start.next_multiple_of(grain);
        let end = self.span.end & !(grain - 1);
        if start >= end {
            return Ok(Vec::new());
        }
        let mut runs: Vec<Span> = Vec::new();
        let mut at = start;
        Pagemap::open()?.scan(start..end, Wanted::Written, &mut |written| {
            let below = written.start & !(grain - 1);
            if at < below {
                runs.push(Span::new(at, below));
            }
            at = at.max(written.end.next_multiple_of(grain));
            ControlFlow::Continue(())
        })?;
        if at < end {
            runs.push(Span::new(at, end));
        }
        runs.retain(|run| run.len() >= LEAST);
        Ok(runs)
    }

    /// Whether it shows a copy, and not its file.
    pub fn is_copy(&self) -> bool {
        self.path == Path::new(NAME)
    }

    /// Whether a huge page of its file could be one of its addresses, too: both lie at the same place in it.
    pub fn is_aligned_as_its_file(&self) -> bool {
        let from_start = |at: usize| at % HUGE_PAGE;
        from_start(self.span.start) == self.place_in_a_huge_page()
    }

    /// Where in a huge page of its file it starts, in bytes.
    pub fn place_in_a_huge_page(&self) -> usize {
        // Less than 2 MiB.
        (self.offset % HUGE_PAGE as u64) as usize
    }

    /// What tells it from other parts, and is the same in every process that has the same one: its build, or its file.
    pub fn label(&self) -> String {
        let len = self.span.len();
        match build_of(self.span.start) {
            Some(Build { id, offset }) => {
                let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("build {id}, {len:#x} bytes from {offset:#x}")
            }
            None => format!("file {:?}, {len:#x} bytes from {:#x}", self.file, self.offset),
        }
    }

    /// Reads what is mapped from `address` on.
    ///
    /// # Errors
    ///
    /// The kernel's answer.
    pub fn read(&self, address: usize, into: &mut [u8]) -> io::Result<()> {
        File::open("/proc/self/mem")?.read_exact_at(into, address as u64)
    }

    /// Reads what its file has there, if that can still be opened by its name.
    ///
    /// # Errors
    ///
    /// The kernel's answer; or another file has the name.
    pub fn read_from_file(&self, address: usize, into: &mut [u8]) -> io::Result<()> {
        // Neither a pipe nor a device is ever waited for, nor any effect of opening one had.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        if FileId::of(&rustix::fs::fstat(&file)?) != self.file {
            return Err(io::ErrorKind::NotFound.into());
        }
        File::from(file).read_exact_at(into, self.offset + (address - self.span.start) as u64)
    }
}

/// What is to be shown in the place of a run, mapped elsewhere for now.
#[derive(Debug)]
pub struct Stand {
    /// # Invariants
    ///
    /// 1. A mapping of this value's own, as long as `place`, with the rights of the part that is there.
    own: Span,
    place: Span,
    permissions: Permissions,
    /// What is mapped at `place`.
    file: FileId,
    /// Where in it that starts, in bytes.
    offset: u64,
    /// Set by [`exchange`].
    outcome: Option<Result<(), TextError>>,
}

impl Stand {
    /// Maps `file` from `position` on, where it has the bytes that are at `run` of `part`, to be moved there.
    ///
    /// # Errors
    ///
    /// [`TextError`]: also if the bytes are others.
    pub fn new(part: &Part, run: Span, file: &SealedFile, position: usize) -> Result<Self, TextError> {
        if run.is_empty() || run.intersection(part.span) != run {
            return Err(TextError::Changed(run));
        }
        if file.len().checked_sub(position).is_none_or(|len| len < run.len()) {
            return Err(TextError::Different(run));
        }
        keep_loaded(run.start).map_err(|_| TextError::NotLoaded(run))?;
        // At the same place in a huge page as where it is moved: else none could be moved as such.
        let lead = run.start % HUGE_PAGE;
        let area = reserve_aligned(lead + run.len(), HUGE_PAGE).map_err(TextError::Room)?;
        let own = Span::new(area.address() + lead, area.address() + lead + run.len());
        // SAFETY: reserved just now, for this value, and nothing else. Were it refused, addresses would be lost.
        let _ = unsafe { calls::unmap(Span::new(area.address(), own.start)) };
        let offset = part.offset + (run.start - part.span.start) as u64;
        let stand = Self { own, place: run, permissions: part.permissions, file: part.file, offset, outcome: None };
        let at = ptr::with_exposed_provenance_mut(own.start);
        let marked = if part.branches == Branches::Marked { PROT_BTI } else { 0 };
        let rights = rustix::mm::ProtFlags::from_bits_retain(protection(part.permissions).cast_unsigned() | marked);
        let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED;
        let descriptor = file.verified().map_err(TextError::Map)?;
        // SAFETY: the range was reserved just now, for this value.
        unsafe { rustix::mm::mmap(at, own.len(), rights, flags, descriptor, position as u64) }
            .map_err(TextError::Map)?;
        // Huge pages are mapped as such before the move, which keeps them so. Before Linux 5.14 they come one by one.
        // SAFETY: this value's own mapping, whose contents stay.
        let _ = unsafe { rustix::mm::madvise(at, own.len(), Advice::LinuxPopulateRead) };
        stand.compare()?;
        Ok(stand)
    }

    /// Whether its bytes are those at its place.
    fn compare(&self) -> Result<(), TextError> {
        for offset in (0..self.own.len()).step_by(HUGE_PAGE) {
            let len = HUGE_PAGE.min(self.own.len() - offset);
            let own = ptr::with_exposed_provenance_mut::<libc::c_void>(self.own.start + offset);
            let there = ptr::with_exposed_provenance_mut::<libc::c_void>(self.place.start + offset);
            // Every page of the piece now: where the file has become shorter, or cannot be read, this is refused
            // (EFAULT), and a load would be SIGBUS. The kernel may take a page back before it is compared, and then has
            // to read it again: if that fails, the program ends, as it would when it executes the page. So pieces are
            // small, and each is compared as soon as it is there.
            // SAFETY: pages are read, and nothing changes: of a loaded object, or of whatever is there by now.
            if unsafe { rustix::mm::madvise(there, len, Advice::LinuxPopulateRead) }.is_err() {
                return self.compare_by_the_kernel();
            }
            // No slices: threads may write to their copies of these pages, which `move_over` then finds.
            // SAFETY: `own` is in this value's own mapping (invariant 1), which can be read, as all parts can; `there`
            // belongs to an object that is kept loaded, and its pages were all there just now.
            if unsafe { libc::memcmp(own, there, len) } != 0 {
                return Err(TextError::Different(self.place));
            }
        }
        Ok(())
    }

    /// The same, four times as slow, where pages cannot be had in advance: before Linux 5.14, or where some are
    /// missing.
    fn compare_by_the_kernel(&self) -> Result<(), TextError> {
        let failed = |source| TextError::Read { span: self.place, source };
        let memory = File::open("/proc/self/mem").map_err(failed)?;
        let mut there = vec![0; AT_ONCE.min(self.own.len())];
        for offset in (0..self.own.len()).step_by(AT_ONCE) {
            let len = AT_ONCE.min(self.own.len() - offset);
            memory.read_exact_at(&mut there[..len], (self.place.start + offset) as u64).map_err(failed)?;
            let own = ptr::with_exposed_provenance::<u8>(self.own.start + offset);
            // SAFETY: inside this value's own mapping (invariant 1), which can be read, as all parts can, and shows a
            // file that nobody can change.
            let own = unsafe { std::slice::from_raw_parts(own, len) };
            if own != &there[..len] {
                return Err(TextError::Different(self.place));
            }
        }
        Ok(())
    }

    /// Whether the place is mapped as it was. Does not use the heap.
    fn is_as_it_was(&self) -> bool {
        let mut is_so = false;
        let read = each_mapping(&mut |map, _| {
            let file = FileId { device: map.device, inode: map.inode };
            let holds = map.start <= self.place.start && self.place.end <= map.end;
            let offset = map.offset + self.place.start.saturating_sub(map.start) as u64;
            is_so |= holds && map.permissions == self.permissions && file == self.file && offset == self.offset;
            if map.end > self.place.start { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        read.is_ok() && is_so
    }

    /// Where it stands, or is to stand.
    pub fn place(&self) -> Span {
        self.place
    }

    /// What came of it; nothing before the exchange.
    pub fn into_outcome(mut self) -> Option<Result<(), TextError>> {
        self.outcome.take()
    }

    /// Moves it over its place, if that is as it was.
    ///
    /// # Safety
    ///
    /// 1. No other thread runs: nobody maps, unmaps or writes there during the call.
    unsafe fn move_over(&mut self, pagemap: &Pagemap) -> Result<(), TextError> {
        if !self.is_as_it_was() {
            return Err(TextError::Changed(self.place));
        }
        let mut is_written = false;
        pagemap.scan(self.place.range(), Wanted::Written, &mut |_| {
            is_written = true;
            ControlFlow::Break(())
        })?;
        if is_written {
            return Err(TextError::Written(self.place));
        }
        // SAFETY: 1. its own mapping (invariant 1), and a place where the same file is mapped with the same rights as
        // when its bytes were compared, and no page was written since. 2. (1).
        unsafe { remap::replace_by(self.own, self.place) }?;
        self.own = Span::default();
        Ok(())
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        // SAFETY: 1. this value's own mapping (invariant 1), or nothing.
        let _ = unsafe { calls::unmap(self.own) };
    }
}

/// Moves stands over what they stand for, while every other thread is held still. Each tells what came of it.
///
/// # Errors
///
/// [`ExchangeError`]: nothing has changed.
pub fn exchange(stands: &mut [Stand]) -> Result<(), ExchangeError> {
    let pagemap = Pagemap::open().map_err(ExchangeError::Pagemap)?;
    // Where there is no other thread, there is nobody who could start one, and no signal handler is left behind.
    let is_alone = hold::count() == Ok(1);
    let world = if is_alone { None } else { Some(World::prepare()?) };
    let stopped = world.as_ref().map(World::stop_others).transpose()?;
    // Nothing is allocated from here on: a held thread may be inside the heap.
    for stand in &mut *stands {
        // SAFETY: 1. all others are held, or there are none.
        stand.outcome = Some(unsafe { stand.move_over(&pagemap) });
    }
    drop(stopped);
    Ok(())
}

/// Why nothing was exchanged.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// It cannot be told whether pages were written.
    #[error(transparent)]
    Pagemap(PagemapError),
    /// The other threads cannot be held.
    #[error("other threads cannot be held still")]
    Stop(#[from] StopError),
}

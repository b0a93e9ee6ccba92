//! The text and constants of the running program and its libraries, and copies that replace them.
//!
//! A [`Part`] is a mapping that shows an object's file and cannot be written. A [`Stand`] is the same bytes in a
//! constant memory object, mapped privately beside it; [`exchange`] moves stands over what they replace. Nothing is
//! ever mapped writable and executable, and no code is copied to run from elsewhere: a thread that executes a page
//! during the exchange waits in its fault until the kernel is done.
//!
//! The new mappings are private, as the old ones were: a breakpoint, a static key or a relocation still makes a copy of
//! its page. Pages that already have such a copy are never exchanged, because their bytes differ from the file.
//!
//! Stands are moved (`mremap`) and not mapped there for a reason: perf learns of mappings but not of moves, and keeps
//! resolving symbols from the program's own file.

mod identity;
mod pages;
mod shown;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;

use rustix::mm::Advice;

use crate::memory::area::reserve_aligned;
use crate::memory::calls::protection;
use crate::memory::error::MapError;
use crate::memory::extent::ExtentError;
use crate::memory::file::FileId;
use crate::memory::huge::HUGE_PAGE;
use crate::memory::mapping::{Recovered, recover_from};
use crate::memory::sealed_file::{NAME, SealedFile};
use crate::memory::span::Span;
use crate::memory::{calls, remap};
use crate::objects::{self, Build, Held, Loads, build_of};
use crate::pages::lines::mapping_at;
use crate::pages::maps::Permissions;
use crate::pages::pagemap::{Pagemap, PagemapError, Wanted};
use crate::pages::smaps;
use crate::proc::ProcError;
use crate::regular_file::open_regular;
use crate::threads::hold::{self, StopError, World};

pub use pages::InPlace;
pub use shown::{Piece, Shown};

/// This process's memory as a file, which the kernel also reads where a load would fail.
const MEMORY: &str = "/proc/self/mem";

/// Bytes to read from it at a time.
const AT_ONCE: usize = 16 << 10;

/// A mapping of an object's file that cannot be written. The object stays loaded while this lives.
#[derive(Clone, Debug)]
pub struct Part {
    /// Its addresses.
    pub span: Span,
    /// Its rights.
    pub permissions: Permissions,
    /// The file, as the lists of mappings know it; `fstat` may tell another device.
    pub file: FileId,
    /// Its offset in the file, in bytes.
    pub offset: u64,
    /// Its name, when it was mapped.
    pub path: PathBuf,
    /// Where indirect branches may lead in it.
    pub branches: Branches,
    /// The object that has all of it; none for what is too small to be exchanged, or belongs to no object that can be
    /// held.
    held: Option<Arc<Held>>,
}

/// Where indirect branches may lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Branches {
    /// To every instruction.
    Anywhere,
    /// Only to marked instructions: `PROT_BTI` of AArch64.
    Marked,
}

/// The pieces of a part to exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Whole huge pages: they bring the gain, with few mappings.
    HugePages,
    /// Also heads, tails, and the surroundings of written pages, except the smallest pieces: so that they are on the
    /// node.
    Everything,
}

impl Reach {
    /// Returns the smallest size of a piece, in bytes.
    const fn least(self) -> usize {
        match self {
            Self::HugePages => HUGE_PAGE,
            Self::Everything => LEAST,
        }
    }
}

/// Size in bytes below which a piece is not worth a mapping.
const LEAST: usize = 64 << 10;

/// `arch/arm64/include/uapi/asm/mman.h`.
const PROT_BTI: u32 = 0x10;

fn is_memory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().starts_with(b"/memfd:")
}

/// Why a part stays as it is.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// It belongs to no object that can be held.
    #[error("the mapping at {:#x} belongs to no object that can be held", .0.start)]
    NotLoaded(Span),
    /// Its bytes could not be read.
    #[error("the bytes at {:#x} cannot be read", span.start)]
    Read {
        /// Its address.
        span: Span,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// There is no room for the stand.
    #[error("no room for a second mapping")]
    Room(#[source] MapError),
    /// The stand could not be mapped.
    #[error("the stand cannot be mapped")]
    Map(#[source] rustix::io::Errno),
    /// Whether pages were written cannot be found out.
    #[error(transparent)]
    Pagemap(#[from] PagemapError),
    /// The stand has different bytes.
    #[error("other bytes than those at {:#x} were to stand there", .0.start)]
    Different(Span),
    /// Something else, or with other rights, is mapped there by now.
    #[error("the mapping at {:#x} has changed meanwhile", .0.start)]
    Changed(Span),
    /// Pages were written since, for example by a breakpoint or a key.
    #[error("pages at {:#x} were written meanwhile", .0.start)]
    Written(Span),
    /// The kernel did not move the stand.
    #[error("the kernel does not put the stand in place")]
    Move(#[from] ExtentError),
}

/// Returns the parts of the program and its libraries, as far as these were loaded since: private mappings of files
/// with some executable part, which can be read but not written; and earlier copies, which can be exchanged again.
/// Leaves out locked and otherwise special mappings, those with a protection key, and objects that have too little for
/// `reach`.
///
/// # Errors
///
/// `/proc` is not mounted, or a line has an unknown form.
pub fn parts(since: Loads, reach: Reach) -> Result<Vec<Part>, ProcError> {
    let among = objects::loaded_since(since, reach.least());
    let start = among.iter().map(|object| object.start).min().unwrap_or_default();
    let end = among.iter().map(|object| object.end).max().unwrap_or_default();
    if start >= end {
        return Ok(Vec::new());
    }
    let (mut executed, mut parts) = (Vec::new(), Vec::new());
    smaps::each_overlapping(start..end, &mut |entry| {
        let file = FileId { device: entry.map.device, inode: entry.map.inode };
        if entry.map.permissions.contains(Permissions::EXECUTE) && executed.last() != Some(&file) {
            executed.push(file);
        }
        parts.extend(Part::of(entry, file));
    })?;
    parts.retain(|part| among.iter().any(|object| object.contains(&part.span.start)));
    for part in parts.iter_mut().filter(|part| part.span.len() >= reach.least()) {
        part.held = objects::hold(part.span.range()).ok().map(Arc::new);
    }
    parts.retain(|part| match part.is_copy() {
        true => part.held.is_some(),
        false => executed.contains(&part.file),
    });
    Ok(parts)
}

impl Part {
    /// Returns the mapping, if it shows a file, can be read but not written, and is not special.
    fn of(entry: smaps::SmapsEntry, file: FileId) -> Option<Self> {
        // Locked; sealed; hugetlbfs; watched by userfaultfd; a device.
        const SPECIAL: [&[u8; 2]; 7] = [b"lo", b"sl", b"ht", b"um", b"uw", b"io", b"pf"];
        let (map, flags) = (entry.map, &entry.vm_flags);
        let rights = map.permissions;
        let is_plain = !SPECIAL.iter().any(|flag| flags.contains(flag)) && entry.protection_key == 0;
        let is_constant = rights.contains(Permissions::READ)
            && !rights.contains(Permissions::WRITE)
            && !rights.contains(Permissions::SHARED);
        // Other memory files may still change.
        let is_file = |path: &Path| path == Path::new(NAME) || (path.is_absolute() && !is_memory(path));
        let branches = if flags.contains(b"bt") { Branches::Marked } else { Branches::Anywhere };
        let (span, offset, inode) = (Span::new(map.start, map.end), map.offset, map.inode);
        let path = map.path.filter(|path| is_file(path))?;
        let part = Self { span, permissions: rights, file, offset, path, branches, held: None };
        (inode != 0 && is_plain && is_constant).then_some(part)
    }

    /// Returns the runs of pages in it that were not written; with [`Reach::HugePages`] each run is whole huge pages.
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

    /// Returns whether its object stays loaded while this lives.
    fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Returns whether it shows a copy instead of its file.
    pub fn is_copy(&self) -> bool {
        self.path == Path::new(NAME)
    }

    /// Returns whether huge pages of its file could be mapped at its addresses: both have the same offset in a huge
    /// page.
    pub fn is_aligned_as_its_file(&self) -> bool {
        let from_start = |at: usize| at % HUGE_PAGE;
        from_start(self.span.start) == self.place_in_a_huge_page()
    }

    /// Returns its offset in a huge page of its file, in bytes.
    pub fn place_in_a_huge_page(&self) -> usize {
        // Less than 2 MiB.
        (self.offset % HUGE_PAGE as u64) as usize
    }

    /// Returns a label that distinguishes it from other parts, and is the same in every process with the same part: its
    /// build, or its file.
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

    /// Reads its file's bytes for `address`, if the file can still be opened by its name.
    ///
    /// # Errors
    ///
    /// The kernel's; or another file has the name.
    pub fn read_from_file(&self, address: usize, into: &mut [u8]) -> io::Result<()> {
        self.open_file()?.read_exact_at(into, self.offset_of(address))
    }

    /// Opens its file by its name, if that is still the same file.
    fn open_file(&self) -> io::Result<File> {
        self.open_known_by(identity::as_mapped)
    }

    /// The same, where `identity` returns a file's identity as the lists of mappings have it.
    fn open_known_by(&self, identity: impl FnOnce(&File) -> io::Result<FileId>) -> io::Result<File> {
        let file = open_regular(&self.path).map_err(io::Error::other)?;
        if identity(&file)? != self.file {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file)
    }

    /// Returns the offset of an address in its file, in bytes.
    fn offset_of(&self, address: usize) -> u64 {
        self.offset + (address - self.span.start) as u64
    }
}

/// The future replacement of a run, mapped elsewhere at first.
#[derive(Debug)]
pub struct Stand {
    /// # Invariants
    ///
    /// 1. A mapping that belongs to this value, as long as `place`, with the rights of the part there.
    own: Span,
    place: Span,
    permissions: Permissions,
    /// The file that is mapped at `place`.
    file: FileId,
    /// The offset of the part mapped there, in bytes.
    offset: u64,
    /// The object that is mapped at `place`.
    _held: Arc<Held>,
    /// Set by [`exchange`].
    outcome: Option<Result<(), TextError>>,
}

impl Stand {
    /// Maps `file` from `position` on, where it has the bytes of `run` in `part`, in order to be moved there.
    ///
    /// # Errors
    ///
    /// [`TextError`]: also if the bytes differ.
    pub fn new(part: &Part, run: Span, file: &SealedFile, position: usize) -> Result<Self, TextError> {
        if run.is_empty() || run.intersection(part.span) != run {
            return Err(TextError::Changed(run));
        }
        if file.len().checked_sub(position).is_none_or(|len| len < run.len()) {
            return Err(TextError::Different(run));
        }
        let held = part.held.clone().ok_or(TextError::NotLoaded(run))?;
        // At the same offset in a huge page as its destination: otherwise no huge page could be moved as a whole.
        let lead = run.start % HUGE_PAGE;
        let area = reserve_aligned(lead + run.len(), HUGE_PAGE).map_err(TextError::Room)?;
        let own = Span::new(area.address() + lead, area.address() + lead + run.len());
        // SAFETY: reserved just now, for this value only. If it fails, addresses are lost.
        let _ = unsafe { calls::unmap(Span::new(area.address(), own.start)) };
        let offset = part.offset + (run.start - part.span.start) as u64;
        let (permissions, file_there) = (part.permissions, part.file);
        let mut stand = Self { own, place: run, permissions, file: file_there, offset, _held: held, outcome: None };
        let at = ptr::with_exposed_provenance_mut(own.start);
        let marked = if part.branches == Branches::Marked { PROT_BTI } else { 0 };
        let rights = rustix::mm::ProtFlags::from_bits_retain(protection(part.permissions).cast_unsigned() | marked);
        let flags = rustix::mm::MapFlags::PRIVATE | rustix::mm::MapFlags::FIXED;
        let descriptor = file.verified().map_err(TextError::Map)?;
        // SAFETY: the range was reserved just now, for this value.
        if let Err(errno) = unsafe { rustix::mm::mmap(at, own.len(), rights, flags, descriptor, position as u64) } {
            if recover_from(errno, own) == Recovered::Unknown {
                stand.own = Span::default();
            }
            return Err(TextError::Map(errno));
        }
        // Maps huge pages as such before the move, which keeps them. Before Linux 5.14 pages are mapped one by one, on
        // access. SAFETY: this value's own mapping, whose contents stay.
        let _ = unsafe { rustix::mm::madvise(at, own.len(), Advice::LinuxPopulateRead) };
        stand.compare()?;
        Ok(stand)
    }

    /// Checks that its bytes are those at its place.
    fn compare(&self) -> Result<(), TextError> {
        let pagemap = Pagemap::open()?;
        for offset in (0..self.own.len()).step_by(HUGE_PAGE) {
            let len = HUGE_PAGE.min(self.own.len() - offset);
            let own = ptr::with_exposed_provenance_mut::<libc::c_void>(self.own.start + offset);
            let there = ptr::with_exposed_provenance_mut::<libc::c_void>(self.place.start + offset);
            // Reads every page of the piece now: if the file has become shorter, or cannot be read, this fails where a
            // load would get SIGBUS. The kernel may take a page back before it is compared, and must then read it
            // again: if that fails, the program ends, as it would when it executes the page. So pieces are small, and
            // each is compared as soon as it was read.
            let start = self.place.start + offset;
            if pages::bring_in(Span::new(start, start + len), &pagemap).is_err() {
                return self.compare_by_the_kernel();
            }
            // Not by slices: threads may write to their copies of these pages, which `move_over` then detects. SAFETY:
            // `own` is in this value's own mapping (invariant 1), which can be read, as all parts can; `there` belongs
            // to an object that is held, and its pages were all there just now.
            if unsafe { libc::memcmp(own, there, len) } != 0 {
                return Err(TextError::Different(self.place));
            }
        }
        Ok(())
    }

    /// Does the same at a quarter of the speed, if pages cannot be read in advance: before Linux 5.14, or if some are
    /// missing.
    fn compare_by_the_kernel(&self) -> Result<(), TextError> {
        let failed = |source| TextError::Read { span: self.place, source };
        let memory = File::open(MEMORY).map_err(failed)?;
        let mut there = vec![0; AT_ONCE.min(self.own.len())];
        for offset in (0..self.own.len()).step_by(AT_ONCE) {
            let len = AT_ONCE.min(self.own.len() - offset);
            memory.read_exact_at(&mut there[..len], (self.place.start + offset) as u64).map_err(failed)?;
            let own = ptr::with_exposed_provenance::<u8>(self.own.start + offset);
            // SAFETY: inside this value's own mapping (invariant 1), which can be read, as all parts can, and shows a
            // constant file.
            let own = unsafe { std::slice::from_raw_parts(own, len) };
            if own != &there[..len] {
                return Err(TextError::Different(self.place));
            }
        }
        Ok(())
    }

    /// Returns whether the place is still mapped as before. Does not use the heap.
    fn is_as_it_was(&self) -> bool {
        let Ok(Some(map)) = mapping_at(self.place.start) else { return false };
        let file = FileId { device: map.device, inode: map.inode };
        let offset = map.offset + (self.place.start - map.start) as u64;
        let holds = self.place.end <= map.end;
        holds && map.permissions == self.permissions && file == self.file && offset == self.offset
    }

    /// Returns where it is, or will be, moved.
    pub fn place(&self) -> Span {
        self.place
    }

    /// Returns the outcome of the exchange; `None` before it.
    pub fn into_outcome(mut self) -> Option<Result<(), TextError>> {
        self.outcome.take()
    }

    /// Moves it over its place, if that is still as before.
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
        // when its bytes were compared, and where no page was written since. 2. (1).
        unsafe { remap::replace_by(self.own, self.place) }.map_err(|errno| ExtentError::unmapped(self.place, errno))?;
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

/// Moves stands over what they replace, while every other thread is held still. Each stores its outcome.
///
/// # Errors
///
/// [`ExchangeError`]: nothing has changed.
pub fn exchange(stands: &mut [Stand]) -> Result<(), ExchangeError> {
    let pagemap = Pagemap::open().map_err(ExchangeError::Pagemap)?;
    // Without other threads nobody can start one, and no signal handler is left behind.
    let is_alone = hold::count() == Ok(1);
    let world = if is_alone { None } else { Some(World::prepare()?) };
    let stopped = world.as_ref().map(World::stop_others).transpose()?;
    // Nothing allocates from here on: a held thread may be inside the heap.
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
    /// Whether pages were written cannot be found out.
    #[error(transparent)]
    Pagemap(PagemapError),
    /// The other threads cannot be held.
    #[error("other threads cannot be held still")]
    Stop(#[from] StopError),
}

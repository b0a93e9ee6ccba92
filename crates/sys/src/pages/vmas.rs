//! The mappings of this process with all their flags, read without the heap.
//!
//! [`smaps`](crate::pages::smaps) returns the same as vectors and strings; this is for code that is about to change the
//! memory in which those would lie. Format: `proc_pid_smaps(5)`, written by `show_smap` and `show_smap_vma_flags` in
//! `fs/proc/task_mmu.c`.

use std::ops::{Deref, Range};

use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::lines::each_line;
pub use super::lines::{VmasError, each_mapping};
use crate::brief_file::BriefFile;
use crate::memory::error::MapError;
use crate::memory::extent::{EXTENT_NAME, SNAPSHOT_NAME};
use crate::memory::vec::{Full, MappedVec};
use crate::pages::maps::MapLine;

/// The flags of a mapping that must be known to replace it, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct VmaFlags(u32);

impl VmaFlags {
    /// The kernel's two letters of each flag; the index in this list is the number of its bit here.
    const LETTERS: [[u8; 2]; 24] = [
        *b"gd", *b"pf", *b"lo", *b"io", *b"dc", *b"ht", *b"wf", *b"dd", *b"mm", *b"hg", *b"nh", *b"mg", *b"um", *b"uw",
        *b"ui", *b"ss", *b"sl", *b"mt", *b"gu", *b"dp", *b"sr", *b"rr", *b"bt", *b"nr",
    ];

    /// Grows downwards: a stack.
    pub const GROWS_DOWN: Self = Self(1);
    /// Page frames that the kernel does not manage as memory (device memory).
    pub const PAGE_FRAMES: Self = Self(1 << 1);
    /// Locked in memory.
    pub const LOCKED: Self = Self(1 << 2);
    /// Memory of a device.
    pub const DEVICE: Self = Self(1 << 3);
    /// Not inherited by children (`MADV_DONTFORK`).
    pub const DONT_FORK: Self = Self(1 << 4);
    /// Pages of hugetlbfs.
    pub const HUGETLB: Self = Self(1 << 5);
    /// Wiped in children (`MADV_WIPEONFORK`).
    pub const WIPE_ON_FORK: Self = Self(1 << 6);
    /// Left out of core dumps.
    pub const DONT_DUMP: Self = Self(1 << 7);
    /// Page frames and pages mixed.
    pub const MIXED: Self = Self(1 << 8);
    /// Huge pages requested.
    pub const HUGE_PAGE: Self = Self(1 << 9);
    /// Huge pages refused.
    pub const NO_HUGE_PAGE: Self = Self(1 << 10);
    /// Equal pages may be merged (KSM).
    pub const MERGEABLE: Self = Self(1 << 11);
    /// Watched by a userfaultfd in any way.
    pub const USERFAULT: Self = Self(7 << 12);
    /// Shadow stack.
    pub const SHADOW_STACK: Self = Self(1 << 15);
    /// Sealed (`mseal`).
    pub const SEALED: Self = Self(1 << 16);
    /// Memory tagging (AArch64).
    pub const TAGGED: Self = Self(1 << 17);
    /// May contain guard regions (kernels after 6.18; earlier ones do not report them).
    pub const GUARDED: Self = Self(1 << 18);
    /// May be dropped under memory pressure.
    pub const DROPPABLE: Self = Self(1 << 19);
    /// Read sequentially.
    pub const SEQUENTIAL: Self = Self(1 << 20);
    /// Read at random.
    pub const RANDOM: Self = Self(1 << 21);
    /// Guarded pages (`PROT_BTI`, AArch64).
    pub const BRANCH_TARGETS: Self = Self(1 << 22);
    /// Not counted as committed (`MAP_NORESERVE`).
    pub const NO_RESERVE: Self = Self(1 << 23);

    /// Returns these flags and those of `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether any flag of `other` is among these.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns these flags without those of `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns a number that stands for the flags in this process, for tables.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the flags of a number that [`bits`](Self::bits) returned.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    fn parse(text: &[u8]) -> Self {
        let bit = |word: &[u8]| Self::LETTERS.iter().position(|letters| letters == word).map_or(0, |place| 1 << place);
        Self(text.split(|byte| *byte == b' ').map(bit).fold(0, |all, bit| all | bit))
    }
}

/// The kind of a mapping, according to its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Label {
    /// No name.
    #[default]
    None,
    /// `[heap]`, the memory of `brk`.
    Heap,
    /// `[stack]` of the main thread.
    Stack,
    /// `[anon:…]`, named by `PR_SET_VMA_ANON_NAME`.
    Named,
    /// Another name in brackets: `[vdso]`, `[vvar]`, `[uprobes]`, ….
    Kernel,
    /// An [`Extent`](crate::memory::extent::Extent) of frozen memory.
    Extent,
    /// An [`Extent`](crate::memory::extent::Extent) of a snapshot.
    Snapshot,
    /// Another file.
    File,
}

impl Label {
    pub(super) fn parse(name: &[u8]) -> Self {
        match name {
            b"" => Self::None,
            b"[heap]" => Self::Heap,
            b"[stack]" => Self::Stack,
            name if name.starts_with(b"[anon:") => Self::Named,
            name if name.starts_with(b"[") => Self::Kernel,
            name if name == EXTENT_NAME.as_bytes() => Self::Extent,
            name if name == SNAPSHOT_NAME.as_bytes() => Self::Snapshot,
            _ => Self::File,
        }
    }
}

/// One mapping with its flags and figures. Dereferences to its line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Vma {
    /// Its addresses, rights and file.
    pub line: MapLine,
    /// The kind according to its name.
    pub label: Label,
    /// Bytes of anonymous memory in it, present or swapped; 0 without figures.
    pub anonymous: usize,
    /// Bytes of that which are mapped as huge pages; 0 without figures.
    pub huge: usize,
    /// Its flags; none without figures.
    pub flags: VmaFlags,
    /// The memory protection key; 0 for none and without figures.
    pub protection_key: u32,
}

impl Deref for Vma {
    type Target = MapLine;

    fn deref(&self) -> &MapLine {
        &self.line
    }
}

impl Vma {
    /// Creates a mapping without flags and figures.
    pub const fn new(line: MapLine, label: Label) -> Self {
        Self { line, label, anonymous: 0, huge: 0, flags: VmaFlags(0), protection_key: 0 }
    }

    /// Parses the first record of a list with figures; `None` if its line of flags is not whole.
    pub(crate) fn parse_first(text: &[u8]) -> Option<Self> {
        let mut lines = text.split_inclusive(|byte| *byte == b'\n').map_while(|line| line.strip_suffix(b"\n"));
        let (line, name) = MapLine::parse(lines.next()?).ok()?;
        let mut vma = Self::new(line, Label::parse(name));
        for line in lines {
            // The next record begins with an address.
            let colon = line.iter().position(|byte| matches!(byte, b':' | b' ')).filter(|at| line[*at] == b':')?;
            let name = &line[..colon];
            vma.take(name, line[colon + 1..].trim_ascii());
            if name == b"VmFlags" {
                return Some(vma);
            }
        }
        None
    }

    /// Parses a `Name: value` line. Sizes that it does not understand count as zero; unknown names come from newer
    /// kernels.
    fn take(&mut self, name: &[u8], value: &[u8]) {
        let number =
            || value.split(|byte| *byte == b' ').next().and_then(|text| str::from_utf8(text).ok()?.parse().ok());
        match name {
            b"Anonymous" | b"Swap" => {
                let kib: usize = number().unwrap_or(0);
                self.anonymous = self.anonymous.saturating_add(kib.saturating_mul(1024));
            }
            b"AnonHugePages" => self.huge = number().map_or(0, |kib: usize| kib.saturating_mul(1024)),
            b"ProtectionKey" => {
                self.protection_key = number().map_or(0, |key: usize| u32::try_from(key).unwrap_or(u32::MAX))
            }
            b"VmFlags" => self.flags = VmaFlags::parse(value),
            _ => {}
        }
    }
}

/// How much to ask of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Detail {
    /// `/proc/thread-self/maps`: only the places of mappings. Quick.
    Places,
    /// `/proc/thread-self/smaps`: flags and figures too. The kernel walks all page tables.
    Figures,
}

impl Detail {
    const fn file(self) -> &'static str {
        match self {
            Self::Places => "maps",
            Self::Figures => "smaps",
        }
    }
}

/// Bytes read at a time; no line is longer (a path has up to 4096 bytes, each of which may become four).
const BUFFER: usize = 64 << 10;

/// All mappings by ascending address, in their own memory.
#[derive(Debug)]
pub struct Vmas {
    all: MappedVec<Vma>,
    text: MappedVec<[u8; BUFFER]>,
}

impl Vmas {
    /// Makes room for `capacity` mappings, but reads none.
    ///
    /// # Errors
    ///
    /// See [`MapError`].
    pub fn with_capacity(capacity: usize) -> Result<Self, MapError> {
        let mut text = MappedVec::with_capacity(1)?;
        // Cannot be full: there is room for one.
        let _ = text.push([0; BUFFER]);
        Ok(Self { all: MappedVec::with_capacity(capacity)?, text })
    }

    /// Makes room for no mapping, without memory. It cannot be read.
    pub fn without_room() -> Self {
        Self { all: MappedVec::without_room(), text: MappedVec::without_room() }
    }

    /// Reads the list again. Makes system calls and touches only its own memory.
    ///
    /// # Errors
    ///
    /// See [`VmasError`].
    pub fn read(&mut self, detail: Detail) -> Result<(), VmasError> {
        self.read_most(detail, usize::MAX)
    }

    /// Does the same, but stops with an error at the first mapping after `most` of them.
    ///
    /// # Errors
    ///
    /// See [`VmasError`].
    pub fn read_most(&mut self, detail: Detail, most: usize) -> Result<(), VmasError> {
        let path = match detail {
            Detail::Places => c"/proc/thread-self/maps",
            Detail::Figures => c"/proc/thread-self/smaps",
        };
        let file = detail.file();
        self.all.clear();
        let failed = |source| VmasError::Read { file, source };
        let source = BriefFile::open(path, OFlags::RDONLY).map_err(failed)?;
        self.read_most_from(source.as_fd(), detail, most)?;
        // Only a thread that has ended has no memory.
        if self.all.is_empty() { Err(failed(Errno::SRCH)) } else { Ok(()) }
    }

    /// Reads the list from a file with such text, from its start. Does not move the file's position.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn read_from(&mut self, source: BorrowedFd<'_>, detail: Detail) -> Result<(), VmasError> {
        self.read_most_from(source, detail, usize::MAX)
    }

    fn read_most_from(&mut self, source: BorrowedFd<'_>, detail: Detail, most: usize) -> Result<(), VmasError> {
        let file = detail.file();
        self.all.clear();
        let Self { all, text } = self;
        let Some(text) = text.first_mut() else { return Err(VmasError::Read { file, source: Errno::NOBUFS }) };
        each_line(source, text, file, &mut |text, line| {
            take_line(all, text, most).map_err(|error| match error {
                Bad::Lacks(expected) => VmasError::Parse { file, line, expected },
                Bad::Full(full) => full.into(),
            })
        })
    }

    /// Returns the list, for whoever learns more of a mapping than was read.
    pub fn all_mut(&mut self) -> &mut [Vma] {
        &mut self.all
    }

    /// Returns the addresses of the memory that this itself uses.
    pub fn own_ranges(&self) -> [Range<usize>; 2] {
        [self.all.range(), self.text.range()]
    }
}

impl Deref for Vmas {
    type Target = [Vma];

    fn deref(&self) -> &[Vma] {
        &self.all
    }
}

enum Bad {
    Lacks(&'static str),
    Full(Full),
}

fn take_line(all: &mut MappedVec<Vma>, text: &[u8], most: usize) -> Result<(), Bad> {
    if text.is_empty() {
        return Ok(());
    }
    // A header's first field has no colon.
    match text.iter().position(|byte| matches!(byte, b':' | b' ')) {
        Some(colon) if text[colon] == b':' => {
            if let Some(vma) = all.last_mut() {
                vma.take(&text[..colon], text[colon + 1..].trim_ascii());
            }
            Ok(())
        }
        _ => {
            let (line, name) = MapLine::parse(text).map_err(Bad::Lacks)?;
            if all.len() >= most {
                return Err(Bad::Full(Full { capacity: most }));
            }
            all.push(Vma::new(line, Label::parse(name))).map_err(Bad::Full)
        }
    }
}

#[cfg(test)]
#[path = "vmas_tests.rs"]
mod tests;

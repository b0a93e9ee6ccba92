//! `/proc/thread-self/smaps`: how much of each mapping is present, and how much of that in huge pages.
//!
//! Format: `proc_pid_smaps(5)`, written by `__show_smap` in `fs/proc/task_mmu.c`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

use super::maps::MapEntry;
use crate::proc::{ParseError, ProcError, address};

const PATH: &str = "/proc/thread-self/smaps";

/// The two-letter flags of a mapping (`VmFlags`), such as `ex` or `hg`; `proc_pid_smaps(5)` lists them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VmFlags(Vec<[u8; 2]>);

impl VmFlags {
    /// Returns whether the mapping has this flag.
    pub fn contains(&self, flag: &[u8; 2]) -> bool {
        self.0.contains(flag)
    }
}

/// One mapping and its figures, all in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmapsEntry {
    /// The mapping.
    pub map: MapEntry,
    /// Present memory, without huge pages of hugetlbfs.
    pub rss: usize,
    /// Present memory that belongs to no file; in a private mapping of a file, what was written.
    pub anonymous: usize,
    /// Anonymous memory mapped by huge page table entries.
    pub anon_huge_pages: usize,
    /// Shared memory (memfd, tmpfs) mapped by huge page table entries.
    pub shmem_pmd_mapped: usize,
    /// File memory mapped by huge page table entries.
    pub file_pmd_mapped: usize,
    /// hugetlbfs memory that only this process maps.
    pub private_hugetlb: usize,
    /// hugetlbfs memory that is mapped more than once.
    pub shared_hugetlb: usize,
    /// The mapping's flags.
    pub vm_flags: VmFlags,
    /// The memory protection key; 0 for none, and where the CPU has no keys.
    pub protection_key: u32,
}

impl SmapsEntry {
    /// Returns the bytes mapped by page table entries of the middle level (PMD) or above.
    pub fn pmd_mapped(&self) -> usize {
        [self.anon_huge_pages, self.shmem_pmd_mapped, self.file_pmd_mapped, self.private_hugetlb, self.shared_hugetlb]
            .into_iter()
            .fold(0, usize::saturating_add)
    }

    fn new(map: MapEntry) -> Self {
        Self {
            map,
            rss: 0,
            anonymous: 0,
            anon_huge_pages: 0,
            shmem_pmd_mapped: 0,
            file_pmd_mapped: 0,
            private_hugetlb: 0,
            shared_hugetlb: 0,
            vm_flags: VmFlags::default(),
            protection_key: 0,
        }
    }

    /// Parses one `Name: value` line; skips unknown names, which newer kernels add.
    fn take(&mut self, text: &[u8], line: usize) -> Result<(), ParseError> {
        let lacks = |expected| ParseError::new(line, text, expected);
        let colon = text.iter().position(|byte| *byte == b':').ok_or_else(|| lacks("name before a colon"))?;
        let (name, value) = (&text[..colon], text[colon + 1..].trim_ascii());
        let place = match name {
            b"Rss" => &mut self.rss,
            b"Anonymous" => &mut self.anonymous,
            b"AnonHugePages" => &mut self.anon_huge_pages,
            b"ShmemPmdMapped" => &mut self.shmem_pmd_mapped,
            b"FilePmdMapped" => &mut self.file_pmd_mapped,
            b"Private_Hugetlb" => &mut self.private_hugetlb,
            b"Shared_Hugetlb" => &mut self.shared_hugetlb,
            b"ProtectionKey" => {
                let key = address(value, 10).and_then(|key| u32::try_from(key).ok());
                self.protection_key = key.ok_or_else(|| lacks("number of a key"))?;
                return Ok(());
            }
            b"VmFlags" => {
                let flags = value.split(|byte| *byte == b' ').filter_map(|flag| flag.try_into().ok());
                self.vm_flags = VmFlags(flags.collect());
                return Ok(());
            }
            _ => return Ok(()),
        };
        let kib = value.strip_suffix(b" kB").and_then(|value| address(value.trim_ascii_end(), 10));
        *place = kib.and_then(|kib| kib.checked_mul(1024)).ok_or_else(|| lacks("size in kB"))?;
        Ok(())
    }
}

/// Why the next entry could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SmapsError {
    /// The reader failed.
    #[error("reading failed")]
    Read(#[source] io::Error),
    /// A line has an unknown form.
    #[error("a line is not understood")]
    Parse(#[source] ParseError),
}

/// Iterates over the entries in the text of an smaps file, without keeping all of it.
///
/// The file of a process with many mappings is megabytes long, and the kernel produces it while it is read: stop
/// reading as soon as possible.
#[derive(Debug)]
pub struct Entries<R> {
    reader: R,
    text: Vec<u8>,
    line: usize,
    pending: Option<SmapsEntry>,
}

impl<R: BufRead> Entries<R> {
    /// Starts at the beginning of `reader`.
    pub fn new(reader: R) -> Self {
        Self { reader, text: Vec::new(), line: 0, pending: None }
    }

    fn advance(&mut self) -> Result<Option<SmapsEntry>, SmapsError> {
        loop {
            self.text.clear();
            if self.reader.read_until(b'\n', &mut self.text).map_err(SmapsError::Read)? == 0 {
                return Ok(self.pending.take());
            }
            self.line += 1;
            let text = self.text.strip_suffix(b"\n").unwrap_or(&self.text);
            if text.is_empty() {
                continue;
            }
            match &mut self.pending {
                Some(entry) if is_figure(text) => entry.take(text, self.line).map_err(SmapsError::Parse)?,
                pending => {
                    let map = MapEntry::parse(text, self.line).map_err(SmapsError::Parse)?;
                    if let Some(entry) = pending.replace(SmapsEntry::new(map)) {
                        return Ok(Some(entry));
                    }
                }
            }
        }
    }
}

/// Returns whether a line is `Name: value` and not a header. A header's first field has no colon.
fn is_figure(text: &[u8]) -> bool {
    text.iter().find(|byte| matches!(byte, b':' | b' ')) == Some(&b':')
}

impl<R: BufRead> Iterator for Entries<R> {
    type Item = Result<SmapsEntry, SmapsError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

/// Returns the entries of this process that share a byte with `range`.
///
/// # Errors
///
/// `/proc` is not mounted, or a line has an unknown form.
pub fn overlapping(range: Range<usize>) -> Result<Vec<SmapsEntry>, ProcError> {
    let mut found = Vec::new();
    each_overlapping(range, &mut |entry| found.push(entry))?;
    Ok(found)
}

/// Does what [`overlapping`] does, one entry at a time.
///
/// # Errors
///
/// As for [`overlapping`].
pub fn each_overlapping(range: Range<usize>, take: &mut dyn FnMut(SmapsEntry)) -> Result<(), ProcError> {
    let path = Path::new(PATH);
    let file = File::open(path).map_err(|source| ProcError::read(path, source))?;
    // Holds some ten entries: an allocator that returns nothing keeps for ever what is touched.
    for entry in Entries::new(BufReader::with_capacity(1 << 13, file)) {
        let entry = entry.map_err(|error| match error {
            SmapsError::Read(source) => ProcError::read(path, source),
            SmapsError::Parse(source) => ProcError::parse(path, source),
        })?;
        if entry.map.start >= range.end {
            break;
        }
        if entry.map.overlap(&range) != 0 {
            take(entry);
        }
    }
    Ok(())
}

/// Returns the bytes of `range` that huge page table entries map.
///
/// The kernel counts per mapping: if a mapping reaches beyond `range`, its whole figure counts, but at most the bytes
/// that it shares with `range`.
///
/// # Errors
///
/// `/proc` is not mounted, or a line has an unknown form.
pub fn pmd_mapped_bytes(range: Range<usize>) -> Result<usize, ProcError> {
    let entries = overlapping(range.clone())?;
    Ok(entries.iter().map(|entry| entry.pmd_mapped().min(entry.map.overlap(&range))).sum())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TWO: &str = "\
7f0000000000-7f0000200000 r-xs 00000000 00:01 7 /memfd:pack (deleted)
Size:               2048 kB
Rss:                2048 kB
AnonHugePages:         0 kB
ShmemPmdMapped:     2048 kB
ProtectionKey:         3
VmFlags: rd ex sh mr mw me ms sd
7f0000200000-7f0000201000 rw-p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             4 kB
VmFlags: rd wr
";

    #[test]
    fn entries_are_told_apart() {
        let entries: Vec<_> = Entries::new(TWO.as_bytes()).collect::<Result<_, _>>().expect("a valid text");
        assert_eq!(entries.len(), 2);
        assert_eq!((entries[0].rss, entries[0].pmd_mapped()), (2 << 20, 2 << 20));
        assert!(entries[0].vm_flags.contains(b"ex") && !entries[0].vm_flags.contains(b"wr"));
        assert_eq!((entries[1].rss, entries[1].anonymous, entries[1].pmd_mapped()), (4096, 4096, 0));
        assert_eq!((entries[0].protection_key, entries[1].protection_key), (3, 0));
    }

    #[test]
    fn a_bad_size_is_named() {
        let text = TWO.replace("Rss:                   4 kB", "Rss: many");
        let error = Entries::new(text.as_bytes()).find_map(Result::err).expect("a bad line");
        assert!(matches!(error, SmapsError::Parse(ParseError { line: 9, .. })), "{error:?}");
    }

    #[test]
    fn this_stack_is_found() {
        let here = 0_u8;
        let at = std::ptr::from_ref(&here).addr();
        let entries = overlapping(at..at + 1).expect("/proc is mounted");
        assert_eq!(entries.len(), 1);
        assert!(entries[0].rss > 0 && entries[0].vm_flags.contains(b"wr"));
        assert!(pmd_mapped_bytes(at..at + 1).expect("/proc is mounted") <= 1);
    }

    proptest! {
        #[test]
        fn no_input_panics(
            text: Vec<u8>,
            lines in concat!(
                "([0-9a-f]{1,16}-[0-9a-f]{1,16} [rwxps-]{4} 0 0:0 0|",
                "Rss: [0-9]{0,25} kB|VmFlags:[ a-z]{0,9}|\n){0,9}",
            ),
        ) {
            let _: Option<_> = Entries::new(text.as_slice()).find(Result::is_err);
            let _: Option<_> = Entries::new(lines.as_bytes()).find(Result::is_err);
        }
    }
}

//! `/proc/thread-self/maps`: the mappings of this process.
//!
//! Format: `proc_pid_maps(5)`, written by `show_map_vma` in `fs/proc/task_mmu.c`.

use std::ffi::OsStr;
use std::fmt;
use std::io::{ErrorKind, Read};
use std::ops::{Deref, Range};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::proc::{ParseError, ProcError, address, number, read_with};

const PATH: &str = "/proc/thread-self/maps";

/// The rights of a mapping, and whether its writes are shared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Permissions(u8);

impl Permissions {
    /// `r`
    pub const READ: Self = Self(1);
    /// `w`
    pub const WRITE: Self = Self(2);
    /// `x`
    pub const EXECUTE: Self = Self(4);
    /// `s`, where a private mapping has `p`
    pub const SHARED: Self = Self(8);
    /// `rw`
    pub const READ_WRITE: Self = Self::READ.union(Self::WRITE);

    /// Returns whether these contain all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns these permissions and those of `other`.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns whether one mapping is both writable and executable, which Palimpsest never makes.
    pub const fn is_writable_and_executable(self) -> bool {
        self.contains(Self::WRITE.union(Self::EXECUTE))
    }

    /// Parses the four letters of the kernel, such as `r-xp`.
    fn parse(text: &[u8]) -> Option<Self> {
        let &[read, write, execute, shared] = text else {
            return None;
        };
        let mut all = Self::default();
        for (letter, set, clear, flag) in [
            (read, b'r', b'-', Self::READ),
            (write, b'w', b'-', Self::WRITE),
            (execute, b'x', b'-', Self::EXECUTE),
            (shared, b's', b'p', Self::SHARED),
        ] {
            if letter == set {
                all = all.union(flag);
            } else if letter != clear {
                return None;
            }
        }
        Some(all)
    }
}

impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |flag, set, clear| if self.contains(flag) { set } else { clear };
        write!(
            f,
            "{}{}{}{}",
            letter(Self::READ, 'r', '-'),
            letter(Self::WRITE, 'w', '-'),
            letter(Self::EXECUTE, 'x', '-'),
            letter(Self::SHARED, 's', 'p'),
        )
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permissions({self})")
    }
}

/// The device of a mapped file; 0:0 for anonymous memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// The fields of a mapping (a VMA) that every list has, before its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapLine {
    /// First address.
    pub start: usize,
    /// One past the last address.
    pub end: usize,
    /// The mapping's rights.
    pub permissions: Permissions,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The file's device.
    pub device: Device,
    /// The file's inode; 0 for anonymous memory.
    pub inode: u64,
}

impl MapLine {
    /// Returns the addresses.
    pub const fn range(&self) -> Range<usize> {
        self.start..self.end
    }

    /// Returns the number of bytes common to this mapping and `range`.
    pub fn overlap(&self, range: &Range<usize>) -> usize {
        self.end.min(range.end).saturating_sub(self.start.max(range.start))
    }

    /// Parses one line without its newline. Returns the mapping and its name as the kernel prints it, which may be
    /// empty.
    ///
    /// # Errors
    ///
    /// What the line lacks.
    pub fn parse(text: &[u8]) -> Result<(Self, &[u8]), &'static str> {
        let (range, rest) = field(text);
        let (permissions, rest) = field(rest);
        let (offset, rest) = field(rest);
        let (device, rest) = field(rest);
        let (inode, rest) = field(rest);

        let (start, end) = pair(range, b'-').ok_or("address range")?;
        let start = address(start, 16).ok_or("start address")?;
        let end = address(end, 16).filter(|end| *end > start).ok_or("end address above the start")?;
        let permissions = Permissions::parse(permissions).ok_or("permissions such as r-xp")?;
        let offset = number(offset, 16).ok_or("file offset")?;
        let half = |text| number(text, 16).and_then(|number| u32::try_from(number).ok());
        let (major, minor) = pair(device, b':').ok_or("device such as fe:00")?;
        let device = Device {
            major: half(major).ok_or("major device number")?,
            minor: half(minor).ok_or("minor device number")?,
        };
        let inode = number(inode, 10).ok_or("inode")?;
        // The kernel pads with blanks, so that a leading blank of a name is lost.
        Ok((Self { start, end, permissions, offset, device, inode }, rest.trim_ascii_start()))
    }
}

/// One mapping and its name. Dereferences to the rest of its line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapEntry {
    /// All but the name.
    pub line: MapLine,
    /// The name as the kernel prints it: a path, `/memfd:name (deleted)`, `[stack]`, …. A newline appears as `\012`.
    pub path: Option<PathBuf>,
}

impl MapEntry {
    /// Parses one line without its newline. `number` is the line's number, for the error.
    pub(super) fn parse(text: &[u8], number: usize) -> Result<Self, ParseError> {
        let (line, name) = MapLine::parse(text).map_err(|expected| ParseError::new(number, text, expected))?;
        Ok(Self { line, path: (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(name))) })
    }
}

impl Deref for MapEntry {
    type Target = MapLine;

    fn deref(&self) -> &MapLine {
        &self.line
    }
}

impl fmt::Display for MapEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line: MapLine { start, end, permissions, offset, device, inode }, path } = self;
        write!(
            f,
            "{start:08x}-{end:08x} {permissions} {offset:08x} {:02x}:{:02x} {inode}",
            device.major, device.minor
        )?;
        path.as_ref().map_or(Ok(()), |path| write!(f, " {}", path.display()))
    }
}

/// Returns the first blank-separated field and what follows it.
fn field(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    text.split_at(end)
}

/// Returns the text before and after the first `separator`.
fn pair(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}

/// All mappings of the process, by ascending address.
///
/// The kernel hands out the list page by page, so that it may be inconsistent about mappings made or removed meanwhile.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Maps(Vec<MapEntry>);

impl Maps {
    /// Reads `/proc/thread-self/maps`.
    ///
    /// # Errors
    ///
    /// `/proc` is not mounted, or a line has an unknown form.
    pub fn read() -> Result<Self, ProcError> {
        read_with(PATH, |text| parse(text).map(Self))
    }

    /// Returns the mapping that contains `address`.
    pub fn at(&self, address: usize) -> Option<&MapEntry> {
        self.iter().find(|entry| entry.range().contains(&address))
    }

    /// Returns the mappings that share a byte with `range`.
    pub fn overlapping(&self, range: Range<usize>) -> impl Iterator<Item = &MapEntry> {
        self.iter().filter(move |entry| entry.overlap(&range) != 0)
    }

    /// Returns the mappings that are writable and executable at once.
    pub fn writable_and_executable(&self) -> impl Iterator<Item = &MapEntry> {
        self.iter().filter(|entry| entry.permissions.is_writable_and_executable())
    }
}

impl Deref for Maps {
    type Target = [MapEntry];

    fn deref(&self) -> &[MapEntry] {
        &self.0
    }
}

impl IntoIterator for Maps {
    type Item = MapEntry;
    type IntoIter = std::vec::IntoIter<MapEntry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Parses the text of a maps file.
///
/// # Errors
///
/// The first line with an unknown form.
pub fn parse(text: impl AsRef<[u8]>) -> Result<Vec<MapEntry>, ParseError> {
    text.as_ref()
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, text)| !text.is_empty())
        .map(|(index, text)| MapEntry::parse(text, index + 1))
        .collect()
}

/// Returns the number of the process's mappings, for comparison with `vm.max_map_count`.
///
/// Allocates nothing, since callers ask when mappings are scarce.
///
/// # Errors
///
/// `/proc` is not mounted.
pub fn count() -> Result<usize, ProcError> {
    let path = Path::new(PATH);
    let failed = |source| ProcError::read(path, source);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut buffer = [0; 4096];
    let mut lines = 0;
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(lines),
            Ok(len) => lines += buffer[..len].iter().filter(|byte| **byte == b'\n').count(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_file_mapping_is_read() {
        let entries =
            parse("55adca51d000-55adca523000 r-xp 00002000 fe:00 247278                     /usr/bin/a b (deleted)\n");
        let entry = &entries.expect("a valid line")[0];
        assert_eq!(entry.range(), 0x55ad_ca51_d000..0x55ad_ca52_3000);
        assert_eq!(entry.permissions.to_string(), "r-xp");
        assert_eq!((entry.offset, entry.inode), (0x2000, 247_278));
        assert_eq!(entry.device, Device { major: 0xfe, minor: 0 });
        assert_eq!(entry.path.as_deref(), Some(Path::new("/usr/bin/a b (deleted)")));
    }

    #[test]
    fn an_anonymous_mapping_has_no_path() {
        let entries = parse("7f0000000000-7f0000001000 rwxs 00000000 00:00 0 \n").expect("a valid line");
        assert_eq!(entries[0].path, None);
        assert!(entries[0].permissions.is_writable_and_executable());
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = parse("1000-2000 r-xp 0 00:00 0\n1000-2000 r?xp 0 00:00 0\n").expect_err("a bad line");
        assert_eq!(error.line, 2);
        assert_eq!(error.to_string(), "line 2 is \"1000-2000 r?xp 0 00:00 0\", which has no permissions such as r-xp");
        assert!(parse("2000-1000 r-xp 0 00:00 0").is_err(), "an empty range");
        assert!(parse("1-10000000000000000 r-xp 0 00:00 0").is_err(), "an overflow");
    }

    #[test]
    fn this_process_is_read() {
        let here = std::ptr::from_ref(&PATH).addr();
        let maps = Maps::read().expect("/proc is mounted");
        assert!(maps.at(here).is_some_and(|entry| entry.permissions.contains(Permissions::READ)));
        assert_eq!(maps.overlapping(here..here + 1).count(), 1);
        // Other tests of this program map and unmap meanwhile.
        let counted = || count().expect("/proc is mounted").abs_diff(Maps::read().expect("/proc is mounted").len());
        assert!((0..1000).any(|_| counted() < 8));
    }

    prop_compose! {
        fn any_entry()(
            start in 0..usize::MAX, len in 1..usize::MAX, permissions in 0..16_u8,
            offset: u64, major: u32, minor: u32, inode: u64,
            path in proptest::option::of("[/\\[a-z][ -~]{0,30}"),
        ) -> MapEntry {
            let (end, permissions, device) =
                (start.saturating_add(len), Permissions(permissions), Device { major, minor });
            let line = MapLine { start, end, permissions, offset, device, inode };
            MapEntry { line, path: path.map(PathBuf::from) }
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(entries in proptest::collection::vec(any_entry(), 0..8)) {
            let text: String = entries.iter().map(|entry| format!("{entry}\n")).collect();
            prop_assert_eq!(parse(text), Ok(entries));
        }

        #[test]
        fn no_input_panics(text: Vec<u8>, digits in "[0-9a-f: \\-rwxps\n]{0,80}") {
            let _: Result<_, _> = parse(text);
            let _: Result<_, _> = parse(digits);
        }
    }
}

//! The dynamic symbols of the executable and the shared libraries that the process has loaded, read from their files.
//!
//! `dlsym` would be shorter, but calling it is `unsafe`, and this crate has none. The difference that remains: symbols
//! whose value is a selector (`STT_GNU_IFUNC`) or is per thread are not offered, and neither are those of the vDSO,
//! which has no file.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, Sym};
use object::{Endianness, ReadCache, ReadRef};

/// What has been read so far.
#[derive(Default)]
pub(super) struct ProcessSymbols {
    files: HashSet<(PathBuf, u64)>,
    symbols: HashMap<String, usize>,
}

impl ProcessSymbols {
    /// The address of `name`; files loaded since the last miss are read first.
    pub(super) fn address(&mut self, name: &str) -> Option<usize> {
        if !self.symbols.contains_key(name) {
            self.read_new_files();
        }
        self.symbols.get(name).copied()
    }

    /// Adds the symbols of files that were mapped since the last call. A file that cannot be read, or is no ELF file,
    /// has no symbols to offer; the caller then reports the name as undefined.
    fn read_new_files(&mut self) {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mappings: Vec<_> = maps.lines().filter_map(FileMapping::parse).collect();
        for start in mappings.iter().filter(|mapping| mapping.offset == 0) {
            if self.files.insert((start.path.to_owned(), start.range.start)) {
                for (name, address) in dynamic_symbols(start, &mappings).unwrap_or_default() {
                    // The first definition wins, as in the dynamic linker's search.
                    self.symbols.entry(name).or_insert(address);
                }
            }
        }
    }
}

/// One line of `/proc/self/maps` that maps a file.
#[derive(Debug, PartialEq, Eq)]
struct FileMapping<'a> {
    range: Range<u64>,
    executable: bool,
    /// Offset in the file, in bytes.
    offset: u64,
    path: &'a Path,
}

impl<'a> FileMapping<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let executable = words.next()?.contains('x');
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let path = words.nth(2)?.trim_start();
        path.starts_with('/').then_some(())?;
        let start = u64::from_str_radix(start, 16).ok()?;
        let end = u64::from_str_radix(end, 16).ok()?;
        Some(Self { range: start..end, executable, offset, path: Path::new(path) })
    }
}

/// Names and addresses that the file whose start is mapped by `start` exports, if it is loaded there.
fn dynamic_symbols(start: &FileMapping<'_>, all: &[FileMapping<'_>]) -> Option<Vec<(String, usize)>> {
    let cache = ReadCache::new(File::open(start.path).ok()?);
    let data = &cache;
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, data).ok()?;
    let mut loaded = segments.iter().filter(|segment| segment.p_type(endian) == elf::PT_LOAD);
    let first = loaded.clone().next()?;
    let bias = start.range.start.wrapping_sub(first.p_vaddr(endian).wrapping_sub(first.p_offset(endian)));
    // Libraries are also mapped just to be read, for instance by whoever prints a backtrace. Only a loaded one has its
    // code mapped as such, and where the program headers say.
    let code = loaded.find(|segment| segment.p_flags(endian).0 & elf::PF_X.0 != 0)?;
    let code = code.p_vaddr(endian).wrapping_add(bias);
    all.iter().any(|m| m.executable && m.path == start.path && m.range.contains(&code)).then_some(())?;
    exported(header, endian, data, bias)
}

/// The exported symbols of an ELF file whose addresses are shifted by `bias`.
fn exported<'data>(
    header: &FileHeader64<Endianness>,
    endian: Endianness,
    data: impl ReadRef<'data>,
    bias: u64,
) -> Option<Vec<(String, usize)>> {
    let sections = header.sections(endian, data).ok()?;
    let table = sections.symbols(endian, data, elf::SHT_DYNSYM).ok()?;
    let versions = sections.versions(endian, data).ok()?;
    let mut symbols = Vec::new();
    for (index, symbol) in table.enumerate() {
        let offered = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_OBJECT)
            && matches!(symbol.st_bind(), elf::STB_GLOBAL | elf::STB_WEAK)
            && symbol.is_definition(endian, table.strings());
        // Older versions of a symbol are there for programs that were linked against them.
        let old = versions.as_ref().is_some_and(|versions| versions.version_index(endian, index).is_hidden());
        if !offered || old {
            continue;
        }
        let name = symbol.name(endian, table.strings()).ok();
        let name = name.and_then(|name| str::from_utf8(name).ok());
        let address = usize::try_from(symbol.st_value(endian).wrapping_add(bias)).ok();
        if let (Some(name), Some(address)) = (name, address) {
            symbols.push((name.to_owned(), address));
        }
    }
    Some(symbols)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_lines() {
        let line = "7f0000001000-7f0000029000 r-xp 00002000 fe:01 1234                       /usr/lib/lib c.so.6";
        let mapping = FileMapping {
            range: 0x7f00_0000_1000..0x7f00_0002_9000,
            executable: true,
            offset: 0x2000,
            path: Path::new("/usr/lib/lib c.so.6"),
        };
        assert_eq!(FileMapping::parse(line), Some(mapping));
        let stack = "7ffd0-7ffd1 rw-p 00000000 00:00 0    [stack]";
        assert_eq!(FileMapping::parse(stack), None);
        assert_eq!(FileMapping::parse("7ffd0-7ffd1 rw-p 00000000 00:00 0 "), None);
        assert_eq!(FileMapping::parse(""), None);
    }

    /// A file that is mapped only to be read is not where its functions are.
    #[test]
    fn files_that_are_only_read() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mappings: Vec<_> = maps.lines().filter_map(FileMapping::parse).collect();
        let libc = mappings.iter().find(|m| m.offset == 0 && m.path.to_str().is_some_and(|p| p.contains("libc.so")));
        let Some(libc) = libc else {
            return; // a static or foreign libc has no such file
        };
        assert!(dynamic_symbols(libc, &mappings).is_some());
        let read_only = FileMapping { range: 0x1000..0x2000, executable: false, offset: 0, path: libc.path };
        assert!(dynamic_symbols(&read_only, &mappings).is_none());
    }

    #[test]
    fn addresses_are_those_of_the_linker() {
        let mut process = ProcessSymbols::default();
        assert_eq!(process.address("getpid"), Some(libc::getpid as *const () as usize));
        assert_eq!(process.address("malloc"), Some(libc::malloc as *const () as usize));
        assert_eq!(process.address("no such symbol"), None);
    }
}

//! The dynamic symbols of the executable and the shared libraries that the process has loaded, read from their files.
//!
//! `dlsym` would be shorter, but calling it is `unsafe`, and this crate has none. The difference that remains: symbols
//! whose value is a selector (`STT_GNU_IFUNC`) or is per thread are not offered, and neither are those of the vDSO,
//! which has no file.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
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
        for (path, base) in maps.lines().filter_map(first_mapping) {
            if self.files.insert((path.to_owned(), base)) {
                for (name, address) in dynamic_symbols(path, base).unwrap_or_default() {
                    // The first definition wins, as in the dynamic linker's search.
                    self.symbols.entry(name).or_insert(address);
                }
            }
        }
    }
}

/// Path and start address of a line of `/proc/self/maps` that maps the start of a file.
fn first_mapping(line: &str) -> Option<(&Path, u64)> {
    let mut words = line.splitn(6, ' ');
    let range = words.next()?;
    let offset = words.nth(1)?;
    let path = words.nth(2)?.trim_start();
    if !path.starts_with('/') || offset.bytes().any(|digit| digit != b'0') {
        return None;
    }
    let start = range.split('-').next()?;
    Some((Path::new(path), u64::from_str_radix(start, 16).ok()?))
}

/// Names and addresses that the file at `path`, whose start is mapped at `base`, exports.
fn dynamic_symbols(path: &Path, base: u64) -> Option<Vec<(String, usize)>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let data = &cache;
    let header = FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let first_address = header
        .program_headers(endian, data)
        .ok()?
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .map(|segment| segment.p_vaddr(endian).wrapping_sub(segment.p_offset(endian)))
        .next()?;
    let bias = base.wrapping_sub(first_address);
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
        let line = "7f0000001000-7f0000029000 r--p 00000000 fe:01 1234                       /usr/lib/lib c.so.6";
        assert_eq!(first_mapping(line), Some((Path::new("/usr/lib/lib c.so.6"), 0x7f00_0000_1000)));
        let later = "7f0000029000-7f0000030000 r-xp 00028000 fe:01 1234   /usr/lib/libc.so.6";
        assert_eq!(first_mapping(later), None);
        assert_eq!(first_mapping("7ffd0-7ffd1 rw-p 00000000 00:00 0    [stack]"), None);
        assert_eq!(first_mapping("7ffd0-7ffd1 rw-p 00000000 00:00 0 "), None);
        assert_eq!(first_mapping(""), None);
    }

    #[test]
    fn addresses_are_those_of_the_linker() {
        let mut process = ProcessSymbols::default();
        assert_eq!(process.address("getpid"), Some(libc::getpid as *const () as usize));
        assert_eq!(process.address("malloc"), Some(libc::malloc as *const () as usize));
        assert_eq!(process.address("no such symbol"), None);
    }
}

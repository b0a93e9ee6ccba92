//! Opens the program's file, and the separate file that may hold its debug information.

use alloc::borrow::{Cow, ToOwned};
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;
use core::ops::Range;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::read::elf::ElfFile64;
use object::{
    CompressedData, CompressionFormat, LittleEndian, Object as _, ObjectKind, ObjectSection as _, ReadCache, ReadRef,
};

use super::DwarfError;
use super::units::Sections;

/// Where distributions put debug information.
const APART: &str = "/usr/lib/debug";

fn foreign(error: impl ToString) -> DwarfError {
    DwarfError::Foreign { reason: error.to_string() }
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> DwarfError {
    move |source| DwarfError::Read { path: path.to_owned(), source }
}

/// Opens a regular file; a pipe could make the caller wait.
fn regular(path: &Path) -> io::Result<File> {
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    File::open(path)
}

/// What identifies the debug information of a program.
struct Identity {
    build_id: Option<Vec<u8>>,
    /// The name of the file, and its checksum.
    link: Option<(Vec<u8>, u32)>,
}

/// Reads the sections of `path`, or of the separate file that holds them, which may lie beside `beside`.
pub(super) fn open(path: &Path, beside: &Path, most: u64) -> Result<Sections, DwarfError> {
    let file = regular(path).map_err(unreadable(path))?;
    let (sections, identity) = read_file(&file, path, most)?;
    if !sections.info.is_empty() {
        return Ok(sections);
    }
    let mut tried = Vec::new();
    for apart in places(&identity, beside) {
        if let Ok(file) = regular(&apart)
            && is_for(&identity, &file, &apart, most)?
        {
            let (sections, _) = read_file(&file, &apart, most)?;
            if !sections.info.is_empty() {
                return Ok(sections);
            }
        }
        tried.push(apart);
    }
    Err(DwarfError::Absent { program: beside.to_owned(), tried })
}

/// Returns the files that may hold the debug information.
fn places(identity: &Identity, beside: &Path) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some([first, rest @ ..]) = identity.build_id.as_deref() {
        let digits: String = rest.iter().map(|byte| alloc::format!("{byte:02x}")).collect();
        places.push(Path::new(APART).join(alloc::format!(".build-id/{first:02x}/{digits}.debug")));
    }
    if let Some((name, _)) = &identity.link {
        // Only a name: the program's file must not choose the folder.
        let name = Path::new(std::ffi::OsStr::from_bytes(name));
        if let (Some(folder), Some(only)) = (beside.parent(), name.file_name())
            && only == name.as_os_str()
        {
            places.push(folder.join(name));
            places.push(folder.join(".debug").join(name));
            places.push(Path::new(APART).join(folder.strip_prefix("/").unwrap_or(folder)).join(name));
        }
    }
    places
}

/// Returns whether the file belongs to the program.
fn is_for(identity: &Identity, file: &File, path: &Path, most: u64) -> Result<bool, DwarfError> {
    if let Some(build_id) = &identity.build_id {
        return within(file, most, |data| {
            let Ok(found) = ElfFile64::<LittleEndian, _>::parse(data) else { return Ok(false) };
            Ok(found.build_id().ok().flatten() == Some(build_id))
        });
    }
    let Some((_, checksum)) = &identity.link else { return Ok(false) };
    let all = file.metadata().map_err(unreadable(path))?.len();
    if all > most {
        return Err(DwarfError::Long { bytes: all, most });
    }
    let mut hasher = crc32fast::Hasher::new();
    let mut bytes = alloc::vec![0; 1 << 16];
    let mut offset = 0;
    // It may grow meanwhile.
    while offset < all {
        let len = file.read_at(&mut bytes, offset).map_err(unreadable(path))?;
        if len == 0 {
            break;
        }
        hasher.update(&bytes[..len]);
        offset += len as u64;
    }
    Ok(hasher.finalize() == *checksum)
}

/// A file of which only so many bytes are read: a hostile one names the same ones as many sections.
#[derive(Clone, Copy)]
struct Limited<'a> {
    cache: &'a ReadCache<&'a File>,
    /// `None` if more were wanted.
    left: &'a Cell<Option<u64>>,
}

impl Limited<'_> {
    fn pay(self, bytes: u64) -> Result<(), ()> {
        self.left.set(self.left.get().and_then(|left| left.checked_sub(bytes)));
        self.left.get().map(drop).ok_or(())
    }
}

impl<'a> ReadRef<'a> for Limited<'a> {
    fn len(self) -> Result<u64, ()> {
        self.cache.len()
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        // What lies beyond the end is never read.
        if self.len()?.checked_sub(offset).is_none_or(|rest| size > rest) {
            return Err(());
        }
        self.pay(size)?;
        self.cache.read_bytes_at(offset, size)
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        // At most 4096 bytes.
        let bytes = self.cache.read_bytes_at_until(range, delimiter)?;
        self.pay(bytes.len() as u64)?;
        Ok(bytes)
    }
}

/// Calls `work` with a file of which at most `most` bytes are read; wanting more is an error, whatever it returns.
fn within<T>(file: &File, most: u64, work: impl FnOnce(Limited<'_>) -> Result<T, DwarfError>) -> Result<T, DwarfError> {
    let (cache, left) = (ReadCache::new(file), Cell::new(Some(most)));
    let result = work(Limited { cache: &cache, left: &left });
    if left.get().is_none() { Err(DwarfError::Memory { most }) } else { result }
}

/// Reads the sections of a file without the rest of it.
fn read_file(file: &File, path: &Path, most: u64) -> Result<(Sections, Identity), DwarfError> {
    within(file, most, |data| {
        read(data, most, |offset, len| {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(len).map_err(|error| unreadable(path)(io::Error::other(error)))?;
            bytes.resize(len, 0);
            file.read_exact_at(&mut bytes, offset).map_err(unreadable(path))?;
            Ok(Cow::Owned(bytes))
        })
    })
}

/// Reads the sections of the bytes of a file.
pub(super) fn parse(bytes: &[u8], most: u64) -> Result<Sections, DwarfError> {
    let (sections, _) = read(bytes, most, |offset, len| {
        let part = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)?.get(..len));
        Ok(Cow::Borrowed(part.ok_or(DwarfError::Wrong { what: "a section reaches beyond the file" })?))
    })?;
    Ok(sections)
}

/// Reads the list of sections from `data`, and their contents by `bytes_at`.
fn read<'a, R: ReadRef<'a>>(
    data: R,
    most: u64,
    mut bytes_at: impl FnMut(u64, usize) -> Result<Cow<'a, [u8]>, DwarfError>,
) -> Result<(Sections, Identity), DwarfError> {
    let len = data.len().map_err(|()| foreign("its length is not known"))?;
    let file = ElfFile64::<LittleEndian, R>::parse(data).map_err(foreign)?;
    if file.kind() == ObjectKind::Relocatable {
        return Err(foreign("it is an object file, whose debug information is not whole before it is linked"));
    }
    let identity = Identity {
        build_id: file.build_id().map_err(foreign)?.map(Vec::from),
        link: file.gnu_debuglink().map_err(foreign)?.map(|(name, checksum)| (Vec::from(name), checksum)),
    };
    let mut sections = Sections::default();
    let mut left = most;
    for section in file.sections() {
        let Ok(name) = section.name_bytes() else { continue };
        let into = match name {
            b".debug_info" => &mut sections.info,
            b".debug_types" => &mut sections.types,
            b".debug_abbrev" => &mut sections.abbreviations,
            b".debug_str" => &mut sections.texts,
            b".debug_line_str" => &mut sections.line_texts,
            b".debug_str_offsets" => &mut sections.text_offsets,
            _ => continue,
        };
        let range = section.compressed_file_range().map_err(foreign)?;
        let all = range.uncompressed_size;
        // What is compressed is read first, and need not be shorter.
        let bytes = all.max(range.compressed_size);
        let long = || DwarfError::Long { bytes: (most - left).saturating_add(bytes), most };
        left = left.checked_sub(bytes).ok_or_else(long)?;
        if range.offset.checked_add(range.compressed_size).is_none_or(|end| end > len) {
            // It has no bytes if the file's sections were moved to another file.
            continue;
        }
        let bytes = bytes_at(range.offset, range.compressed_size as usize)?;
        *into = match range.format {
            CompressionFormat::None => bytes.into_owned(),
            format => {
                let compressed = CompressedData { format, data: &bytes, uncompressed_size: all };
                compressed.decompress().map_err(foreign)?.into_owned()
            }
        };
    }
    Ok((sections, identity))
}

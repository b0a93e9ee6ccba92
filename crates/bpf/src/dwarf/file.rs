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
use palimpsest_sys::open_regular;

use super::DwarfError;
use super::units::{Role, Sections};

/// Where distributions put debug information.
const APART: &str = "/usr/lib/debug";

fn foreign(error: impl ToString) -> DwarfError {
    DwarfError::Foreign { reason: error.to_string() }
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> DwarfError {
    move |source| DwarfError::Read { path: path.to_owned(), source }
}

/// What identifies the debug information of a program.
struct Identity {
    build_id: Option<Vec<u8>>,
    /// The name of the file, and its checksum.
    link: Option<(Vec<u8>, u32)>,
}

/// Reads the sections of `path`, or of the separate file that holds them, which may lie beside `beside`. Returns them
/// with the path of that file, or with `beside`.
pub(super) fn open(path: &Path, beside: &Path, most: u64) -> Result<(Sections, PathBuf), DwarfError> {
    let file = open_regular(path)?;
    let (sections, identity) = read_file(&file, path, Role::Program, &mut Rest::new(most))?;
    if !sections.info.is_empty() {
        return Ok((sections, beside.to_owned()));
    }
    let mut tried = Vec::new();
    for apart in places(&identity, beside) {
        if let Ok(file) = open_regular(&apart)
            && is_for(&identity, &file, &apart, most)?
        {
            let (sections, _) = read_file(&file, &apart, Role::Program, &mut Rest::new(most))?;
            if !sections.info.is_empty() {
                return Ok((sections, apart));
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
        return within(file, &mut { most }, |data| {
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
    left: &'a Cell<u64>,
    /// Whether more were wanted.
    is_over: &'a Cell<bool>,
}

impl Limited<'_> {
    fn pay(self, bytes: u64) -> Result<(), ()> {
        let left = self.left.get().checked_sub(bytes);
        self.is_over.set(self.is_over.get() || left.is_none());
        self.left.set(left.ok_or(())?);
        Ok(())
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

/// Calls `work` with a file of which at most `left` bytes are read, and counts these; wanting more is an error,
/// whatever it returns.
fn within<T>(
    file: &File,
    left: &mut u64,
    work: impl FnOnce(Limited<'_>) -> Result<T, DwarfError>,
) -> Result<T, DwarfError> {
    let most = *left;
    let (cache, rest, is_over) = (ReadCache::new(file), Cell::new(most), Cell::new(false));
    let result = work(Limited { cache: &cache, left: &rest, is_over: &is_over });
    *left = rest.get();
    if is_over.get() { Err(DwarfError::Memory { most }) } else { result }
}

/// Reads the sections of a `.dwo` file, or of a package of such files; `None` if there is no such file. Takes what was
/// read from `left`, also if it is of no use: reading takes time.
pub(super) fn open_split(path: &Path, left: &mut u64) -> Result<Option<Sections>, DwarfError> {
    let Ok(file) = open_regular(path) else { return Ok(None) };
    let most = *left;
    let mut rest = Rest::new(most);
    let read = read_file(&file, path, Role::Split, &mut rest);
    *left = rest.lists.saturating_sub(most - rest.sections);
    Ok(Some(read?.0))
}

/// How many bytes of a file may still be read.
struct Rest {
    /// Of the list of its sections, of its symbols and notes.
    lists: u64,
    /// Of its sections.
    sections: u64,
}

impl Rest {
    const fn new(most: u64) -> Self {
        Self { lists: most, sections: most }
    }
}

/// Reads the sections of a file without the rest of it.
fn read_file(file: &File, path: &Path, role: Role, rest: &mut Rest) -> Result<(Sections, Identity), DwarfError> {
    let Rest { lists, sections } = rest;
    within(file, lists, |data| {
        read(data, role, sections, |offset, len| {
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
    let (sections, _) = read(bytes, Role::Program, &mut { most }, |offset, len| {
        let part = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)?.get(..len));
        Ok(Cow::Borrowed(part.ok_or(DwarfError::Wrong { what: "a section reaches beyond the file" })?))
    })?;
    Ok(sections)
}

/// Reads the list of sections from `data`, and their contents by `bytes_at`. Takes their bytes from `left`.
fn read<'a, R: ReadRef<'a>>(
    data: R,
    role: Role,
    left: &mut u64,
    mut bytes_at: impl FnMut(u64, usize) -> Result<Cow<'a, [u8]>, DwarfError>,
) -> Result<(Sections, Identity), DwarfError> {
    let len = data.len().map_err(|()| foreign("its length is not known"))?;
    let file = ElfFile64::<LittleEndian, R>::parse(data).map_err(foreign)?;
    if role == Role::Program && file.kind() == ObjectKind::Relocatable {
        return Err(foreign("it is an object file, whose debug information is not whole before it is linked"));
    }
    let identity = Identity {
        build_id: file.build_id().map_err(foreign)?.map(Vec::from),
        link: file.gnu_debuglink().map_err(foreign)?.map(|(name, checksum)| (Vec::from(name), checksum)),
    };
    let mut sections = Sections::default();
    let most = *left;
    for section in file.sections() {
        let Ok(name) = section.name_bytes() else { continue };
        let Some(into) = section_of(&mut sections, name, role) else { continue };
        let range = section.compressed_file_range().map_err(foreign)?;
        let all = range.uncompressed_size;
        // What is compressed is read first, and need not be shorter.
        let bytes = all.max(range.compressed_size);
        let long = || DwarfError::Long { bytes: (most - *left).saturating_add(bytes), most };
        *left = left.checked_sub(bytes).ok_or_else(long)?;
        if range.offset.checked_add(range.compressed_size).is_none_or(|end| end > len) {
            // It has no bytes if the file's sections were moved to another file.
            continue;
        }
        let bytes = bytes_at(range.offset, range.compressed_size as usize)?;
        let contents = match range.format {
            CompressionFormat::None => bytes.into_owned(),
            format => {
                let compressed = CompressedData { format, data: &bytes, uncompressed_size: all };
                compressed.decompress().map_err(foreign)?.into_owned()
            }
        };
        // A `.dwo` file that was not linked may have a section for each type.
        if into.is_empty() { *into = contents } else { into.extend(contents) }
    }
    Ok((sections, identity))
}

/// Returns where the contents of the section with this name go, if they are read.
fn section_of<'a>(sections: &'a mut Sections, name: &[u8], role: Role) -> Option<&'a mut Vec<u8>> {
    // What GNU's tools once compressed has another name.
    let name = name.strip_prefix(b".z").or_else(|| name.strip_prefix(b"."))?;
    match (role, name) {
        (Role::Split, b"debug_cu_index") => return Some(&mut sections.unit_index),
        (Role::Split, b"debug_tu_index") => return Some(&mut sections.type_index),
        _ => {}
    }
    let name = if role == Role::Split { name.strip_suffix(b".dwo")? } else { name };
    Some(match name {
        b"debug_info" => &mut sections.info,
        b"debug_types" => &mut sections.types,
        b"debug_abbrev" => &mut sections.abbreviations,
        b"debug_str" => &mut sections.texts,
        b"debug_line_str" => &mut sections.line_texts,
        b"debug_str_offsets" => &mut sections.text_offsets,
        _ => return None,
    })
}

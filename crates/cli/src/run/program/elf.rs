//! How an ELF file is linked, from its headers.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::{env, ffi::OsStr};

use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use palimpsest_numa::Piece;
use palimpsest_sys::HUGE_PAGE;

/// How a program is linked.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Linking {
    /// It is for another machine.
    Foreign {
        /// `e_machine`.
        machine: elf::Machine,
    },
    /// It has no dynamic linker.
    Static,
    /// It has this one.
    Dynamic {
        /// Its path.
        linker: PathBuf,
    },
}

/// A file is not an ELF program.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) struct NotElf(#[from] object::read::Error);

/// Reads the headers of `file`, and nothing else of it, however large it is.
///
/// # Errors
///
/// It is not an ELF file, or a broken one.
pub(super) fn linking(file: &File) -> Result<Linking, NotElf> {
    let cache = ReadCache::new(file);
    let own_machine = if env::consts::ARCH == "aarch64" { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    let header = match FileHeader64::<Endianness>::parse(&cache) {
        Ok(header) => header,
        // A 32-bit program is one, but not for us.
        Err(error) => {
            let narrow = elf::FileHeader32::<Endianness>::parse(&cache).map_err(|_| error)?;
            let endian = narrow.endian()?;
            return Ok(Linking::Foreign { machine: narrow.e_machine(endian) });
        }
    };
    let endian = header.endian()?;
    let machine = header.e_machine(endian);
    if machine != own_machine {
        return Ok(Linking::Foreign { machine });
    }
    for segment in header.program_headers(endian, &cache)? {
        if let Some(linker) = segment.interpreter(endian, &cache)? {
            return Ok(Linking::Dynamic { linker: OsStr::from_bytes(linker).into() });
        }
    }
    Ok(Linking::Static)
}

/// Returns what of `file` the kernel maps without the right to write, at the same place in a huge page as in the file.
///
/// # Errors
///
/// It is not an ELF file for this machine, or a broken one.
pub(super) fn constants(file: &File) -> Result<Vec<Piece>, NotElf> {
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache)?;
    let endian = header.endian()?;
    let mut pieces = Vec::new();
    for segment in header.program_headers(endian, &cache)? {
        let (offset, len) = (segment.p_offset(endian), segment.p_filesz(endian));
        let is_constant = segment.p_type(endian) == elf::PT_LOAD && (segment.p_flags(endian) & elf::PF_W).0 == 0;
        let fits = segment.p_vaddr(endian) % HUGE_PAGE as u64 == offset % HUGE_PAGE as u64;
        if is_constant && fits {
            pieces.push(Piece { offset, len });
        }
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn changed(change: impl Fn(&mut Vec<u8>)) -> Result<Linking, NotElf> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("program");
        let mut bytes = fs::read("/bin/sh").expect("there is a shell");
        change(&mut bytes);
        fs::write(&path, bytes).expect("it can be written");
        linking(&File::open(path).expect("it can be opened"))
    }

    #[test]
    fn headers_tell_machine_and_linker() {
        let Ok(Linking::Dynamic { linker }) = changed(|_| {}) else { panic!("the shell is dynamic") };
        assert!(linker.is_absolute(), "{}", linker.display());
        // Offsets in `Elf64_Ehdr`: `e_machine` 18, `e_phnum` 56.
        assert_eq!(changed(|bytes| bytes[18] = 243).ok(), Some(Linking::Foreign { machine: elf::EM_RISCV }));
        assert_eq!(changed(|bytes| bytes[56..58].fill(0)).ok(), Some(Linking::Static));
        assert!(changed(|bytes| bytes.truncate(70)).is_err());
        assert!(changed(|bytes| bytes[0] = 0).is_err());
        assert!(changed(Vec::clear).is_err());
    }
}

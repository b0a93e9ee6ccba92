//! Whether a program can have children, as its file tells.
//!
//! A program that makes no process and executes no other gains nothing by this object, and spends 0.1 ms to load it: a
//! sixth of the life of `true` or `cat`. It is known by what it asks of its libraries (`elf(5)`, `DT_STRTAB` and
//! `DT_NEEDED`). Whatever is not understood, or longer than usual, may have children. Who makes system calls by
//! instructions of its own is not known by that.

use std::env::consts::ARCH;
use std::ffi::CStr;
use std::mem::size_of;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use object::LittleEndian;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64};
use object::pod::{from_bytes, slice_from_bytes};
use palimpsest_sys::brief_file::{BriefFile, UnnotedFile};
use rustix::fs::{Access, AtFlags, CWD, FileType, OFlags, accessat, stat};
use rustix::io::{Errno, pread, retry_on_intr};

/// How names end of functions that make a process, execute a program, or find other functions. Linkers keep a string
/// that another one ends with only once, so that `fork` may be found at the end of `vfork`.
pub(super) const MAKERS: [&[u8]; 29] = [
    b"fork",
    b"Fork",
    b"forkpty",
    b"clone",
    b"clone3",
    b"daemon",
    b"system",
    b"popen",
    b"wordexp",
    b"spawn",
    b"spawnp",
    b"execl",
    b"execle",
    b"execlp",
    b"execv",
    b"execve",
    b"execvp",
    b"execvpe",
    b"execveat",
    // Of libselinux, for package managers.
    b"rpm_execcon",
    b"syscall",
    b"dlopen",
    b"dlopen_mode",
    b"dlmopen",
    b"dlsym",
    b"dlvsym",
    b"dl_iterate_phdr",
    // Of the C library, for `popen`.
    b"proc_open",
    // Programs of Go, which make their system calls themselves.
    b"pthread_create",
];

/// The last bytes of these names: nearly all others differ in them, and need not be compared byte by byte.
const TAILS: [[u8; 4]; MAKERS.len()] = {
    let (mut tails, mut at) = ([[0; 4]; MAKERS.len()], 0);
    while at < MAKERS.len() {
        let Some(tail) = MAKERS[at].last_chunk() else { panic!("a name is too short") };
        tails[at] = *tail;
        at += 1;
    }
    tails
};

/// Libraries that make processes only for who calls one of [`MAKERS`]: the C library's, the compiler's, and what small
/// programs use besides.
pub(super) const MEEK: [&[u8]; 17] = [
    b"libc.so.6",
    b"libm.so.6",
    b"libmvec.so.1",
    b"libdl.so.2",
    b"libpthread.so.0",
    b"librt.so.1",
    b"ld-linux-x86-64.so.2",
    b"ld-linux-aarch64.so.1",
    b"libgcc_s.so.1",
    b"libstdc++.so.6",
    b"libacl.so.1",
    b"libattr.so.1",
    b"libbz2.so.1.0",
    b"liblzma.so.5",
    b"libpcre2-8.so.0",
    b"libselinux.so.1",
    b"libz.so.1",
];

/// Bytes of a table to read at a time: this runs on the stack of who executes a program, which may be short.
const PIECE: usize = 512;
/// How much of a long string is kept: all that the names above need.
const KEPT: usize = 32;
/// The longest table of strings to look at, in bytes; nine of ten programs have less than 4 KiB.
const LONGEST: u64 = 16 << 10;
/// The most libraries to look at, and the most parts that are mapped.
const LIBRARIES: usize = 8;
const PARTS: usize = 8;

/// In which process a program is about to be executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    /// That of the caller, which may be a child of `vfork`: whoever ends it leaves its parent all that it has changed.
    Own,
    /// A child that the C library makes.
    Child,
}

/// What is known of the children of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Children {
    Possible,
    Impossible,
}

/// What there is under a path.
pub(super) enum Found {
    Program(Children),
    /// Nothing that could be executed.
    Nothing,
}

/// Looks at the file under `path`, as whoever executes it there does. Opens no file but a regular one: it takes nothing
/// from a pipe, and starts no device. Async-signal-safe; a handler that leaves it by `siglongjmp` leaves the file open.
pub(super) fn look_at(path: &CStr, process: Process) -> Found {
    // Also where nothing may be executed.
    match accessat(CWD, path, Access::EXEC_OK, AtFlags::empty()) {
        Ok(()) => {}
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Found::Nothing,
        Err(_) => return Found::Program(Children::Possible),
    }
    if !stat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile) {
        return Found::Nothing;
    }
    let is_childless = |file: BorrowedFd<'_>| names(file).is_some_and(|names| names.are_childless());
    let is_childless = match process {
        Process::Own => UnnotedFile::open(path, FLAGS).is_ok_and(|file| is_childless(file.as_fd())),
        Process::Child => BriefFile::open(path, FLAGS).is_ok_and(|file| is_childless(file.as_fd())),
    };
    Found::Program(if is_childless { Children::Impossible } else { Children::Possible })
}

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The names in a program's file.
struct Names<'f> {
    file: BorrowedFd<'f>,
    /// Where they are in the file, and their length in bytes.
    offset: u64,
    len: u64,
    /// Where those of the needed libraries begin among them.
    libraries: [u64; LIBRARIES],
    count: usize,
}

/// Reads up to a full buffer.
fn read<'b>(file: BorrowedFd<'_>, offset: u64, buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let len = retry_on_intr(|| pread(file, &mut *buffer, offset)).ok()?;
    buffer.get(..len)
}

/// A part of a file, and the address to which it is mapped.
#[derive(Clone, Copy, Default)]
struct Part {
    address: u64,
    offset: u64,
    len: u64,
}

/// The parts of a program that is linked dynamically for this machine.
struct Parts {
    /// Those that are mapped; the others are empty.
    loaded: [Part; PARTS],
    dynamic: Part,
}

/// Reads which parts a file has.
// On the stack no longer than needed, like what follows.
#[inline(never)]
fn parts(file: BorrowedFd<'_>) -> Option<Parts> {
    // Most programs have 13 headers of 56 bytes.
    let mut head = [0; 2 * PIECE];
    let head = read(file, 0, &mut head)?;
    let (header, _) = from_bytes::<FileHeader64<LittleEndian>>(head).ok()?;
    let own_machine = if ARCH == "aarch64" { elf::EM_AARCH64 } else { elf::EM_X86_64 };
    let ident = &header.e_ident;
    let is_ours = ident.magic == elf::ELFMAG
        && ident.class == elf::ELFCLASS64
        && ident.data == elf::ELFDATA2LSB
        && header.e_machine.get(LittleEndian) == own_machine
        && usize::from(header.e_phentsize.get(LittleEndian)) == size_of::<ProgramHeader64<LittleEndian>>();
    let segments = head.get(usize::try_from(header.e_phoff.get(LittleEndian)).ok()?..).filter(|_| is_ours)?;
    let count = usize::from(header.e_phnum.get(LittleEndian));
    let (segments, _) = slice_from_bytes::<ProgramHeader64<LittleEndian>>(segments, count).ok()?;
    let of_kind = |kind| segments.iter().filter(move |segment| segment.p_type.get(LittleEndian) == kind);
    let part = |segment: &ProgramHeader64<LittleEndian>| Part {
        address: segment.p_vaddr.get(LittleEndian),
        offset: segment.p_offset.get(LittleEndian),
        len: segment.p_filesz.get(LittleEndian),
    };
    let mut parts = Parts { loaded: [Part::default(); PARTS], dynamic: of_kind(elf::PT_DYNAMIC).next().map(part)? };
    for (number, segment) in of_kind(elf::PT_LOAD).enumerate() {
        *parts.loaded.get_mut(number)? = part(segment);
    }
    Some(parts)
}

/// Finds the names of a program that is linked dynamically for this machine.
#[inline(never)]
fn names(file: BorrowedFd<'_>) -> Option<Names<'_>> {
    let Parts { loaded, dynamic } = parts(file)?;
    let mut table = [0; 2 * PIECE];
    let len = usize::try_from(dynamic.len).ok()?;
    let table = read(file, dynamic.offset, table.get_mut(..len)?)?;
    let (entries, _) = slice_from_bytes::<Dyn64<LittleEndian>>(table, len / size_of::<Dyn64<LittleEndian>>()).ok()?;
    let (mut address, mut names) = (0, Names { file, offset: 0, len: 0, libraries: [0; LIBRARIES], count: 0 });
    for entry in entries {
        let value = entry.d_val.get(LittleEndian);
        match entry.d_tag.get(LittleEndian) {
            elf::DT_NULL => break,
            elf::DT_STRTAB => address = value,
            elf::DT_STRSZ => names.len = value,
            elf::DT_NEEDED => {
                *names.libraries.get_mut(names.count)? = value;
                names.count += 1;
            }
            // They load what is not among the needed ones.
            elf::DT_AUXILIARY | elf::DT_FILTER | elf::DT_AUDIT | elf::DT_DEPAUDIT => return None,
            _ => {}
        }
    }
    let inside = |part: &Part| address.checked_sub(part.address).filter(|&inside| inside < part.len);
    let place = loaded.iter().find_map(|part| part.offset.checked_add(inside(part)?));
    names.offset = place?;
    (names.len <= LONGEST).then_some(names)
}

/// Whether one of [`MAKERS`] is what a name ends with.
fn is_maker(name: &[u8]) -> bool {
    let is_likely = name.last_chunk().is_some_and(|tail| TAILS.contains(tail));
    is_likely && MAKERS.iter().any(|maker| name.ends_with(maker))
}

impl Names<'_> {
    /// Whether no name is one of [`MAKERS`], and all libraries are [`MEEK`].
    #[inline(never)]
    fn are_childless(&self) -> bool {
        let mut meek = 0;
        let mut begin = 0;
        let all = self.try_each(|end, last| {
            if is_maker(last) {
                return ControlFlow::Break(());
            }
            for &library in self.libraries.iter().take(self.count) {
                if (begin..=end).contains(&library) {
                    let name = usize::try_from(end - library).ok().and_then(|len| last.len().checked_sub(len));
                    match name.and_then(|start| last.get(start..)) {
                        Some(name) if MEEK.contains(&name) => meek += 1,
                        _ => return ControlFlow::Break(()),
                    }
                }
            }
            begin = end + 1;
            ControlFlow::Continue(())
        });
        all == Some(ControlFlow::Continue(())) && meek == self.count && self.count > 0
    }

    /// Calls `see` with the place at which each string ends, and its last bytes: [`KEPT`] at least, if it has so many.
    /// `None` if the file ends earlier, or in a string.
    fn try_each(&self, mut see: impl FnMut(u64, &[u8]) -> ControlFlow<()>) -> Option<ControlFlow<()>> {
        let mut buffer = [0; KEPT + PIECE];
        // Of the buffer, what was read before; and of the table, all that was read.
        let (mut kept, mut seen) = (0, 0);
        while seen < self.len {
            let most = usize::try_from(self.len - seen).map_or(PIECE, |rest| rest.min(PIECE));
            let new = read(self.file, self.offset.checked_add(seen)?, buffer.get_mut(kept..kept + most)?)?.len();
            if new == 0 {
                return None;
            }
            let (filled, mut start) = (buffer.get(..kept + new)?, 0);
            for (at, _) in filled.iter().enumerate().skip(kept).filter(|&(_, &byte)| byte == 0) {
                if see(seen + (at - kept) as u64, filled.get(start..at)?).is_break() {
                    return Some(ControlFlow::Break(()));
                }
                start = at + 1;
            }
            let (end, rest) = (kept + new, start.max((kept + new).saturating_sub(KEPT)));
            seen += new as u64;
            kept = end - rest;
            buffer.copy_within(rest..end, 0);
        }
        (kept == 0).then_some(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::{env, fs};

    use super::*;

    /// What is said of a file: `None` if nothing can be executed.
    fn told(path: &Path) -> Option<Children> {
        let path = CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
        match look_at(&path, Process::Own) {
            Found::Program(children) => Some(children),
            Found::Nothing => None,
        }
    }

    fn told_of(bytes: &[u8], mode: u32) -> Option<Children> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("program");
        fs::write(&path, bytes).expect("it can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        told(&path)
    }

    /// A program of coreutils, and the place of its first byte that is this text.
    fn changed(text: &[u8], change: impl FnOnce(&mut [u8])) -> Option<Children> {
        let mut bytes = fs::read("/bin/true").expect("coreutils are there");
        let at = bytes.windows(text.len()).position(|window| window == text).expect("it is in there");
        change(&mut bytes[at..at + text.len()]);
        told_of(&bytes, 0o755)
    }

    #[test]
    fn programs_that_make_none_are_known() {
        for childless in ["/bin/true", "/bin/cat", "/bin/date", "/bin/rm"] {
            assert_eq!(told(Path::new(childless)), Some(Children::Impossible), "{childless}");
        }
        let own = env::current_exe().expect("a path");
        for other in [Path::new("/bin/sh"), Path::new("/usr/bin/env"), Path::new("/usr/bin/timeout"), &own] {
            assert_eq!(told(other), Some(Children::Possible), "{}", other.display());
        }
    }

    /// Fails on: a function, a library or a table that is not looked at; a byte order, a class or a machine.
    #[test]
    fn whatever_is_unusual_may_have_some() {
        assert_eq!(changed(b"libc.so.6\0", |_| {}), Some(Children::Impossible));
        assert_eq!(changed(b"libc.so.6\0", |name| name[8] = b'7'), Some(Children::Possible));
        // Two names of functions that it has, which are as long.
        assert_eq!(changed(b"\0fclose\0", |name| name.copy_from_slice(b"\0dlopen\0")), Some(Children::Possible));
        assert_eq!(changed(b"\0fclose\0", |name| name.copy_from_slice(b"\0xsfork\0")), Some(Children::Possible));
        assert_eq!(changed(b"\0fclose\0", |name| name.copy_from_slice(b"\0forkxs\0")), Some(Children::Impossible));
        // Class, byte order, machine, the size and the number of headers (`Elf64_Ehdr`).
        for place in [4, 5, 18, 54, 57] {
            let header = fs::read("/bin/true").expect("coreutils are there")[..64].to_vec();
            assert_eq!(changed(&header, |header| header[place] ^= 3), Some(Children::Possible), "{place}");
        }
        for len in [0, 4, 63, 64, 800, 1500] {
            let bytes = fs::read("/bin/true").expect("coreutils are there");
            assert_eq!(told_of(&bytes[..len], 0o755), Some(Children::Possible), "{len}");
        }
        assert_eq!(told_of(b"#!/bin/true\n", 0o755), Some(Children::Possible));
    }

    fn are_childless(table: &[u8]) -> bool {
        let folder = tempfile::tempdir().expect("a folder");
        let path = CString::new(folder.path().join("names").as_os_str().as_bytes()).expect("no zero byte");
        fs::write(folder.path().join("names"), table).expect("it can be written");
        let file = BriefFile::open(&path, OFlags::RDONLY).expect("it is there");
        let mut libraries = [0; LIBRARIES];
        libraries[0] = 1;
        Names { file: file.as_fd(), offset: 0, len: table.len() as u64, libraries, count: 1 }.are_childless()
    }

    /// Fails on: a function that makes a process, and is passed over; another library.
    #[test]
    fn each_maker_is_known_and_each_library_that_is_meek() {
        for maker in MAKERS {
            assert!(!are_childless(&[b"\0libc.so.6\0puts\0", maker, b"\0"].concat()), "{maker:?}");
            assert!(are_childless(&[b"\0libc.so.6\0puts\0", maker, b"s\0"].concat()), "{maker:?}");
        }
        for library in MEEK {
            assert!(are_childless(&[b"\0", library, b"\0puts\0"].concat()), "{library:?}");
            assert!(!are_childless(&[b"\0", library, b".1\0puts\0"].concat()), "{library:?}");
        }
    }

    /// Fails on: a name whose beginning or end is in another piece than its rest.
    #[test]
    fn names_are_found_wherever_pieces_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("names");
        let maker = b"\0posix_spawnp\0";
        // The first piece ends at each byte of the names, and the second.
        for before in [PIECE, 2 * PIECE].into_iter().flat_map(|end| end - 64..end + 4) {
            for (name, expected) in [(maker.as_slice(), false), (b"\0posix_spawnx\0", true)] {
                let table = [&vec![b'x'; before], b"\0libc.so.6\0".as_slice(), name, &[b'y'; 40], b"\0"].concat();
                fs::write(&path, &table).expect("it can be written");
                let path = CString::new(path.as_os_str().as_bytes()).expect("no zero byte");
                let file = BriefFile::open(&path, OFlags::RDONLY).expect("it is there");
                let mut libraries = [0; LIBRARIES];
                libraries[0] = before as u64 + 1;
                let names = Names { file: file.as_fd(), offset: 0, len: table.len() as u64, libraries, count: 1 };
                assert_eq!(names.are_childless(), expected, "{before}");
                // Libraries in the middle of a name, and in none.
                for (library, expected) in [(before as u64, false), (before as u64 + 2, false), (1 << 40, false)] {
                    let libraries = [library; LIBRARIES];
                    assert_eq!(Names { libraries, ..names }.are_childless(), expected, "{before} {library}");
                }
                assert!(!Names { len: names.len + 1, ..names }.are_childless(), "the file is too short");
                assert!(!Names { len: names.len - 1, ..names }.are_childless(), "the last name does not end");
                assert!(!Names { count: 0, ..names }.are_childless(), "without a library it is no program");
            }
        }
    }

    #[test]
    fn nothing_but_a_file_that_can_be_executed_is_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!((told(folder.path()), told(&folder.path().join("none"))), (None, None));
        assert_eq!(told_of(&fs::read("/bin/true").expect("coreutils are there"), 0o644), None);
        let pipe = CString::new(folder.path().join("pipe").as_os_str().as_bytes()).expect("no zero byte");
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o755) }, 0);
        assert!(matches!(look_at(&pipe, Process::Child), Found::Nothing), "whoever writes to it would see a reader");
    }
}

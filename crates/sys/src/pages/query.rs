//! Queries one mapping at a time: `PROCMAP_QUERY` (Linux 6.11).
//!
//! Source: `do_procmap_query` in `fs/proc/task_mmu.c`, `include/uapi/linux/fs.h`.

use std::ops::ControlFlow;

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

use super::vmas::{Label, Vma};
use crate::pages::maps::{Device, MapLine, Permissions};

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`
pub(crate) const PROCMAP_QUERY: u32 = 3 << 30 | (size_of::<Query>() as u32) << 16 | (b'f' as u32) << 8 | 17;
/// Only shared mappings …
const SHARED: u64 = 0x08;
/// The next mapping, if none covers the address.
const COVERING_OR_NEXT: u64 = 0x10;
/// … of a file.
const FILE_BACKED: u64 = 0x20;

const _: () = assert!(PROCMAP_QUERY == 0xc068_6611);

/// Returns the first mapping that ends above `address`, in the process whose `/proc/PID/maps` is open as `maps`. Its
/// label only tells whether there is a file; flags and figures are missing. Allocates nothing.
///
/// # Errors
///
/// `ENOENT` if there is none, `ENOTTY` if the kernel does not support the query, `ESRCH` if the process has ended.
pub fn next_above(maps: BorrowedFd<'_>, address: usize) -> Result<Vma, Errno> {
    let mut query = Query { query_flags: COVERING_OR_NEXT, query_addr: address as u64, ..Query::sized() };
    ask(maps, &mut query)?;
    let permissions = [Permissions::READ, Permissions::WRITE, Permissions::EXECUTE, Permissions::SHARED]
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| query.vma_flags & 1 << bit != 0)
        .fold(Permissions::default(), |all, (_, one)| all.union(one));
    #[expect(clippy::cast_possible_truncation, reason = "addresses of this process, of 64 bits")]
    let line = MapLine {
        start: query.vma_start as usize,
        end: query.vma_end as usize,
        permissions,
        offset: query.vma_offset,
        device: Device { major: query.dev_major, minor: query.dev_minor },
        inode: query.inode,
    };
    Ok(Vma::new(line, if query.inode == 0 { Label::None } else { Label::File }))
}

/// Returns the kind of the mapping at `address`, by its name. Allocates nothing.
///
/// # Errors
///
/// As for [`next_above`].
pub fn label_at(maps: BorrowedFd<'_>, address: usize) -> Result<Label, Errno> {
    let mut name = [0_u8; NAME];
    let (vma_name_addr, vma_name_size) = (name.as_mut_ptr().expose_provenance() as u64, NAME as u32);
    let mut query = Query { query_addr: address as u64, vma_name_addr, vma_name_size, ..Query::sized() };
    match ask(maps, &mut query) {
        // The length includes the zero behind it.
        Ok(()) => Ok(Label::parse(&name[..(query.vma_name_size as usize).saturating_sub(1).min(NAME)])),
        // Only files have names that are longer.
        Err(Errno::NAMETOOLONG) => Ok(Label::File),
        Err(errno) => Err(errno),
    }
}

/// A shared mapping of a file.
#[derive(Clone, Copy, Debug)]
pub struct SharedFile<'a> {
    /// Its first address.
    pub start: usize,
    /// The file's inode.
    pub inode: u64,
    /// The file's name; empty if it is longer than 63 bytes.
    pub name: &'a [u8],
}

/// Calls `found` with each shared mapping of a file, ascending, until it breaks. The kernel skips all others, so that
/// this costs little among thousands of private ones. Allocates nothing.
///
/// # Errors
///
/// As for [`next_above`], except `ENOENT`.
pub fn each_shared_file(
    maps: BorrowedFd<'_>,
    found: &mut dyn FnMut(SharedFile<'_>) -> ControlFlow<()>,
) -> Result<(), Errno> {
    let mut at = 0;
    loop {
        let mut name = [0_u8; NAME];
        let query_flags = COVERING_OR_NEXT | SHARED | FILE_BACKED;
        let (vma_name_addr, vma_name_size) = (name.as_mut_ptr().expose_provenance() as u64, NAME as u32);
        let mut query = Query { query_flags, query_addr: at, vma_name_addr, vma_name_size, ..Query::sized() };
        match ask(maps, &mut query) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(()),
            // Nobody asks for a name that is longer.
            Err(Errno::NAMETOOLONG) => {
                (query.vma_name_addr, query.vma_name_size) = (0, 0);
                (query.query_flags, query.query_addr) = (query_flags, at);
                ask(maps, &mut query)?;
            }
            Err(errno) => return Err(errno),
        }
        // The length includes the zero behind it.
        let len = (query.vma_name_size as usize).saturating_sub(1).min(NAME);
        let file = SharedFile { start: query.vma_start as usize, inode: query.inode, name: &name[..len] };
        if found(file).is_break() {
            return Ok(());
        }
        at = query.vma_end;
    }
}

/// Room for a name and the zero behind it.
const NAME: usize = 64;

impl Query {
    fn sized() -> Self {
        Self { size: size_of::<Self>() as u64, ..Self::default() }
    }
}

fn ask(maps: BorrowedFd<'_>, query: &mut Query) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes `query`, of the size that it states, and at most the stated length of the
    // buffer for a name: none, or one that outlives this call.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, std::ptr::from_mut(query)) };
    if answer < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::memory::mapping::{Mapping, Protection, Source};
    use crate::pages::vmas::{Detail, Vmas};

    #[test]
    fn a_label_is_the_one_in_the_list() {
        let maps = std::fs::File::open("/proc/self/maps").expect("/proc");
        if next_above(maps.as_fd(), 0) == Err(Errno::NOTTY) {
            return println!("skipped: a kernel before 6.11");
        }
        let page = rustix::param::page_size();
        let private = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).unwrap();
        let here = std::hint::black_box([0_u8; 1]);
        let mut list = Vmas::with_capacity(1 << 16).expect("memory");
        list.read(Detail::Places).expect("/proc");
        // The last one: nothing is mapped there.
        let code = a_label_is_the_one_in_the_list as fn() as usize;
        for address in [private.address(), here.as_ptr().addr(), code, 0] {
            let listed = list.iter().find(|vma| vma.range().contains(&address)).map(|vma| vma.label);
            assert_eq!(label_at(maps.as_fd(), address), listed.ok_or(Errno::NOENT), "{address:#x}");
        }
    }

    #[test]
    fn shared_mappings_of_files_are_found_and_no_others() {
        let page = rustix::param::page_size();
        let maps = std::fs::File::open("/proc/self/maps").expect("/proc");
        if next_above(maps.as_fd(), 0) == Err(Errno::NOTTY) {
            return println!("skipped: a kernel before 6.11");
        }
        let private = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).unwrap();
        let made = |name: &std::ffi::CStr| {
            let file = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).expect("a memory file");
            rustix::fs::ftruncate(&file, page as u64).expect("room");
            let (rights, kind) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
            // SAFETY: a new mapping replaces nothing.
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), page, rights, kind, &file, 0) }.expect("mapped").addr()
        };
        let (short, long) =
            (made(c"found"), made(c"a-name-that-is-much-longer-than-the-room-that-there-is-for-a-name-here"));
        let mut found = Vec::new();
        each_shared_file(maps.as_fd(), &mut |SharedFile { start, inode, name }| {
            found.push((start, inode != 0, name.starts_with(b"/memfd:found")));
            ControlFlow::Continue(())
        })
        .expect("told");
        assert!(found.contains(&(short, true, true)) && found.contains(&(long, true, false)), "{found:?}");
        assert!(found.iter().all(|(start, ..)| *start != private.address()));
        assert!(found.is_sorted());
    }
}

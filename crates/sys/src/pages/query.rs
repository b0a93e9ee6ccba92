//! One mapping at a time: `PROCMAP_QUERY` (Linux 6.11).
//!
//! Source: `do_procmap_query` in `fs/proc/task_mmu.c`, `include/uapi/linux/fs.h`.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;

use super::vmas::{Label, Vma, VmaFlags};
use crate::pages::maps::{Device, Permissions};

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
const PROCMAP_QUERY: u32 = 3 << 30 | (size_of::<Query>() as u32) << 16 | (b'f' as u32) << 8 | 17;
/// The next mapping, where none covers the address.
const COVERING_OR_NEXT: u64 = 0x10;

const _: () = assert!(PROCMAP_QUERY == 0xc068_6611);

/// The first mapping that ends above `address`, of the process whose `/proc/PID/maps` is open as `maps`. Of its label
/// only whether there is a file is told; flags and figures are left out. Allocates nothing.
///
/// # Errors
///
/// `ENOENT` if there is none, `ENOTTY` from a kernel that does not know the question, `ESRCH` if the process has ended.
pub fn next_above(maps: BorrowedFd<'_>, address: usize) -> Result<Vma, Errno> {
    let mut query = Query { query_flags: COVERING_OR_NEXT, query_addr: address as u64, ..Query::sized() };
    ask(maps, &mut query)?;
    let permissions = [Permissions::READ, Permissions::WRITE, Permissions::EXECUTE, Permissions::SHARED]
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| query.vma_flags & 1 << bit != 0)
        .fold(Permissions::default(), |all, (_, one)| all.union(one));
    #[expect(clippy::cast_possible_truncation, reason = "addresses of this process, of 64 bits")]
    Ok(Vma {
        start: query.vma_start as usize,
        end: query.vma_end as usize,
        permissions,
        offset: query.vma_offset,
        device: Device { major: query.dev_major, minor: query.dev_minor },
        inode: query.inode,
        label: if query.inode == 0 { Label::None } else { Label::File },
        anonymous: 0,
        huge: 0,
        flags: VmaFlags::default(),
        protection_key: 0,
    })
}

impl Query {
    fn sized() -> Self {
        Self { size: size_of::<Self>() as u64, ..Self::default() }
    }
}

fn ask(maps: BorrowedFd<'_>, query: &mut Query) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes `query`, of the size that it states, and no more of the buffer for a name
    // than the length that stands there: none, or one that outlives this call.
    let answer = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, std::ptr::from_mut(query)) };
    if answer < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

//! The identity of a file, as the lists of mappings tell it.
//!
//! `stat` may tell another one: btrfs gives each subvolume a device of its own there, and overlayfs that of the layer
//! or of itself (`btrfs_getattr` in `fs/btrfs/inode.c`, `ovl_getattr` in `fs/overlayfs/inode.c`), while the lists have
//! that of the file system (`show_map_vma` in `fs/proc/task_mmu.c`).

use std::fs::File;
use std::io;
use std::ptr;

use rustix::mm::{MapFlags, ProtFlags};

use crate::memory::calls;
use crate::memory::file::FileId;
use crate::memory::span::Span;
use crate::pages::lines::mapping_at;

/// Returns the identity of `file`, which must be open for reading, by mapping a page of it for a moment.
///
/// # Errors
///
/// It cannot be mapped, or `/proc` is not mounted.
pub(super) fn as_mapped(file: &File) -> io::Result<FileId> {
    let page = rustix::param::page_size();
    // SAFETY: at an address that the kernel chooses.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), page, ProtFlags::READ, MapFlags::PRIVATE, file, 0) }?;
    let view = Span::new(at.expose_provenance(), at.expose_provenance() + page);
    let found = at_address(view.start);
    // SAFETY: 1. mapped just now, and never used.
    unsafe { calls::unmap(view) }?;
    found?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns the identity of the file that is mapped at an address, if anything is mapped there.
fn at_address(address: usize) -> io::Result<Option<FileId>> {
    let found = mapping_at(address).map_err(io::Error::other)?;
    Ok(found.map(|map| FileId { device: map.device, inode: map.inode }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_as_it_is_mapped() {
        let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let known = |file: &File| as_mapped(file).unwrap();
        assert_eq!(known(&first), known(&first));
        assert_ne!(known(&first), known(&second));
        assert_ne!(known(&first).inode, 0);
        // The program, whatever file system it is on.
        let program = File::open("/proc/self/exe").unwrap();
        assert_eq!(at_address(as_mapped as *const () as usize).unwrap(), Some(known(&program)));
    }
}

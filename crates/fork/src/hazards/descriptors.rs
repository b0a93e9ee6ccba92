//! Walks over the open descriptors, once, for what matters to a slice: rings of io_uring, and userfaultfds.
//!
//! Whoever has a userfaultfd may have registered memory, and a slice cannot tell which: an inventory sees the flag of
//! each mapping (`Skip::Userfault`), but a slice asks for mappings one by one, without flags. So there are no slices
//! while one is open. A userfaultfd that only another process has is not seen.

use std::ffi::CStr;
use std::io::Write as _;
use std::ops::ControlFlow;

use palimpsest_sys::async_io::uring::RING_NAME;
use palimpsest_sys::proc::numbers::each_number;
use rustix::fs::{CWD, readlinkat_raw};
use rustix::io::Errno;

use crate::error::FreezeError;

/// The link of a userfaultfd.
const FAULTS_NAME: &[u8] = b"anon_inode:[userfaultfd]";
/// One byte more than the longest link of interest, so that a longer one does not match.
const NAME: usize = FAULTS_NAME.len() + 1;

const _: () = assert!(RING_NAME.len() < NAME);

/// What a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// A ring of io_uring.
    Ring,
    /// A userfaultfd.
    Faults,
}

/// Calls `found` with each descriptor of these kinds, until it breaks. Does not use the heap.
pub(super) fn each(found: &mut dyn FnMut(i32, Kind) -> ControlFlow<()>) -> Result<(), FreezeError> {
    let path = "/proc/thread-self/fd";
    let mut failed = Ok(());
    let told = each_number(c"/proc/thread-self/fd", &mut |descriptor| match kind(descriptor) {
        Ok(Some(kind)) => found(descriptor, kind),
        // It was closed meanwhile.
        Ok(None) | Err(Errno::NOENT) => ControlFlow::Continue(()),
        Err(source) => {
            failed = Err(FreezeError::NoProc { path, source });
            ControlFlow::Break(())
        }
    });
    told.map_err(|source| FreezeError::NoProc { path, source })?;
    failed
}

fn kind(descriptor: i32) -> Result<Option<Kind>, Errno> {
    let mut target = [0_u8; NAME];
    Ok(match link(descriptor, &mut target)? {
        RING_NAME => Some(Kind::Ring),
        FAULTS_NAME => Some(Kind::Faults),
        _ => None,
    })
}

/// Returns the beginning of a descriptor's link.
fn link(descriptor: i32, target: &mut [u8; NAME]) -> Result<&[u8], Errno> {
    let mut path = [0_u8; 40];
    // There is room for every number, and for a zero behind it.
    write!(&mut path[..39], "/proc/thread-self/fd/{descriptor}").map_err(|_| Errno::NAMETOOLONG)?;
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    let len = readlinkat_raw(CWD, path, &mut target[..])?;
    Ok(target.get(..len).unwrap_or_default())
}

/// Devices that use no memory by themselves.
const HARMLESS: [&[u8]; 11] =
    [b"null", b"zero", b"full", b"random", b"urandom", b"tty", b"console", b"hvc", b"pts/", b"ptmx", b"shm/"];

/// Whether a descriptor leads to a device that may use this process's memory by itself, as those for virtual machines,
/// networks and graphics do. Does not use the heap.
pub(super) fn has_device() -> Result<bool, Errno> {
    let mut has_one = false;
    each_number(c"/proc/thread-self/fd", &mut |descriptor| {
        let mut target = [0_u8; NAME];
        // One that was closed meanwhile is none.
        let device = link(descriptor, &mut target).ok().and_then(|name| name.strip_prefix(b"/dev/"));
        has_one = device.is_some_and(|name| !HARMLESS.iter().any(|harmless| name.starts_with(harmless)));
        if has_one { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(has_one)
}

/// Whether somebody may be watching this process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Watcher {
    /// A userfaultfd is open.
    Open,
    /// None is.
    None,
}

impl Watcher {
    /// Looks for one.
    pub(crate) fn find() -> Result<Self, FreezeError> {
        let mut watcher = Self::None;
        each(&mut |_, kind| {
            if kind == Kind::Faults {
                watcher = Self::Open;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(watcher)
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::UserfaultfdFlags;

    use super::*;

    /// Fails on: what every program has, taken for a device that uses memory; such a device, missed.
    #[test]
    fn devices_that_use_memory_by_themselves_are_found() {
        let open = |path: &str| std::fs::File::open(path);
        let _harmless = ["/dev/null", "/dev/zero", "/dev/urandom"].map(open);
        assert_eq!(has_device(), Ok(false), "no other test of this process opens one");
        let Ok(device) = open("/dev/kmsg") else { return println!("skipped: /dev/kmsg cannot be opened") };
        assert_eq!(has_device(), Ok(true));
        drop(device);
        assert_eq!(has_device(), Ok(false));
    }

    #[test]
    fn a_userfaultfd_is_found_while_it_is_open() {
        // No other test of this process makes one.
        assert_eq!(Watcher::find().expect("/proc"), Watcher::None);
        // UFFD_USER_MODE_ONLY is allowed to everybody, if the kernel has it.
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::from_bits_retain(1);
        // SAFETY: no memory is registered with it.
        let made = match unsafe { rustix::mm::userfaultfd(flags) } {
            Ok(made) => made,
            Err(errno) => return println!("skipped: no userfaultfd here: {errno}"),
        };
        assert_eq!(Watcher::find().expect("/proc"), Watcher::Open);
        drop(made);
        assert_eq!(Watcher::find().expect("/proc"), Watcher::None);
    }
}

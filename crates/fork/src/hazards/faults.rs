//! Descriptors of userfaultfd: whoever has one may have memory registered, of which a slice cannot be told.
//!
//! An inventory sees the flag of each mapping (`Skip::Userfault`). A slice asks for mappings one by one, without flags;
//! so a freeze in slices goes by whether a descriptor has come since its plan.

use std::ffi::CStr;
use std::io::Write as _;
use std::ops::ControlFlow;

use palimpsest_sys::proc::numbers::each_number;
use rustix::fs::{CWD, readlinkat_raw};
use rustix::io::Errno;

use crate::error::FreezeError;

/// What the link of such a descriptor says.
const NAME: &[u8] = b"anon_inode:[userfaultfd]";

/// How many there are.
pub(crate) fn count() -> Result<usize, FreezeError> {
    let mut count = 0;
    let told = each_number(c"/proc/self/fd", &mut |descriptor| {
        count += usize::from(is_one(descriptor));
        ControlFlow::Continue(())
    });
    told.map(|()| count).map_err(|source| FreezeError::NoProc { path: "/proc/self/fd", source })
}

/// What cannot be told, for one, because it was closed meanwhile, is none.
fn is_one(descriptor: i32) -> bool {
    let look = || -> Result<bool, Errno> {
        let mut path = [0_u8; 32];
        // There is room for every number, and for a zero behind it.
        write!(&mut path[..31], "/proc/self/fd/{descriptor}").map_err(|_| Errno::NAMETOOLONG)?;
        let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
        // One byte more than the link has, so that a longer one is another.
        let mut target = [0_u8; NAME.len() + 1];
        let len = readlinkat_raw(CWD, path, &mut target[..])?;
        Ok(target.get(..len) == Some(NAME))
    };
    look().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd};

    use super::*;

    #[test]
    fn a_descriptor_is_counted_while_it_is_open() {
        let before = count().expect("/proc");
        // SAFETY: makes a descriptor. UFFD_USER_MODE_ONLY is allowed for everybody, where the kernel has it.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) };
        let Ok(made) = i32::try_from(made).map_err(drop).and_then(|made| if made < 0 { Err(()) } else { Ok(made) })
        else {
            return println!("SKIPPED: no userfaultfd here");
        };
        // SAFETY: made above, and nobody else's.
        let made = unsafe { OwnedFd::from_raw_fd(made) };
        assert_eq!(count().expect("/proc"), before + 1);
        drop(made);
        assert_eq!(count().expect("/proc"), before);
    }
}

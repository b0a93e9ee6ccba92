//! Who watches this process's memory.

use std::ffi::CStr;
use std::io::Write as _;
use std::ops::ControlFlow;

use palimpsest_sys::proc::numbers::each_number;
use rustix::fs::CWD;

/// What a descriptor of a `userfaultfd` is called.
const NAME: &[u8] = b"anon_inode:[userfaultfd]";

/// Whether there may be a `userfaultfd`: a mapping that it watches must not be replaced, and only a full list of
/// mappings tells which these are. Does not use the heap.
pub(crate) fn has_watcher() -> bool {
    let mut found = false;
    let told = each_number(c"/proc/self/fd", &mut |descriptor| {
        found = is_one(descriptor);
        if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    found || told.is_err()
}

fn is_one(descriptor: i32) -> bool {
    let mut path = [0_u8; 32];
    // Longer than any number; the last byte stays 0.
    let _ = write!(&mut path[..31], "/proc/self/fd/{descriptor}");
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return true };
    let mut target = [std::mem::MaybeUninit::uninit(); 32];
    // One that was closed meanwhile is none.
    rustix::fs::readlinkat_raw(CWD, path, &mut target).is_ok_and(|(name, _)| &*name == NAME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_userfaultfd_is_found() {
        // Of which other tests of this process make none.
        assert!(!has_watcher());
        // SAFETY: takes flags; UFFD_USER_MODE_ONLY is 1.
        let made = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | 1) };
        let Ok(made) = i32::try_from(made) else { return };
        if made < 0 {
            return println!("SKIPPED: no userfaultfd can be made: {}", std::io::Error::last_os_error());
        }
        assert!(has_watcher());
        // SAFETY: this test's own.
        unsafe { libc::close(made) };
        assert!(!has_watcher());
    }
}

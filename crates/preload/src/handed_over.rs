//! The descriptor through which `palimpsest run` hands this object over if no folder can hold it.
//!
//! By now the dynamic linker has mapped the object, so that nobody needs the descriptor: it is closed before the
//! program's `main`, and with it goes the entry in `LD_PRELOAD`, which would name another file, or none, to programs
//! that this one executes.

use std::ffi::{OsStr, c_char};
use std::fs;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::environment;

/// How `/proc` shows such a memory file.
const LINK: &[u8] = b"/memfd:libpalimpsest_preload.so (deleted)";
const FOLDER: &[u8] = b"/proc/self/fd/";

/// Closes the descriptor and leaves `LD_PRELOAD`, whose value is `preload`, if this object was handed over.
///
/// # Safety
///
/// 1. `environment` must be null or a null-terminated array of C strings, all writable.
/// 2. No other thread may use the environment.
#[inline]
pub(crate) unsafe fn give_up(preload: Option<&[u8]>, environment: *mut *mut c_char) {
    // `close` uses it up before it changes anything.
    let value = preload.unwrap_or_default();
    if environment::entries(value).any(is_handed_over) {
        // SAFETY: contracts 1 and 2 are the caller's.
        unsafe { close(value, environment) };
    }
}

/// Closes the descriptors in `value`, which is that of `LD_PRELOAD`, and leaves it.
///
/// # Safety
///
/// 1. and 2. As for [`give_up`].
#[cold]
#[inline(never)]
unsafe fn close(value: &[u8], environment: *mut *mut c_char) {
    let descriptors: Vec<RawFd> =
        environment::entries(value).filter(|entry| is_handed_over(entry)).filter_map(number).collect();
    // SAFETY: contracts 1 and 2 are the caller's.
    unsafe { environment::leave(environment, &is_handed_over) };
    for descriptor in descriptors {
        // SAFETY: open, and the object's own: nobody else knows of it before `main`.
        drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
    }
}

/// Whether an entry is the descriptor of a memory file with this object. Any other with such a number belongs to
/// somebody else.
#[unsafe(link_section = "palimpsest_start")]
fn is_handed_over(entry: &[u8]) -> bool {
    number(entry).is_some()
        && fs::read_link(Path::new(OsStr::from_bytes(entry))).is_ok_and(|link| link.as_os_str().as_bytes() == LINK)
}

#[unsafe(link_section = "palimpsest_start")]
fn number(entry: &[u8]) -> Option<RawFd> {
    let digits = entry.strip_prefix(FOLDER)?;
    str::from_utf8(digits).ok()?.parse().ok().filter(|&number: &RawFd| number >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descriptors_of_this_object_are_taken() {
        assert_eq!(number(b"/proc/self/fd/17"), Some(17));
        for other in ["/proc/self/fd/", "/proc/self/fd/-1", "/proc/self/fd/x", "/proc/1/fd/7", "libm.so.6"] {
            assert_eq!(number(other.as_bytes()), None, "{other}");
        }
        assert!(!is_handed_over(b"/proc/self/fd/0"), "whatever standard input is");
        let object = palimpsest_sys::memory::hand_over("libpalimpsest_preload.so", b"x").expect("there is memory");
        let entry = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&object));
        assert!(is_handed_over(entry.as_bytes()));
    }
}

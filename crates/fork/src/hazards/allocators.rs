//! Runtimes that give memory back by system calls of their own.
//!
//! An allocator may count on discarded memory being zero (`MADV_DONTNEED`). Frozen memory shows its frozen bytes again, unless the call is interposed, and calls that
//! do not go through the C library's symbols cannot be.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use palimpsest_sys::objects_with_note;
use palimpsest_sys::proc::maps::Maps;

use crate::error::FreezeError;

/// `ELF_NOTE_GOBUILDID_TAG` in the Go tree (`src/cmd/internal/buildid/note.go`), whose owner is "Go" with two zero bytes.
const GO_BUILD_ID: u32 = 4;

/// What was found; `None` if everything goes through an interposable C library.
pub(super) fn raw() -> Result<Option<String>, FreezeError> {
    if let Some(object) = objects_with_note("Go\0", GO_BUILD_ID).first() {
        let path = object.path();
        let file = if path.as_os_str().is_empty() { "the program".to_owned() } else { path.display().to_string() };
        return Ok(Some(format!("the Go runtime in {file}")));
    }
    let maps = Maps::read().map_err(|error| FreezeError::NoProc {
        path: "/proc/self/maps".to_owned(),
        source: std::io::Error::other(error),
    })?;
    let names = || maps.iter().filter_map(|entry| entry.path.as_deref()?.file_name()).map(OsStr::as_bytes);
    if names().any(|name| name.starts_with(b"ld-musl") || name.starts_with(b"libc.musl")) {
        return Ok(Some("musl's C library".to_owned()));
    }
    if !names().any(is_interposable_libc) {
        return Ok(Some("a statically linked program".to_owned()));
    }
    Ok(None)
}

fn is_interposable_libc(name: &[u8]) -> bool {
    name.starts_with(b"libc.so") || (name.starts_with(b"libc-") && name.ends_with(b".so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_served() {
        assert_eq!(raw().expect("/proc is mounted"), None);
    }

    #[test]
    fn the_c_library_is_known_by_its_names() {
        assert!(is_interposable_libc(b"libc.so.6") && is_interposable_libc(b"libc-2.31.so"));
        assert!(!is_interposable_libc(b"libcap.so.2") && !is_interposable_libc(b"libc-client.so.2007e.0.so.1"));
    }
}

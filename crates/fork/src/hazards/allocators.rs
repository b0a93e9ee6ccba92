//! Runtimes that give memory back by system calls of their own.
//!
//! An allocator may count on discarded memory being zero (`MADV_DONTNEED`). Discarded frozen memory shows its frozen
//! bytes again unless the call is interposed, and calls that bypass the C library's symbols cannot be.

use std::ops::ControlFlow;

use palimpsest_sys::holder_of_note;
use palimpsest_sys::pages::vmas::each_mapping;

use super::found::RawAllocator;
use crate::error::FreezeError;

/// `ELF_NOTE_GOBUILDID_TAG` in the Go tree (`src/cmd/internal/buildid/note.go`), whose owner is "Go" with two zero
/// bytes.
const GO_BUILD_ID: u32 = 4;

/// Returns the runtime found; `None` if everything goes through an interposable C library.
pub(super) fn find() -> Result<Option<RawAllocator>, FreezeError> {
    if let Some(object) = holder_of_note("Go\0", GO_BUILD_ID) {
        return Ok(Some(RawAllocator::Go { object }));
    }
    let (mut is_musl, mut is_interposable) = (false, false);
    each_mapping(&mut |_, name| {
        let name = name.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        is_musl |= name.starts_with(b"ld-musl") || name.starts_with(b"libc.musl");
        is_interposable |= is_interposable_libc(name);
        ControlFlow::Continue(())
    })?;
    Ok(if is_musl {
        Some(RawAllocator::Musl)
    } else if is_interposable {
        None
    } else {
        Some(RawAllocator::Static)
    })
}

fn is_interposable_libc(name: &[u8]) -> bool {
    // The kernel adds this to a file that was replaced, as by an upgrade.
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    name.starts_with(b"libc.so") || (name.starts_with(b"libc-") && name.ends_with(b".so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_program_is_served() {
        assert_eq!(find().expect("/proc is mounted"), None);
    }

    #[test]
    fn the_c_library_is_known_by_its_names() {
        assert!(is_interposable_libc(b"libc.so.6") && is_interposable_libc(b"libc-2.31.so"));
        assert!(is_interposable_libc(b"libc-2.31.so (deleted)"));
        assert!(!is_interposable_libc(b"libcap.so.2") && !is_interposable_libc(b"libc-client.so.2007e.0.so.1"));
    }
}

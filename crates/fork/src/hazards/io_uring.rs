//! Rings through which the kernel reads and writes memory on its own time.
//!
//! Registered buffers are pages that the kernel holds on to; once they are replaced, it goes on using the old ones. Requests under way may have done the same.
//! Source: `io_uring_show_fdinfo` in `io_uring/fdinfo.c`.

use std::fs;
use std::path::Path;

use crate::error::FreezeError;

/// A ring in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ring {
    pub(super) descriptor: i32,
    pub(super) buffers: u64,
    pub(super) pending: u64,
}

const DESCRIPTORS: &str = "/proc/self/fd";

/// The first ring that has registered buffers or requests under way.
pub(super) fn busy_ring() -> Result<Option<Ring>, FreezeError> {
    let failed = |path: &Path| {
        let path = path.display().to_string();
        move |source| FreezeError::NoProc { path, source }
    };
    let directory = Path::new(DESCRIPTORS);
    for entry in fs::read_dir(directory).map_err(failed(directory))? {
        let entry = entry.map_err(failed(directory))?;
        // Descriptors come and go, this listing's own among them.
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if target.as_os_str() != "anon_inode:[io_uring]" {
            continue;
        }
        let name = entry.file_name();
        let Some(descriptor) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        let path = Path::new("/proc/self/fdinfo").join(&name);
        let text = fs::read_to_string(&path).map_err(failed(&path))?;
        let (buffers, pending) = parse(&text);
        if buffers > 0 || pending > 0 {
            return Ok(Some(Ring { descriptor, buffers, pending }));
        }
    }
    Ok(None)
}

/// Registered buffers, and requests without a completion. Requests may have several completions or none; whoever uses such is taken for busy.
fn parse(text: &str) -> (u64, u64) {
    let number = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let buffers = number("UserBufs").unwrap_or(0);
    let taken = number("CachedSqHead").unwrap_or(0);
    let completed = number("CachedCqTail").unwrap_or(0);
    (buffers, taken.abs_diff(completed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_understood() {
        let text = "pos:\t0\nSqMask:\t0x7\nSqHead:\t5\nSqTail:\t5\nCachedSqHead:\t5\nCqMask:\t0xf\nCqHead:\t3\nCqTail:\t3\nCachedCqTail:\t3\nSQEs:\t0\nUserFiles:\t0\nUserBufs:\t1\n    0: 0x7f/4096\n";
        assert_eq!(parse(text), (1, 2));
        assert_eq!(parse("UserBufs:\t0\nCachedSqHead:\t4\nCachedCqTail:\t4\n"), (0, 0));
        assert_eq!(parse(""), (0, 0));
    }
}

//! Rings through which the kernel reads and writes memory on its own time.
//!
//! Registered buffers are pages that the kernel holds on to; once they are replaced, it goes on using the old ones. Requests under way may have done the same.
//! Source: `io_uring_show_fdinfo` in `io_uring/fdinfo.c`.

use std::ops::ControlFlow;

use rustix::io::Errno;

use super::listing::{each_number, no_proc};
use crate::error::FreezeError;

/// A ring in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ring {
    pub(super) descriptor: i32,
    pub(super) buffers: u64,
    pub(super) pending: u64,
}

/// What a descriptor of a ring is a link to.
const RING: &[u8] = b"anon_inode:[io_uring]";

/// The first ring that has registered buffers or requests under way.
pub(super) fn busy_ring() -> Result<Option<Ring>, FreezeError> {
    let mut found = Ok(None);
    each_number(c"/proc/self/fd", &mut |descriptor| {
        found = look_at(descriptor);
        if matches!(found, Ok(None)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    found
}

/// The ring behind `descriptor`, if it is one that is busy.
fn look_at(descriptor: i32) -> Result<Option<Ring>, FreezeError> {
    // One byte more than a ring's link has, which is cut off behind: a longer link is another one.
    let mut target = [0_u8; RING.len() + 1];
    match rustix::fs::readlinkat_raw(rustix::fs::CWD, format!("/proc/self/fd/{descriptor}"), &mut target[..]) {
        Ok(len) if target.get(..len) == Some(RING) => {}
        // Descriptors come and go, that of the listing itself among them.
        Ok(_) | Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(no_proc(c"/proc/self/fd", errno.into())),
    }
    let path = format!("/proc/self/fdinfo/{descriptor}");
    let text = std::fs::read_to_string(&path).map_err(|source| FreezeError::NoProc { path: path.clone(), source })?;
    let (buffers, pending) = parse(&text);
    Ok((buffers > 0 || pending > 0).then_some(Ring { descriptor, buffers, pending }))
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

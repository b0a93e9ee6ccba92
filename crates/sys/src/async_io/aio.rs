//! Contexts of Linux AIO (`io_setup`).
//!
//! A context is named by the address of its ring, which the kernel maps as the file `/[aio]` (`aio_setup_ring` in
//! `fs/aio.c`). The ring's head and tail count completions that nobody has fetched. Only the kernel knows the number of
//! requests under way (`reqs_available`), so that an empty ring proves nothing.

use rustix::io::Errno;

use crate::last_errno;
use crate::seccomp::FreezeCall;

/// The start of a ring's name in the list of mappings.
pub const RING_NAME: &[u8] = b"/[aio]";

/// Returns whether `context` names a context of this process. A child inherits its parent's rings, but not the
/// contexts.
///
/// Submits no request: `io_submit` looks the context up first (`lookup_ioctx` in `fs/aio.c`).
///
/// # Errors
///
/// The error of the kernel or of a filter.
pub fn is_context(context: usize) -> Result<bool, Errno> {
    if FreezeCall::AsyncSubmit.is_deadly() {
        return Err(Errno::PERM);
    }
    // SAFETY: with no requests the kernel reads none; it reads a word at `context`, and handles faults there itself.
    match unsafe { libc::syscall(libc::SYS_io_submit, context, 0_usize, 0_usize) } {
        0 => Ok(true),
        _ => match last_errno() {
            Errno::INVAL => Ok(false),
            errno => Err(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_known_while_it_lives() {
        let mut context = 0_usize;
        // SAFETY: the kernel stores a word, to a local.
        if unsafe { libc::syscall(libc::SYS_io_setup, 4, &raw mut context) } != 0 {
            return eprintln!("skipped: no Linux AIO here: {}", last_errno());
        }
        assert_eq!(is_context(context), Ok(true));
        // SAFETY: the context was made above, and has no requests.
        unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        assert_eq!((is_context(context), is_context(8)), (Ok(false), Ok(false)));
    }
}

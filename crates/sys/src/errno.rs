//! The C library's error number.

use rustix::io::Errno;

/// Why the last call of the C library failed in this thread.
pub fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

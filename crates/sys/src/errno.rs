//! The C library's error number.

use rustix::io::Errno;

/// Returns the reason why this thread's last call of the C library failed.
pub fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

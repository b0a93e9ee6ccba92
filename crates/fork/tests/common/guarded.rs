//! Memory calls, as an interposer makes them.

use palimpsest_fork::guard::{self, Outcome, Remap};
use rustix::io::Errno;

use super::Memory;

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).expect("an errno")
}

/// `madvise(2)`.
pub(crate) fn madvise(memory: &Memory, offset: usize, len: usize, advice: i32) -> Result<(), Errno> {
    // SAFETY: the scenario's own memory.
    match unsafe { guard::madvise(memory.at(offset).addr(), len, advice) } {
        Outcome::Done(result) => result,
        Outcome::NotOurs => {
            // SAFETY: as above.
            let answer = unsafe { libc::madvise(memory.at(offset), len, advice) };
            if answer == 0 { Ok(()) } else { Err(errno()) }
        }
    }
}

/// `mremap(2)`.
pub(crate) fn mremap(remap: Remap) -> Result<usize, Errno> {
    // SAFETY: the scenario's own memory.
    match unsafe { guard::mremap(remap) } {
        Outcome::Done(result) => result,
        Outcome::NotOurs => {
            let Remap { address, len, new_len, flags, new_address } = remap;
            // SAFETY: as above.
            let at = unsafe { libc::syscall(libc::SYS_mremap, address, len, new_len, flags, new_address) };
            usize::try_from(at).map_err(|_| errno())
        }
    }
}

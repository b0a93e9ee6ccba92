//! `shmat` as the program calls it: a segment that comes to lie over memory that was frozen (the kernel fills the holes
//! that `munmap` has left) is not frozen, and no guard may put zeros in its place.
//!
//! How long a segment is, only `shmctl` tells: `IPC_STAT` needs no more than the right to read it, which each attaching
//! needs too. It is asked where frozen memory may be concerned. A program that has confined itself may be ended for a
//! call that it does not make itself; then only what adjoins the segment's beginning is
//! [put in doubt](guard::replaced_from).

use std::ffi::{c_int, c_long, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use palimpsest_fork::guard;

use crate::arch::system_call;
use crate::memory::{forget, is_ours, pages, replace};
use crate::next::Next;
use crate::{confined, kernel};

type Shmat = unsafe extern "C" fn(c_int, *const c_void, c_int) -> *mut c_void;

// SAFETY: `void *shmat(int, const void *, int)`.
static SHMAT: Next<Shmat> = unsafe { Next::new(c"shmat") };

/// Looks up the real function.
pub(crate) fn resolve() {
    SHMAT.resolve();
}

/// `shmat(2)`: a segment attached over frozen memory is not frozen.
///
/// # Safety
///
/// 1. As for the C library's function: with `SHM_REMAP` nobody may need what was there.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn shmat(segment: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let place = address.expose_provenance();
    // SAFETY: contract 1.
    let pass_on = || unsafe { SHMAT.or(kernel::shmat)(segment, address, flags) }.expose_provenance() as c_long;
    ptr::with_exposed_provenance_mut(attach(segment, place, flags, pass_on) as usize)
}

/// Does `shmat`; `pass_on` calls the real function.
pub(crate) fn attach(segment: c_int, address: usize, flags: c_int, pass_on: impl Fn() -> c_long) -> c_long {
    // As `MAP_FIXED`; the kernel refuses it without an address. With `SHM_RND` it begins lower, at a page.
    if flags & libc::SHM_REMAP != 0
        && is_ours(pages(address, usize::MAX))
        && let Some(length) = length(segment)
    {
        return replace(pages(address & !(rustix::param::page_size() - 1), length), pass_on);
    }
    let made = pass_on();
    let start = made as usize;
    if made != -1 && is_ours(start..usize::MAX) {
        match length(segment) {
            Some(length) => forget(pages(start, length)),
            None => guard::replaced_from(start),
        }
    }
    made
}

/// Returns the length of a segment in bytes, if it can be asked for. Leaves `errno` alone.
fn length(segment: c_int) -> Option<usize> {
    if confined::is_seen() {
        return None;
    }
    let mut told = MaybeUninit::<libc::shmid_ds>::zeroed();
    let place = told.as_mut_ptr().expose_provenance();
    // SAFETY: writes to `told`, in the layout of 64-bit calls (`ksys_shmctl` in `ipc/shm.c`), which is the C library's.
    let answer = unsafe { system_call(libc::SYS_shmctl, [segment as usize, libc::IPC_STAT as usize, place, 0, 0, 0]) };
    // SAFETY: zeros are a valid value, as is what the kernel wrote.
    (answer == 0).then(|| unsafe { told.assume_init() }.shm_segsz)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno;

    /// Fails on: a length that is another field's, and an error that is taken for one.
    #[test]
    fn a_segment_is_as_long_as_it_was_made() {
        let wanted = 5 * rustix::param::page_size() + 1;
        // SAFETY: numbers.
        let segment = unsafe { libc::shmget(libc::IPC_PRIVATE, wanted, libc::IPC_CREAT | 0o600) };
        if segment == -1 {
            return println!("skipped: no shared memory of System V: {}", std::io::Error::last_os_error());
        }
        errno::set(17);
        let told = length(segment);
        // SAFETY: nobody else knows of the segment; nothing is attached yet.
        let made = unsafe { shmat(segment, ptr::null(), 0) };
        // SAFETY: removes the segment once nobody has it attached.
        assert_eq!(unsafe { libc::shmctl(segment, libc::IPC_RMID, ptr::null_mut()) }, 0);
        assert_eq!((told, length(-1), errno::get()), (Some(wanted), None, 17));
        assert_ne!(made.addr(), usize::MAX);
        // SAFETY: attached above, and not used.
        assert_eq!(unsafe { libc::shmdt(made) }, 0);
    }
}

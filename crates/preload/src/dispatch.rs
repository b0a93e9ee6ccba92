//! The calls that this object defines when they come through `syscall(3)`.

use std::ffi::{c_int, c_long};

use palimpsest_fork::guard::Remap;

use crate::arch::system_call;
use crate::memory::{advise, before_lock, before_lock_all, forget, remap};
use crate::protection::{Rights, noted};
use crate::{confine, core_filter, errno};

/// Makes the call of the kernel, as the caller wants it, past the functions of other objects.
pub(crate) extern "C" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    let arguments = [first, second, third, fourth, fifth, sixth].map(|argument| argument as usize);
    let [address, length, third, fourth, fifth, _] = arguments;
    // SAFETY: what the caller of `syscall` asks for is the caller's matter, and this is it.
    let pass_on = || errno::answer(unsafe { system_call(number, arguments) });
    match number {
        // SAFETY: 1. as above.
        libc::SYS_madvise => unsafe { advise(address, length, third as c_int, pass_on) },
        libc::SYS_mremap => {
            let asked = Remap { address, len: length, new_len: third, flags: fourth as c_int, new_address: fifth };
            // SAFETY: 1. as above.
            unsafe { remap(asked, pass_on) }
        }
        libc::SYS_mmap => {
            let made = pass_on();
            if made != -1 {
                forget(made as usize, length);
            }
            made
        }
        libc::SYS_mlock | libc::SYS_mlock2 => {
            before_lock(address, length);
            pass_on()
        }
        libc::SYS_mlockall => {
            before_lock_all(address as c_int);
            pass_on()
        }
        libc::SYS_mprotect => noted(address, length, Rights::of(third as c_int), pass_on),
        libc::SYS_pkey_mprotect => noted(address, length, Rights::with_key(third as c_int, fourth as c_int), pass_on),
        libc::SYS_seccomp | libc::SYS_prctl => {
            confine::seen(number, [address, length, third]);
            pass_on()
        }
        libc::SYS_execve | libc::SYS_execveat => {
            core_filter::lend();
            pass_on()
        }
        _ => pass_on(),
    }
}

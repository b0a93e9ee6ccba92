//! Calls that this object defines, when they come through `syscall(3)`.

use std::ffi::{c_int, c_long, c_uint};

use palimpsest_fork::guard::{Protect, Remap};

use crate::arch::{system_call, watch};
use crate::execute::before_exec;
use crate::memory::{advise, lock, lock_all, map, remap};
use crate::process_madvise::advise_all;
use crate::protection::protect;
use crate::{attach, confine, errno};

/// `syscall(3)`.
///
/// # Safety
///
/// 1. As for `system_call`.
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    // All calls that `watched` handles.
    watch!(watched, SYS_madvise SYS_process_madvise SYS_mremap SYS_mmap SYS_mlock SYS_mlock2 SYS_mlockall SYS_mprotect
        SYS_pkey_mprotect SYS_shmat SYS_seccomp SYS_prctl SYS_execve SYS_execveat)
}

/// Makes the kernel's call as the caller wants it, past the functions of other objects.
extern "C" fn watched(
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
    // SAFETY: the caller of `syscall` answers for what it asks for, and this is it.
    let pass_on = || errno::answer(unsafe { system_call(number, arguments) });
    match number {
        // SAFETY: 1. as above.
        libc::SYS_madvise => unsafe { advise(address, length, third as c_int, pass_on) },
        // SAFETY: 1. as above.
        libc::SYS_process_madvise => unsafe {
            let ranges = std::ptr::with_exposed_provenance(length);
            advise_all(address as c_int, ranges, third, fourth as c_int, fifth as c_uint)
        },
        libc::SYS_mremap => {
            let asked = Remap { address, len: length, new_len: third, flags: fourth as c_int, new_address: fifth };
            // SAFETY: 1. as above.
            unsafe { remap(asked, pass_on) }
        }
        libc::SYS_mmap => map(address, length, third as c_int, fourth as c_int, pass_on),
        libc::SYS_mlock | libc::SYS_mlock2 => lock(address, length, pass_on),
        libc::SYS_mlockall => lock_all(address as c_int, pass_on),
        libc::SYS_shmat => attach::attach(address as c_int, length, third as c_int, pass_on),
        libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
            let key = if number == libc::SYS_mprotect { -1 } else { fourth as c_int };
            let asked = Protect { address, len: length, rights: third as c_int, key };
            // SAFETY: 1. as above.
            unsafe { protect(asked, pass_on) }
        }
        libc::SYS_seccomp | libc::SYS_prctl => {
            confine::seen(number, [address, length, third]);
            pass_on()
        }
        libc::SYS_execve | libc::SYS_execveat => {
            before_exec();
            pass_on()
        }
        _ => pass_on(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_syscall_answers_as_that_of_the_c_library() {
        errno::set(17);
        // SAFETY: getpid takes nothing.
        let pid = unsafe { syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) };
        assert_eq!(pid, i64::from(std::process::id()));
        assert_eq!(errno::get(), 17, "errno is left alone by a success");
        // SAFETY: there is no such descriptor; nothing is written.
        assert_eq!(unsafe { syscall(libc::SYS_close, -1, 0, 0, 0, 0, 0) }, -1);
        assert_eq!(errno::get(), libc::EBADF);
        let flags = i64::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: the sixth argument, which is passed on the stack on some ISAs, makes the kernel refuse.
        let refused = unsafe { syscall(libc::SYS_mmap, 0, 4096, 1, flags, -1, 7) };
        assert_eq!((refused, errno::get()), (-1, libc::EINVAL));
    }
}

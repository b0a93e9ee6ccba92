//! System calls without the C library, one file for each ISA, with the same names in each.

use std::ffi::c_int;

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod isa;

use isa::trampoline;
pub use isa::*;
#[cfg(not(test))]
use isa::{jump, own_syscall};

/// Defines functions of the family `exec`: each calls `execute::prepare` with its number, and goes on in the function
/// whose address that gives, with the registers and the stack as its caller has set them.
macro_rules! trampolines {
    ($($number:literal $name:ident)*) => {$(
        #[doc = concat!("`", stringify!($name), "(3)`, with that function's parameters.")]
        ///
        /// # Safety
        ///
        /// 1. As for the C library's function, to which the type written here is of no concern.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name() -> c_int {
            trampoline!($number)
        }
    )*};
}

trampolines! {
    0 execve
    1 execv
    2 execvp
    3 execvpe
    4 execl
    5 execlp
    6 execle
    7 fexecve
    8 execveat
}

// The targets of `--wrap` (`build.rs`). Hidden, so that no other object is bound to them.
#[cfg(not(test))]
std::arch::global_asm!(
    ".macro palimpsest_own name, target",
    ".hidden __wrap_\\name",
    ".globl __wrap_\\name",
    ".type __wrap_\\name, %function",
    "__wrap_\\name:",
    concat!(jump!(), " \\target"),
    ".size __wrap_\\name, . - __wrap_\\name",
    ".endm",
    ".pushsection .text.palimpsest_own, \"ax\", %progbits",
    "palimpsest_own fork, {fork}",
    "palimpsest_own madvise, {madvise}",
    "palimpsest_own mremap, {mremap}",
    "palimpsest_own mmap, {mmap}",
    "palimpsest_own mmap64, {mmap}",
    "palimpsest_own mlock, {mlock}",
    "palimpsest_own mlock2, {mlock2}",
    "palimpsest_own mlockall, {mlockall}",
    "palimpsest_own syscall, {syscall}",
    "palimpsest_own epoll_wait, {epoll_wait}",
    "palimpsest_own epoll_pwait, {epoll_pwait}",
    "palimpsest_own poll, {poll}",
    "palimpsest_own ppoll, {ppoll}",
    "palimpsest_own select, {select}",
    "palimpsest_own pselect, {pselect}",
    "palimpsest_own nanosleep, {nanosleep}",
    "palimpsest_own clock_nanosleep, {clock_nanosleep}",
    ".popsection",
    ".purgem palimpsest_own",
    fork = sym crate::fork::plain,
    madvise = sym crate::kernel::madvise,
    mremap = sym crate::kernel::mremap,
    mmap = sym crate::kernel::mmap,
    mlock = sym crate::kernel::mlock,
    mlock2 = sym crate::kernel::mlock2,
    mlockall = sym crate::kernel::mlockall,
    syscall = sym own_syscall,
    epoll_wait = sym crate::own_waits::own_epoll_wait,
    epoll_pwait = sym crate::own_waits::own_epoll_pwait,
    poll = sym crate::own_waits::own_poll,
    ppoll = sym crate::own_waits::own_ppoll,
    select = sym crate::own_waits::own_select,
    pselect = sym crate::own_waits::own_pselect,
    nanosleep = sym crate::own_waits::own_nanosleep,
    clock_nanosleep = sym crate::own_waits::own_clock_nanosleep,
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno;

    #[test]
    fn arguments_arrive_in_their_places() {
        // mmap takes six, and a wrong one in any place would show.
        let page = rustix::param::page_size();
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
        // SAFETY: makes a mapping at a place that the kernel chooses.
        let made = unsafe { system_call(libc::SYS_mmap, [0, page, libc::PROT_READ as usize, flags, usize::MAX, 0]) };
        assert!(made > 0 && made.cast_unsigned() % page == 0, "{made}");
        // SAFETY: the mapping was made above, and nobody else knows it.
        let gone = unsafe { system_call(libc::SYS_munmap, [made.cast_unsigned(), page, 0, 0, 0, 0]) };
        assert_eq!(gone, 0);
        // SAFETY: an offset that is not a multiple of the page size is refused.
        let refused = unsafe { system_call(libc::SYS_mmap, [0, page, libc::PROT_READ as usize, flags, usize::MAX, 7]) };
        assert_eq!(refused, -(libc::EINVAL as isize));
    }

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

//! System calls without the C library, one file for each ISA, with the same names in each.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

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

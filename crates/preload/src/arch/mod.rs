//! System calls without the C library, and what needs instructions: one file for each ISA, with the same names.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod isa;

#[cfg(not(test))]
pub(crate) use isa::jump;
pub(crate) use isa::{own_syscall, prepare_thread_locals, trampoline, watch};
pub(crate) use palimpsest_sys::arch::system_call;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_arrive_in_their_places() {
        // mmap takes six, and a wrong one in any place would be noticed.
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
}

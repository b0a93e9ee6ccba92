//! Limits of the process, set low.

use std::io;

use palimpsest_sys::pages::maps;
use palimpsest_sys::proc::sysctl;

use crate::child::skip;

/// Sets a soft and hard resource limit for this process.
pub(crate) fn set(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: `limit` outlives the call, which only reads it.
    let done = unsafe { libc::setrlimit(resource, &raw const limit) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// Opens files until no descriptor is left, under a limit just above the number in use.
pub(crate) fn use_all_descriptors() {
    let open = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u64>().ok());
    set(libc::RLIMIT_NOFILE, numbers.max().expect("it is open itself") + 1);
    // SAFETY: takes a number; the new descriptors stay open, as intended.
    while unsafe { libc::dup(0) } >= 0 {}
}

/// Returns the address space in use, in bytes.
pub(crate) fn address_space_in_use() -> u64 {
    let maps = maps::Maps::read().expect("/proc is mounted");
    maps.iter().map(|entry| entry.range().len() as u64).sum()
}

/// Calls `prctl` with one number.
pub(crate) fn prctl(option: libc::c_int, value: usize) -> io::Result<()> {
    // SAFETY: callers pass options that take no pointer.
    match unsafe { libc::prctl(option, value, 0_usize, 0_usize, 0_usize) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives up all privileges.
pub(crate) fn become_nobody() {
    const NOBODY: libc::c_int = 65534;
    // SAFETY: takes numbers; concerns only this thread, which continues.
    if unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) } != 0 {
        skip(&format!("only root can become somebody else: {}", io::Error::last_os_error()));
    }
}

/// Locks every mapping that is made from now on (`mlockall(MCL_FUTURE)`).
pub(crate) fn lock_future_memory() {
    // SAFETY: takes a number.
    let done = unsafe { libc::mlockall(libc::MCL_FUTURE) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

/// Mappings that only count; dropping them unmaps them.
pub(crate) struct Ballast {
    base: *mut libc::c_void,
    len: usize,
}

impl Ballast {
    /// Makes mappings until about `left` more would reach `vm.max_map_count`.
    pub(crate) fn leaving(left: usize) -> Self {
        let page = 4096;
        let most = usize::try_from(sysctl::max_map_count().expect("/proc is mounted")).expect("it fits");
        let wanted = most.saturating_sub(left + maps::count().expect("/proc is mounted"));
        let len = (wanted + 1) * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        // Every second page gets other rights, so that neighbours do not merge.
        for index in (1..wanted).step_by(2) {
            let at = base.wrapping_byte_add(index * page);
            // SAFETY: the page is part of the mapping made above, which nobody uses.
            if unsafe { libc::mprotect(at, page, libc::PROT_READ) } != 0 {
                break;
            }
        }
        println!("{} of {most} mappings are in use", maps::count().expect("/proc is mounted"));
        Self { base, len }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        // SAFETY: the range belongs to this value, and nobody uses it.
        let done = unsafe { libc::munmap(self.base, self.len) };
        assert_eq!(done, 0, "{}", io::Error::last_os_error());
    }
}

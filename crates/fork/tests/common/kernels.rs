//! Kernels that know less than this machine's, as far as a filter can show that.

use std::env;

/// Which kernel scenarios are to find: `6.7`, which tells of no mapping alone; or `6.1`, which does not tell either
/// which pages are huge.
const KERNEL: &str = "PALIMPSEST_FORK_KERNEL";

/// `PROCMAP_QUERY` of `include/uapi/linux/fs.h`.
const PROCMAP_QUERY: usize = 0xc068_6611;

/// `PAGEMAP_SCAN` of the same file.
const PAGEMAP_SCAN: usize = 0xc060_6610;

/// Shows the kernel that the environment asks for.
pub(crate) fn show_wanted() {
    match env::var(KERNEL).as_deref() {
        Ok("6.1") => before_6_7(),
        Ok("6.7") => before_6_11(),
        Ok(other) => panic!("{KERNEL}={other}: only 6.1 and 6.7 can be shown"),
        Err(_) => {}
    }
}

/// Whether the kernel, or what a filter shows of it, does not tell of one mapping alone.
pub(crate) fn is_old() -> bool {
    use std::os::fd::AsFd;
    let maps = std::fs::File::open("/proc/self/maps").expect("/proc");
    palimpsest_sys::pages::query::next_above(maps.as_fd(), 0).is_err()
}

/// Takes `PROCMAP_QUERY` from this thread and from those that it makes.
pub(crate) fn before_6_11() {
    refuse(libc::SYS_ioctl, 1, PROCMAP_QUERY, libc::ENOTTY);
}

/// Takes `PAGEMAP_SCAN` and `PROCMAP_QUERY` from this thread and from those that it makes.
pub(crate) fn before_6_7() {
    before_6_11();
    refuse(libc::SYS_ioctl, 1, PAGEMAP_SCAN, libc::ENOTTY);
}

/// Makes the kernel answer `errno` to the call `number` with `value` as an argument, counted from 0.
pub(crate) fn refuse(number: i64, argument: u32, value: usize, errno: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |offset| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let equal = |value, jf| statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, jf, value);
    let end = |value| statement(libc::BPF_RET | libc::BPF_K, 0, 0, value);
    // `struct seccomp_data`: the number at 0, the arguments from 16 on, as two words each, little-endian.
    let place = 16 + 8 * argument;
    let mut program = [
        load(0),
        equal(number as u32, 5),
        load(place),
        equal(value as u32, 3),
        load(place + 4),
        equal((value >> 32) as u32, 1),
        end(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned()),
        end(libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

//! Seccomp filters for one system call.

use crate::child::skip;

/// How a filter answers the forbidden call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// With this error.
    Errno(i32),
    /// By killing the process with SIGSYS.
    Kill,
    /// With a SIGSYS that could be caught.
    Trap,
}

impl Answer {
    fn action(self) -> u32 {
        match self {
            Self::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
            Self::Trap => libc::SECCOMP_RET_TRAP,
        }
    }
}

/// Forbids the system call `number` to all threads of this process, for good.
pub(crate) fn forbid(number: libc::c_long, answer: Answer) {
    install(&mut [
        load(offset_of_number()),
        jump(libc::BPF_JEQ, number.unsigned_abs() as u32, 0, 1),
        give(answer.action()),
        give(libc::SECCOMP_RET_ALLOW),
    ]);
}

/// Forbids `memfd_create` with any of `flags`, as `vm.memfd_noexec` does.
pub(crate) fn forbid_memfd_flags(flags: u32, answer: Answer) {
    install(&mut [
        load(offset_of_number()),
        jump(libc::BPF_JEQ, libc::SYS_memfd_create.unsigned_abs() as u32, 0, 3),
        load(offset_of_argument(1)),
        jump(libc::BPF_JSET, flags, 0, 1),
        give(answer.action()),
        give(libc::SECCOMP_RET_ALLOW),
    ]);
}

/// Forbids anonymous memory that can be executed, as SELinux does without `execmem`.
pub(crate) fn forbid_anonymous_code(answer: Answer) {
    install(&mut [
        load(offset_of_number()),
        jump(libc::BPF_JEQ, libc::SYS_mmap.unsigned_abs() as u32, 0, 5),
        load(offset_of_argument(2)),
        jump(libc::BPF_JSET, libc::PROT_EXEC.cast_unsigned(), 0, 3),
        load(offset_of_argument(3)),
        jump(libc::BPF_JSET, libc::MAP_ANONYMOUS.cast_unsigned(), 0, 1),
        give(answer.action()),
        give(libc::SECCOMP_RET_ALLOW),
    ]);
}

fn offset_of_number() -> u32 {
    std::mem::offset_of!(libc::seccomp_data, nr) as u32
}

/// Returns the offset of an argument's lower half; the machines that Palimpsest runs on are little-endian.
fn offset_of_argument(index: u32) -> u32 {
    std::mem::offset_of!(libc::seccomp_data, args) as u32 + 8 * index
}

fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

fn jump(condition: u32, value: u32, yes: u8, no: u8) -> libc::sock_filter {
    statement(libc::BPF_JMP | condition | libc::BPF_K, value, yes, no)
}

fn give(action: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, action, 0, 0)
}

fn statement(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn install(program: &mut [libc::sock_filter]) {
    // SAFETY: PR_SET_NO_NEW_PRIVS takes no pointer.
    let done = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_usize, 0_usize, 0_usize, 0_usize) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let all_threads = libc::SECCOMP_FILTER_FLAG_TSYNC;
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done =
        unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, all_threads, &raw const filter) };
    if done != 0 {
        skip(&format!("no seccomp filter can be installed: {}", std::io::Error::last_os_error()));
    }
}

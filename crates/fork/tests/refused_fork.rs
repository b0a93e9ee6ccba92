//! What `fork` returns when the kernel makes no child.

mod common;

use common::{Memory, freeze, play};
use palimpsest_fork::{Measure, Options};
use rustix::io::Errno;

/// Installs a filter that answers the calls by which C libraries make processes with EAGAIN, as a limit of processes
/// does.
fn forbid_children() {
    let ways = [libc::SYS_clone, libc::SYS_clone3];
    let statement = |code: u32, jt: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let mut program = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0)];
    for (index, number) in ways.into_iter().enumerate() {
        let to_end = (ways.len() - index) as u8;
        program.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, to_end, number as u32));
    }
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW));
    program.push(statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | libc::EAGAIN as u32));
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

/// Fails on: taking -1 for a process id (`Pid::from_raw`, which asserts that it is none).
#[test]
fn a_fork_that_the_kernel_refuses_is_an_error_and_no_process() {
    play("a_fork_that_the_kernel_refuses_is_an_error_and_no_process", || {
        let memory = Memory::apart(4 << 20);
        memory.fill(0..memory.len, 1);
        freeze(&Options::new().measure(Measure::Nothing));
        forbid_children();
        for _ in 0..2 {
            // SAFETY: 1. one thread; 2. nothing is discarded.
            let error = unsafe { palimpsest_fork::fork() }.expect_err("there is no child");
            assert_eq!(error.0, Errno::AGAIN);
            assert!(error.to_string().contains("RLIMIT_NPROC"), "{error}");
        }
        assert!(memory.is_frozen() && memory.holds(0..memory.len, 1));
    });
}

use crate::proc::status::Status;

use super::*;
use crate::threads::in_pid_namespace;

#[test]
fn a_child_answers_as_this_process_does() {
    let memory = [Probe::GetMempolicy, Probe::Mbind, Probe::MovePages];
    let others = [Probe::Membarrier, Probe::MemfdCreate, Probe::Userfaultfd, Probe::Ptrace];
    for probe in others.into_iter().chain(memory) {
        let here = attempt(probe).map_or_else(Verdict::Refused, |()| Verdict::Allowed);
        assert_eq!(attempt_in_child(probe), here, "{probe:?}");
    }
}

#[test]
fn a_child_leaves_the_signal_mask_alone() {
    let before = Status::of_this_thread().expect("/proc is mounted").blocked;
    attempt_in_child(Probe::Membarrier);
    assert_eq!(Status::of_this_thread().expect("/proc is mounted").blocked, before);
}

/// Installs a filter for the calling thread that answers the call `number` with `action`.
fn install(number: i64, action: u32) {
    let statement = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let number = u32::try_from(number).expect("a small number");
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, action),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).expect("always allowed");
    let operation = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0_usize, &raw const filter) };
    answer(done).expect("a valid filter");
}

/// Runs `under` on its own thread with such a filter.
pub(crate) fn filtered(number: i64, action: u32, under: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            install(number, action);
            under();
        });
        thread.join().expect("the thread lives");
    });
}

/// Runs `holds` in a child with such a filter. Returns how the child ended: 0 if it holds.
pub(crate) fn in_filtered_child(number: i64, action: u32, holds: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child makes system calls, uses no lock that another thread could hold but the heap's, which the C
    // library makes usable in children, and ends without a destructor.
    let child = unsafe { libc::fork() };
    if child == 0 {
        install(number, action);
        let holds = holds();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!holds)) };
    }
    let mut status = 0;
    // SAFETY: the child is ours; the status goes to a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_filter_is_survived_and_understood() {
    let errno = |errno: Errno| libc::SECCOMP_RET_ERRNO | u32::try_from(errno.raw_os_error()).expect("positive");
    for (action, verdict) in [
        (errno(Errno::PERM), Verdict::Refused(Errno::PERM)),
        (errno(Errno::NOSYS), Verdict::Refused(Errno::NOSYS)),
        (libc::SECCOMP_RET_KILL_PROCESS, Verdict::Killed { signal: libc::SIGSYS }),
        (libc::SECCOMP_RET_KILL_THREAD, Verdict::Killed { signal: libc::SIGSYS }),
        (libc::SECCOMP_RET_TRAP, Verdict::Killed { signal: libc::SIGSYS }),
    ] {
        filtered(libc::SYS_membarrier, action, || {
            assert_eq!(probe(Probe::Membarrier), verdict);
            assert_eq!(probe(Probe::Membarrier), verdict, "remembered");
            assert_eq!(probe(Probe::MemfdCreate), Verdict::Allowed);
        });
    }
}

#[test]
fn a_filter_that_kills_at_prctl_does_not_hide_the_answer() {
    filtered(libc::SYS_prctl, libc::SECCOMP_RET_KILL_PROCESS, || {
        assert_eq!(
            probe(Probe::Membarrier),
            attempt(Probe::Membarrier).map_or_else(Verdict::Refused, |()| Verdict::Allowed)
        );
    });
}

#[test]
fn a_child_that_cannot_be_made_leaves_the_matter_open() {
    filtered(libc::SYS_clone, libc::SECCOMP_RET_ERRNO | 11, || {
        assert_eq!(probe(Probe::Membarrier), Verdict::Unknown(Untried::NoChild(NoChild::Refused(Errno::AGAIN))));
    });
}

#[test]
fn a_verdict_is_remembered_for_its_thread_and_filters() {
    let key = Key::of_this_thread(7, Probe::Userfaultfd).expect("/proc is mounted");
    let killed = Verdict::Killed { signal: libc::SIGSYS };
    // Other tests may hold the lock for a moment.
    let kept = (0..1000).any(|_| {
        remember(key, killed);
        std::thread::yield_now();
        remembered(key) == Some(killed)
    });
    assert!(kept);
    assert_eq!(remembered(Key { filters: 8, ..key }), None);
    assert_eq!(remembered(Key { started: key.started + 1, ..key }), None);
}

/// What tries calls, and returns the first deadly one.
type Trial = fn() -> Result<(), (FreezeCall, Verdict)>;

/// Without a child for each call, or for each slice of a freeze.
#[test]
fn filters_are_counted_through_a_proc_of_another_pid_namespace() {
    let status = in_pid_namespace(|| {
        // A container has its own.
        let before = own_filters();
        install(libc::SYS_membarrier, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned());
        let refused = Verdict::Refused(Errno::PERM);
        let is_found = probe(Probe::Membarrier) == refused;
        let filters = own_filters();
        let key = filters.and_then(|filters| Key::of_this_thread(filters, Probe::Membarrier));
        before.is_some()
            && filters == before.map(|before| before + 1)
            && is_found
            && key.and_then(remembered) == Some(refused)
    });
    assert!(matches!(status, None | Some(0)), "{status:?}");
}

#[test]
fn each_call_of_a_freeze_is_tried_before_it_kills() {
    // With debug assertions the standard library calls `fcntl` before it closes a descriptor.
    let is_free = |call: &FreezeCall| *call != FreezeCall::Seal || !cfg!(debug_assertions);
    let of_a_freeze = FreezeCall::ALL.into_iter().filter(is_free).map(|call| (call, probe_freeze as Trial));
    let in_waits = FreezeCall::WAITING.into_iter().chain([FreezeCall::MemfdCreate]);
    let in_waits = in_waits.map(|call| (call, probe_waits as Trial));
    for (call, probe) in of_a_freeze.chain(in_waits) {
        // A thread that ends makes some of the calls itself; a process need not.
        let status = in_filtered_child(call.number(), libc::SECCOMP_RET_KILL_PROCESS, || {
            probe().is_err_and(|(deadly, verdict)| {
                deadly.number() == call.number() && verdict == Verdict::Killed { signal: libc::SIGSYS }
            })
        });
        assert_eq!(status, 0, "{call}: 256 if another one was named, 31 if it was made");
    }
}

#[test]
fn what_a_filter_refuses_has_a_second_best() {
    filtered(libc::SYS_get_mempolicy, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), || {
        assert_eq!(probe_freeze(), Ok(()));
    });
    filtered(libc::SYS_memfd_create, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), || {
        assert_eq!(probe_freeze(), Err((FreezeCall::MemfdCreate, Verdict::Refused(Errno::PERM))));
        assert_eq!(probe_waits(), Ok(()));
    });
}

/// Fails on: errors that show a user Rust's names.
#[test]
fn a_verdict_reads_as_a_sentence() {
    for (verdict, text) in [
        (Verdict::Allowed, "it works"),
        (Verdict::Refused(Errno::PERM), "it fails with Operation not permitted (os error 1)"),
        (Verdict::Killed { signal: 31 }, "it ends the process with signal 31"),
        (
            Verdict::Unknown(Untried::LostChild(Errno::CHILD)),
            "the child process that tried it was lost: No child processes (os error 10)",
        ),
    ] {
        assert_eq!(verdict.to_string(), text);
    }
}

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
    let verdicts = Latest::<Probe, Verdict>::new();
    let killed = Verdict::Killed { signal: libc::SIGSYS };
    verdicts.remember(key, killed);
    assert_eq!(verdicts.of(key), Some(killed));
    assert_eq!(verdicts.of(Key { filters: 8, ..key }), None);
    assert_eq!(verdicts.of(Key { started: key.started + 1, ..key }), None);
}

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
            && key.and_then(|key| VERDICTS.of(key)) == Some(refused)
    });
    assert!(matches!(status, None | Some(0)), "{status:?}");
}

/// Fails on: a call that is not tried, or ends this process; one that is taken for the call that is deadly.
#[test]
fn each_call_of_a_freeze_is_tried_before_it_kills() {
    // With debug assertions the standard library calls `fcntl` before it closes a descriptor.
    let is_free = |call: &FreezeCall| *call != FreezeCall::Seal || !cfg!(debug_assertions);
    for call in FreezeCall::ALL.into_iter().filter(is_free) {
        // A thread that ends makes some of the calls itself; a process need not.
        let status = in_filtered_child(call.number(), libc::SECCOMP_RET_KILL_PROCESS, || {
            deadly_calls().is_ok_and(|deadly| {
                FreezeCall::ALL.into_iter().all(|other| deadly.contains(other) == (other.number() == call.number()))
            }) && call.is_deadly()
        });
        assert_eq!(status, 0, "{call}: 256 if another one was named, 31 if it was made");
    }
}

/// Fails on: a child for each call, or a second trial of what ended a child.
#[test]
fn all_calls_are_tried_in_one_child_and_one_more_for_each_that_is_deadly() {
    let kill = libc::SECCOMP_RET_KILL_PROCESS;
    let by_itself = trial::in_children().expect("children can be made").1;
    for (number, more) in [(libc::SYS_mincore, 1), (libc::SYS_get_mempolicy, 1), (libc::SYS_getppid, 1)] {
        let status =
            in_filtered_child(number, kill, || trial::in_children().is_ok_and(|(_, count)| count == by_itself + more));
        assert_eq!(status, 0, "{number}");
    }
    // Both calls of that number, and whoever forbids a core dump.
    let status = in_filtered_child(libc::SYS_prctl, kill, || {
        trial::in_children().is_ok_and(|(deadly, count)| {
            count == by_itself + 3 && deadly.contains(FreezeCall::Prctl) && deadly.contains(FreezeCall::Confine)
        })
    });
    assert_eq!(status, 0);
}

/// Fails on: a trial although its outcome was told; one that is believed of other filters.
#[test]
fn what_was_told_is_believed_of_as_many_filters() {
    let told = Calls::NONE.with(FreezeCall::Lock);
    let status = in_filtered_child(libc::SYS_mincore, libc::SECCOMP_RET_KILL_PROCESS, || {
        let Some(filters) = own_filters() else { return false };
        tell(filters, told);
        let is_believed = deadly_calls() == Ok(told) && FreezeCall::Lock.is_deadly();
        tell(filters + 1, told);
        is_believed && deadly_calls().is_ok_and(|deadly| deadly.contains(FreezeCall::Mincore))
    });
    assert_eq!(status, 0);
}

/// Fails on: a refusal of the parts that can do without the call; none of those that cannot; a call that is made though
/// it is deadly: 31.
#[test]
fn only_the_part_that_needs_a_deadly_call_is_refused() {
    use crate::pages::policy::has_policy;

    const OTHERS: [Part; 10] = [
        Part::Freezing,
        Part::Holding,
        Part::Waits,
        Part::Deputies,
        Part::Promptness,
        Part::Early,
        Part::Keys,
        Part::Policies,
        Part::Rings,
        Part::Contexts,
    ];
    for call in [
        FreezeCall::MemfdCreate,
        FreezeCall::Mincore,
        FreezeCall::ProtectionKey,
        FreezeCall::MemoryPolicy,
        FreezeCall::RingRegister,
        FreezeCall::AsyncSubmit,
        FreezeCall::QueueSignal,
        FreezeCall::CloseRange,
        FreezeCall::SetTimeslice,
        FreezeCall::Select,
        FreezeCall::Remap,
    ] {
        let status = in_filtered_child(call.number(), libc::SECCOMP_RET_KILL_PROCESS, || {
            let is_refused = |part: Part| matches!(probe_parts(&[part]), Err((deadly, _)) if deadly == call);
            let page = rustix::param::page_size();
            let here = (&raw const page).addr() & !(page - 1);
            is_refused(Part::Service) == (call.part() == Part::Service)
                && OTHERS.into_iter().all(|part| is_refused(part) == (call.part() == part))
                && !has_policy(here)
                && crate::async_io::uring::is_any_registered() == (call == FreezeCall::RingRegister)
                && crate::async_io::aio::is_context(8).is_ok_and(|is| !is) == (call != FreezeCall::AsyncSubmit)
        });
        assert_eq!(status, 0, "{call}");
    }
}

#[test]
fn what_a_filter_refuses_has_a_second_best() {
    let parts = [Part::Service, Part::Freezing];
    filtered(libc::SYS_get_mempolicy, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), || {
        assert_eq!(probe_parts(&parts), Ok(()));
        assert_eq!(deadly_calls(), Ok(Calls::NONE));
    });
    filtered(libc::SYS_memfd_create, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), || {
        assert_eq!(probe_parts(&parts), Err((FreezeCall::MemfdCreate, Verdict::Refused(Errno::PERM))));
        assert_eq!(probe_parts(&[Part::Service]), Ok(()));
    });
}

/// Fails on: two calls of one name, or one with a comma, so that a list of names would not tell them.
#[test]
fn names_tell_sets_of_calls() {
    for call in FreezeCall::ALL {
        let alone = Calls::NONE.with(call);
        assert_eq!(Calls::from_names(call.to_string().as_bytes()), Some(alone), "{call}");
        assert!(alone.contains(call) && alone.first_of(&[call.part()]) == Some(call));
    }
    let all = FreezeCall::ALL.into_iter().fold(Calls::NONE, Calls::with);
    assert_eq!(Calls::from_names(all.named(",").to_string().as_bytes()), Some(all));
    for other in ["", ",", "mincore,", "mincore, select"] {
        assert_eq!(Calls::from_names(other.as_bytes()), None, "{other:?}");
    }
}

#[test]
fn what_is_left_out_is_told_in_one_sentence() {
    let deadly = Calls::NONE.with(FreezeCall::Mincore).with(FreezeCall::Rights).with(FreezeCall::MemfdCreate);
    assert_eq!(
        deadly.losses(&[Part::Freezing, Part::Waits, Part::Early]).as_deref(),
        Some(
            "a seccomp filter would end the program for memfd_create, fchmod, mincore: nothing is frozen, less \
             memory is put into huge pages before the first fork"
        )
    );
    assert_eq!(deadly.losses(&[Part::Waits, Part::Deputies]), None);
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

/// Lets a trapped call return, whatever it returns then.
extern "C" fn answer_trap(_: i32) {}

/// Fails on: a trial in which SIGSYS is open, so that a handler of the program answers for a call that is made with all
/// signals blocked.
#[test]
fn a_handler_that_cannot_run_makes_no_call_harmless() {
    use crate::pages::policy::has_policy;
    use crate::threads::own::Blocked;

    let status = in_filtered_child(libc::SYS_get_mempolicy, libc::SECCOMP_RET_TRAP, || {
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGSYS, answer_trap as *const () as usize) };
        let page = rustix::param::page_size();
        let here = (&raw const page).addr() & !(page - 1);
        let deadly = deadly_calls();
        let _blocked = Blocked::all();
        !has_policy(here) && deadly == Ok(Calls::NONE.with(FreezeCall::MemoryPolicy))
    });
    assert_eq!(status, 0, "31 if the call was made");
}

/// Fails on: a tracer, which has all signals blocked, that a filter would end for what it does beside `ptrace`.
#[test]
fn a_tracer_is_tried_with_all_that_it_calls() {
    let killed = Verdict::Killed { signal: libc::SIGSYS };
    for number in [libc::SYS_ptrace, libc::SYS_getppid, libc::SYS_prctl, libc::SYS_prlimit64] {
        let status = in_filtered_child(number, libc::SECCOMP_RET_TRAP, || {
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGSYS, answer_trap as *const () as usize) };
            probe(Probe::Ptrace) == killed
        });
        assert_eq!(status, 0, "{number}");
    }
}

/// Fails on: a ring that the program may have made before it got a filter, and that counts as none because nobody may
/// ask for it; a program that is refused for rings though it never could make one.
#[test]
fn a_ring_that_nobody_may_ask_for_counts_unless_there_can_be_none() {
    use crate::async_io::uring::is_any_registered;

    let status = in_filtered_child(libc::SYS_io_uring_register, libc::SECCOMP_RET_KILL_PROCESS, || {
        let Ok(deadly) = deadly_calls() else { return false };
        let is_feared = is_any_registered();
        tell(own_filters().unwrap_or(1), deadly);
        is_feared && !is_any_registered()
    });
    assert_eq!(status, 0);
}

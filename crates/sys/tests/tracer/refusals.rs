//! If nothing can be traced, the error names the thread and the way out, comes before any thread is disturbed, and all
//! threads keep running.

use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;

use palimpsest_sys::seccomp::Verdict;
use palimpsest_sys::threads::hold::{Refusal, StopError, World};

use crate::sleepers::PAUSE;
use crate::support::{gettid, go_deaf, play, sleeps, status_of, wait_until};

/// Counters of the two threads below: one deaf, one hearing.
static COUNTS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Starts a deaf thread, named so, and a hearing one. Returns the first one's id.
fn start_threads() -> i32 {
    let (told, tid) = mpsc::channel();
    for (index, count) in COUNTS.iter().enumerate() {
        let told = told.clone();
        let run = move || {
            if index == 0 {
                go_deaf();
            }
            told.send((index, gettid())).expect("heard");
            loop {
                count.fetch_add(1, Ordering::Relaxed);
                thread::sleep(std::time::Duration::from_micros(100));
            }
        };
        thread::Builder::new().name(["deaf", "hearing"][index].to_owned()).spawn(run).expect("a thread");
    }
    let told = [tid.recv().expect("told"), tid.recv().expect("told")];
    told.into_iter().find(|(index, _)| *index == 0).expect("both have told").1
}

/// Checks that threads cannot be held, for the expected reason, and that they run.
fn refused(deaf: i32, is_expected: impl Fn(Refusal) -> bool) {
    let world = World::prepare().expect("a free signal");
    let errors =
        [world.rehearse().expect_err("nobody can trace"), world.stop_others().map(drop).expect_err("nobody can trace")];
    for error in errors {
        let StopError::Blocked { thread, refusal, .. } = &error else { panic!("{error}") };
        println!("{error}: {refusal}");
        assert!(thread.tid() == deaf && thread.to_string().contains("(deaf)"), "{thread}");
        assert!(is_expected(*refusal), "{refusal:?}");
    }
    let counts = || COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed));
    let before = counts();
    wait_until("both run on", || counts().iter().zip(before).all(|(now, then)| *now != then).then_some(()));
}

/// Installs a filter for the calling thread that answers `ptrace` with `action`.
fn filter_ptrace(action: u32) {
    let statement = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
    let number = u32::try_from(libc::SYS_ptrace).expect("a small number");
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, action),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    assert_eq!(unsafe { libc::syscall(libc::SYS_seccomp, mode, 0_usize, &raw const filter) }, 0);
}

#[test]
fn a_filter_that_forbids() {
    play("refusals::a_filter_that_forbids", || {
        let deaf = start_threads();
        filter_ptrace(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        refused(deaf, |refusal| matches!(refusal, Refusal::Filtered(Verdict::Refused(rustix::io::Errno::PERM))));
    });
}

/// Fails on: threads that are sent no signal since they wait for one, and that nobody else can hold.
#[test]
fn who_waits_for_a_signal_is_held_by_one_all_the_same() {
    play("refusals::who_waits_for_a_signal_is_held_by_one_all_the_same", || {
        filter_ptrace(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
        let (told, tid) = mpsc::channel();
        thread::spawn(move || {
            told.send(gettid()).expect("heard");
            loop {
                // SAFETY: takes nothing. The process ends with the scenario.
                unsafe { libc::pause() };
            }
        });
        let tid = tid.recv().expect("told");
        sleeps(tid, PAUSE);
        let world = World::prepare().expect("a free signal");
        world.rehearse().expect("it hears the signal");
        let stopped = world.stop_others().expect("it hears the signal");
        let is_held = stopped.held().any(|held| held.tid == tid);
        let traced = stopped.traced();
        drop(stopped);
        assert!(is_held && traced == 0, "{traced}");
    });
}

#[test]
fn a_filter_that_kills() {
    play("refusals::a_filter_that_kills", || {
        let deaf = start_threads();
        filter_ptrace(libc::SECCOMP_RET_KILL_PROCESS);
        refused(deaf, |refusal| matches!(refusal, Refusal::Filtered(Verdict::Killed { signal: libc::SIGSYS })));
    });
}

#[test]
fn a_filter_that_allows() {
    play("refusals::a_filter_that_allows", || {
        start_threads();
        filter_ptrace(libc::SECCOMP_RET_ALLOW);
        let world = World::prepare().expect("a free signal");
        for _ in 0..3 {
            // A thread that is still on its way out of the handler is deaf too.
            assert!(world.stop_others().expect("ptrace is allowed").traced() >= 1);
        }
    });
}

#[test]
fn a_process_that_is_not_dumpable() {
    play("refusals::a_process_that_is_not_dumpable", || {
        let deaf = start_threads();
        drop_capabilities();
        // SAFETY: takes numbers.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) }, 0);
        // Then the files of /proc belong to root.
        refused(deaf, |refusal| refusal == Refusal::Undumpable);
    });
}

/// Drops the calling thread's capabilities.
fn drop_capabilities() {
    // `struct __user_cap_header_struct` and two of `__user_cap_data_struct` (`include/uapi/linux/capability.h`),
    // version 3.
    let header = [0x2008_0522_u32, 0];
    let none = [0_u32; 6];
    // SAFETY: both are as long as version 3 says, and only read.
    assert_eq!(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }, 0);
}

#[test]
fn a_debugger() {
    play("refusals::a_debugger", || {
        let deaf = start_threads();
        // SAFETY: the child makes system calls only.
        let debugger = unsafe { libc::fork() };
        if debugger == 0 {
            // SAFETY: traces another process's thread; no memory is touched.
            unsafe { libc::ptrace(libc::PTRACE_SEIZE, deaf, ptr::null_mut::<u8>(), ptr::null_mut::<u8>()) };
            loop {
                // SAFETY: takes nothing. The child ends by the signal below.
                unsafe { libc::pause() };
            }
        }
        let traced = || status_of(deaf, "TracerPid").is_some_and(|pid| pid == debugger.to_string());
        wait_until("the debugger traces", || traced().then_some(()));
        refused(deaf, |refusal| refusal == Refusal::Traced { by: debugger });
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(debugger, libc::SIGKILL) };
        // SAFETY: no status is requested.
        unsafe { libc::waitpid(debugger, ptr::null_mut(), 0) };
        let world = World::prepare().expect("a free signal");
        assert!(world.stop_others().expect("nobody traces it any more").traced() >= 1);
    });
}

#[test]
fn children_in_another_pid_namespace() {
    play("refusals::children_in_another_pid_namespace", || {
        let deaf = start_threads();
        // SAFETY: takes a number; concerns children that are made later.
        if unsafe { libc::unshare(libc::CLONE_NEWPID) } != 0 {
            return println!("skipped: this user may not unshare pid namespaces: {}", std::io::Error::last_os_error());
        }
        refused(deaf, |refusal| refusal == Refusal::PidNamespace);
        // A tracer would have been the first process of the namespace, which ends with it: then there are no more
        // children.
        assert!(std::process::Command::new("true").status().is_ok_and(|status| status.success()));
    });
}

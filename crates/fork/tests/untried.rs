//! What a freeze does under a filter that ends the process for each call that nobody has tried.

mod common;

use std::time::Duration;

use common::{Memory, in_child, page, play};
use palimpsest_fork::{FreezeError, Measure, Options, OtherThreads, Pause, freeze as freeze_process};
use palimpsest_sys::Causes;
use palimpsest_sys::seccomp::FreezeCall;

const MIB: usize = 1 << 20;

/// Tries to freeze.
fn try_freeze(options: &Options) -> Result<palimpsest_fork::Report, FreezeError> {
    // SAFETY: the scenario is alone in its process, or its other threads only wait.
    unsafe { freeze_process(options) }
}

/// Options of a freeze that holds other threads.
fn stopping() -> Options {
    Options::new().other_threads(OtherThreads::Stop).measure(Measure::Nothing)
}

/// Blocks all signals in this thread.
fn be_deaf() {
    // SAFETY: all-zero is a valid set, which is then filled.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a valid place for a set.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: a valid set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) };
}

/// What the list in `palimpsest_sys::seccomp` has beside the calls that are tried, and what a process needs to live.
const PLAIN: [libc::c_long; 25] = [
    libc::SYS_openat,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_brk,
    libc::SYS_close,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_futex,
    libc::SYS_clone,
    libc::SYS_wait4,
    // Of the C library, in a child of `fork`.
    libc::SYS_set_robust_list,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rseq,
];

/// Lets this thread make no call but those and the ones that are tried, `ptrace` too.
fn confine() {
    let tried = FreezeCall::ALL.map(FreezeCall::number);
    common::allow_only(&[&PLAIN[..], &tried[..], &[libc::SYS_ptrace]].concat(), libc::SECCOMP_RET_KILL_PROCESS);
}

/// Fails on: a freeze that asks for the length of a file in `/proc`, as the standard library does before it reads one
/// (`statx`); any other call that nobody knows of, and for which a filter ends the process.
#[test]
fn a_freeze_makes_no_call_but_those_it_tries_and_plain_ones() {
    play("a_freeze_makes_no_call_but_those_it_tries_and_plain_ones", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        for pause in [Pause::AtOnce, Pause::Within(Duration::from_millis(1))] {
            let ended = in_child(|| {
                confine();
                let Ok(mut report) = try_freeze(&Options::new().pause(pause)) else { return 2 };
                // To the end, and what is written then is repaired.
                for salt in [2, 3] {
                    if pause != Pause::AtOnce {
                        common::gathering::to_the_end(|_| ());
                    }
                    assert_eq!(in_child(|| i32::from(!memory.holds(2 * MIB..memory.len, 1))), 0);
                    memory.fill(0..2 * MIB, salt);
                }
                report.update();
                i32::from(!memory.holds(0..2 * MIB, 3) || !memory.holds(2 * MIB..memory.len, 1))
            });
            assert_eq!(ended, 0, "{pause:?}");
        }
    });
}

/// Fails on: `uname`, to learn whether a piece that cannot be gathered may become fit; any other call of gathering that
/// nobody knows of.
#[test]
fn gathering_makes_no_call_but_those_it_tries_and_plain_ones() {
    play("gathering_makes_no_call_but_those_it_tries_and_plain_ones", || {
        use common::gathering::{LEN, PIECE, by_deputies, filled, in_slices, needs_huge_pages, to_the_end};

        needs_huge_pages();
        for options in [in_slices(), by_deputies()] {
            let ended = in_child(|| {
                let memory = filled();
                confine();
                let Ok(report) = try_freeze(&options) else { return 2 };
                // By the system call, which the plan does not hear of. SAFETY: keeps contents.
                unsafe { libc::madvise(memory.at(2 * PIECE), PIECE, libc::MADV_NOHUGEPAGE) };
                to_the_end(|number| {
                    palimpsest_fork::dismiss_deputy();
                    memory.fill(number % 4 * PIECE..number % 4 * PIECE + page(), 1);
                });
                assert_eq!(in_child(|| i32::from(!memory.holds(0..LEN, 1))), 0, "{report}");
                i32::from(!memory.holds(0..LEN, 1))
            });
            assert_eq!(ended, 0, "{options:?}");
        }
    });
}

/// Fails on: any such call of whoever holds another thread, by a signal or as its tracer, or of that thread.
#[test]
fn holding_threads_makes_no_call_but_those_it_tries_and_plain_ones() {
    play("holding_threads_makes_no_call_but_those_it_tries_and_plain_ones", || {
        let memory = Memory::apart(16 * MIB);
        memory.fill(0..memory.len, 1);
        for is_deaf in [false, true] {
            let ended = in_child(|| {
                let (told, ready) = std::sync::mpsc::channel();
                let (end, ended) = std::sync::mpsc::channel::<()>();
                let thread = std::thread::spawn(move || {
                    if is_deaf {
                        be_deaf();
                    }
                    confine();
                    told.send(()).expect("heard");
                    let _ = ended.recv();
                });
                ready.recv().expect("told");
                confine();
                let frozen = try_freeze(&stopping());
                // The process ends while the other thread waits.
                std::mem::forget((end, thread));
                match frozen {
                    // It cannot be traced here. A tracer that has ended was killed.
                    Err(error @ FreezeError::NotStopped(_)) if is_deaf => {
                        i32::from(Causes(&error).to_string().contains("has ended"))
                    }
                    frozen => i32::from(frozen.is_err() || !memory.holds(0..memory.len, 1)),
                }
            });
            assert_eq!(ended, 0, "deaf: {is_deaf}");
        }
    });
}

/// Fails on: a tracer that a filter ends, and before Linux 5.16 its core dump this process, for a call that is known to
/// be deadly.
#[test]
fn a_filter_that_ends_a_tracer_is_a_refusal() {
    play("a_filter_that_ends_a_tracer_is_a_refusal", || {
        let (told, ready) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            be_deaf();
            told.send(()).expect("heard");
            let _ = ended.recv();
        });
        ready.recv().expect("told");
        common::filter(libc::SYS_getppid, libc::SECCOMP_RET_KILL_PROCESS);
        let error = try_freeze(&stopping()).expect_err("nobody can hold the thread");
        assert!(matches!(error, FreezeError::NotStopped(_)), "{error}");
        let causes = Causes(&error).to_string();
        assert!(causes.contains("getppid") && causes.contains("signal 31"), "{causes}");
        drop(end);
        thread.join().expect("it ends");
    });
}

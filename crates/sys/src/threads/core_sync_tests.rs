use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::threads::list;

fn with_busy_threads(path: SyncPath, syncs: u64) {
    let sync = CoreSync::with_path(path).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..3)
        .map(|number| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    match number {
                        0 => std::hint::spin_loop(),
                        1 => thread::sleep(std::time::Duration::from_millis(1)),
                        _ => thread::spawn(|| {}).join().unwrap(),
                    }
                }
            })
        })
        .collect();
    for _ in 0..syncs {
        sync.sync().unwrap();
    }
    assert_eq!(sync.syncs(), syncs);
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn membarrier_reaches_busy_sleeping_and_new_threads() {
    with_busy_threads(SyncPath::Membarrier, 1000);
}

/// A filter refuses exactly this command: all others pass.
#[test]
fn what_is_issued_is_the_command_that_serialises() {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let sync = match CoreSync::with_path(SyncPath::Membarrier) {
                Ok(sync) => sync,
                Err(error) => return eprintln!("skipped: {error}"),
            };
            // The command that only orders would be granted.
            rustix::thread::membarrier(MembarrierCommand::RegisterPrivateExpedited).unwrap();
            sync.sync().unwrap();
            refuse_command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
            assert!(matches!(sync.sync(), Err(SyncError::Membarrier(_))));
            assert_eq!(sync.syncs(), 1, "what was refused does not count");
        });
        thread.join().unwrap();
    });
}

/// Fails on: signals that are taken for good, also by threads to which `membarrier` is granted.
#[test]
fn signals_take_over_where_membarrier_has_begun_to_fail() {
    let _alone = crate::threads::alone();
    let sync = match CoreSync::with_path(SyncPath::Membarrier) {
        Ok(sync) => sync,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    assert!(sync.sync_by_any_path().unwrap().is_none() && sync.refused().is_none());
    thread::scope(|scope| {
        let refused = scope.spawn(|| {
            refuse_command(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE);
            assert!(matches!(sync.sync(), Err(SyncError::Membarrier(_))), "nobody has asked for signals");
            assert!(sync.sync_by_any_path().unwrap().is_some(), "it is new");
            assert!(sync.sync_by_any_path().unwrap().is_none());
        });
        refused.join().unwrap();
    });
    assert!(matches!(sync.refused(), Some(SetupError::Refused(error)) if error.raw_os_error() == Some(libc::EPERM)));
    assert_eq!((sync.path(), sync.syncs()), (SyncPath::Membarrier, 3));
}

/// Makes `membarrier` with this command fail for the calling thread.
fn refuse_command(command: i32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let (load, equal) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K);
    let end = libc::BPF_RET | libc::BPF_K;
    // `struct seccomp_data`: the number at 0, the first argument at 16, little-endian.
    let mut program = [
        statement(load, 0, 0, 0),
        statement(equal, 0, 3, libc::SYS_membarrier as u32),
        statement(load, 0, 0, 16),
        statement(equal, 0, 1, command.cast_unsigned()),
        statement(end, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned()),
        statement(end, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    rustix::thread::set_no_new_privs(true).unwrap();
    // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0_usize, &raw const filter) };
    assert_eq!(done, 0);
}

thread_local! {
    /// How often this thread has serialised its core.
    static SERIALIZED: Cell<u64> = const { Cell::new(0) };
}

/// Serialises by the instruction set's function, and counts.
pub(super) fn serialize_this_core() {
    crate::arch::serialize_this_core();
    SERIALIZED.set(SERIALIZED.get() + 1);
}

/// The kernel leaves out the core that calls, if it runs the only thread.
#[test]
fn the_calling_core_is_serialised_too() {
    let sync = CoreSync::with_path(SyncPath::Membarrier);
    let sync = match sync {
        Ok(sync) => sync,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let before = SERIALIZED.get();
    sync.sync().unwrap();
    assert!(SERIALIZED.get() > before);
}

/// Only one runs at a time in a process.
mod broadcasts {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::threads::{alone, in_pid_namespace};

    #[test]
    fn signals_reach_busy_sleeping_and_new_threads() {
        let _alone = alone();
        with_busy_threads(SyncPath::Signals, 200);
    }

    #[test]
    fn a_thread_that_blocks_the_signal_is_named() {
        let _alone = alone();
        let sync = CoreSync::with_path(SyncPath::Signals).unwrap();
        let (ready, wait) = std::sync::mpsc::channel();
        let (done, finish) = std::sync::mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            // SAFETY: all-zero is a valid `sigset_t`.
            let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: `all` is a valid set.
            unsafe { libc::sigfillset(&mut all) };
            // SAFETY: blocks only this thread's signals.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut()) };
            ready.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            let _ = finish.recv();
        });
        let tid = wait.recv().unwrap();
        let error = sync.sync().unwrap_err();
        assert!(error.to_string().contains(&format!("thread {tid} blocks signal")), "{error}");
        drop(done);
        thread.join().unwrap();
        sync.sync().unwrap();
    }

    /// Without a sentinel a broadcast among so many threads only ends by luck, after thousands of listings.
    #[test]
    fn a_broadcast_ends_though_threads_come_without_a_pause() {
        let _alone = alone();
        broadcast::install().unwrap();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                // Relaxed: only a flag.
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        thread::spawn(|| {}).join().unwrap()
                    }
                });
            }
            let most = (0..50).map(|_| broadcast::sync().unwrap()).max();
            stop.store(true, Ordering::Relaxed);
            assert!(most.is_some_and(|most| most < 300), "{most:?} listings");
        });
    }

    #[test]
    fn workers_of_the_kernel_are_not_signalled() {
        let _alone = alone();
        let mut ring = match io_uring::IoUring::new(2) {
            Ok(ring) => ring,
            Err(error) => return eprintln!("skipped: no io_uring here: {error}"),
        };
        let (read, _write) = io::pipe().unwrap();
        let mut byte = [0_u8];
        let read = io_uring::opcode::Read::new(io_uring::types::Fd(read.as_raw_fd()), byte.as_mut_ptr(), 1).build();
        // SAFETY: the descriptor is valid until the request is queued, and nobody writes to the pipe, so that nothing
        // is ever stored.
        unsafe { ring.submission().push(&read.flags(io_uring::squeue::Flags::ASYNC)).unwrap() };
        ring.submit().unwrap();
        let is_worker =
            |tid: &i32| crate::threads::task::task_stat(*tid).is_some_and(|stat| stat.is_kernel_worker(*tid));
        let has_worker = || list::Roll::call(100).unwrap().tids().iter().any(is_worker);
        // Before Linux 5.12 they are not threads of the process.
        if !(0..1000).any(|_| {
            has_worker() || {
                thread::sleep(std::time::Duration::from_millis(1));
                false
            }
        }) {
            return eprintln!("skipped: io_uring has no worker here that is a thread");
        }
        broadcast::install().unwrap();
        broadcast::sync().unwrap();
    }

    /// It is listed as long as the process, and each signal would stay in its queue, which counts against a limit of
    /// the user.
    #[test]
    fn a_first_thread_that_has_ended_is_not_signalled() {
        let _alone = alone();
        broadcast::install().unwrap();
        // SAFETY: the child continues as a thread of its own, which makes system calls and allocates, and ends the
        // child.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let first = rustix::thread::gettid().as_raw_nonzero().get();
            thread::spawn(move || {
                while crate::threads::task::task_stat(first).is_some_and(|stat| !stat.has_ended()) {
                    thread::yield_now();
                }
                let done = (0..3).all(|_| broadcast::sync().is_ok());
                let signals = libc::SIGRTMIN()..=libc::SIGRTMAX();
                let is_clean = signals.into_iter().all(|signal| !crate::threads::task::is_pending(first, signal));
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!done) + 2 * i32::from(!is_clean)) };
            });
            // SAFETY: ends only this thread.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "256: a broadcast failed; 512: signals are left");
    }

    /// Runs `scenario` in a child, beside a running thread; its signals are its own.
    fn in_child(scenario: impl FnOnce() -> bool) {
        let _alone = alone();
        broadcast::install().unwrap();
        // SAFETY: the child makes system calls, starts a thread and ends; it allocates as the C library lets children
        // do.
        let child = unsafe { libc::fork() };
        if child == 0 {
            thread::spawn(|| {
                loop {
                    std::hint::spin_loop();
                }
            });
            // SAFETY: ends the child.
            unsafe { libc::_exit(i32::from(!scenario())) };
        }
        let mut status = 0;
        // SAFETY: the child is ours; the status goes to a local.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "256: not as expected; 34 to 64: killed by the broadcast");
    }

    /// Sets the action of all real-time signals.
    fn set_all(action: usize) {
        for signal in libc::SIGRTMIN()..=libc::SIGRTMAX() {
            // SAFETY: ignores, resets, or calls `count`, which is async-signal-safe.
            unsafe { libc::signal(signal, action) };
        }
    }

    #[test]
    fn a_program_that_resets_its_signals_lives() {
        in_child(|| {
            set_all(libc::SIG_DFL);
            broadcast::sync().is_ok()
        });
    }

    #[test]
    fn a_program_that_ignores_its_signals_gets_an_error() {
        in_child(|| {
            set_all(libc::SIG_IGN);
            matches!(broadcast::sync(), Err(SyncError::NoFreeSignal))
        });
    }

    #[test]
    fn a_program_is_not_called_by_a_signal_that_it_has_taken() {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        extern "C" fn count(_: i32) {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
        in_child(|| {
            set_all(count as extern "C" fn(i32) as usize);
            let none = matches!(broadcast::sync(), Err(SyncError::NoFreeSignal));
            // SAFETY: resets one.
            unsafe { libc::signal(libc::SIGRTMIN(), libc::SIG_DFL) };
            none && broadcast::sync().is_ok() && CALLS.load(Ordering::Relaxed) == 0
        });
    }

    /// Its numbers are those of no thread here: a broadcast that believed them listed the threads for ever.
    #[test]
    fn a_proc_of_another_pid_namespace_is_refused() {
        let status = in_pid_namespace(|| {
            let setup = broadcast::install();
            let called = broadcast::sync();
            matches!(setup, Err(SetupError::OtherNamespace)) && matches!(called, Err(SyncError::OtherNamespace))
        });
        assert!(matches!(status, None | Some(0)), "{status:?}");
    }
}

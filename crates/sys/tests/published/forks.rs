//! Children, which have one thread and the seats of all.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

use palimpsest_sys::published::Published;

use crate::support::{Drops, Membarrier, play};

/// How a child is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// By the C library, which calls handlers.
    Fork,
    /// By the system call.
    Clone,
}

/// Makes a child that runs `child` and ends; returns its exit code.
fn in_child(way: Way, child: impl FnOnce() -> i32) -> i32 {
    let pid = match way {
        // SAFETY: the child only uses what this program does not lock, then ends.
        Way::Fork => unsafe { libc::fork() },
        // SAFETY: as above; with no flag it is `fork` without the C library.
        Way::Clone => unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t },
    };
    if pid == 0 {
        let code = child();
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    assert!(pid > 0, "a child");
    let mut status = 0;
    // SAFETY: writes to the local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{way:?}: {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_child_keeps_its_own_reads_and_not_those_of_threads_that_it_lacks() {
    play("forks::a_child_keeps_its_own_reads_and_not_those_of_threads_that_it_lacks", |membarrier| {
        let drops = Drops::default();
        let shared = Published::new(drops.value(1));
        drop(shared.read());
        let (began, ends) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let read = shared.read();
                began.wait();
                ends.wait();
                assert_eq!(read.number(), 1);
            });
            began.wait();
            let own = shared.read();
            for way in [Way::Fork, Way::Clone] {
                let code = in_child(way, || {
                    let mut left = vec![shared.replace(drops.value(2))];
                    if own.number() != 1 || drops.count() != 0 {
                        return 1;
                    }
                    // The child's read, which it has inherited, goes on until it ends.
                    // SAFETY: a copy of the parent's, which the child never uses again.
                    drop(unsafe { std::ptr::read(&raw const own) });
                    left.push(shared.reclaim());
                    left.push(shared.replace(drops.value(3)));
                    // Where nothing tells which thread is left, all reads count on.
                    let told = way == Way::Fork && membarrier == Membarrier::Granted;
                    let expected = if told { [1, 0, 0] } else { [1, 1, 2] };
                    if left == expected { 0 } else { 2 }
                });
                assert_eq!(code, 0, "{way:?}");
            }
            drop(own);
            ends.wait();
        });
        assert_eq!((shared.replace(drops.value(4)), drops.count()), (0, 1), "as if there had been no child");
    });
}

#[test]
fn children_of_children_read_and_replace_while_others_read() {
    play("forks::children_of_children_read_and_replace_while_others_read", |membarrier| {
        let drops = Drops::default();
        let shared = Published::new(drops.value(0));
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        shared.read().number();
                    }
                });
            }
            for round in 0..50 {
                let code = in_child(Way::Fork, || {
                    let before = drops.count();
                    let told = membarrier == Membarrier::Granted;
                    let left = shared.replace(drops.value(1)) + shared.replace(drops.value(2));
                    let grandchild = in_child(Way::Fork, || {
                        let left = shared.replace(drops.value(3));
                        i32::from(told && left != 0 || shared.read().number() != 3)
                    });
                    i32::from(told && (left != 0 || drops.count() != before + 2)) + 2 * grandchild
                });
                assert_eq!(code, 0, "round {round}");
            }
            done.store(true, Ordering::Relaxed);
        });
    });
}

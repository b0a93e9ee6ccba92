//! A child of `fork` has no timers.
#![expect(unsafe_code, reason = "processes are forked")]

use super::common::packs;
use super::{CANCEL, Hand, INIT, SET, START, builder, load, program, run, values};

/// Runs `child` in a forked child, and returns its exit code.
fn forked(child: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs programs, uses maps, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "a child");
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(99);
        // SAFETY: it ends this child; nothing of the parent's runs on the way.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` may be written.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn timers_of_a_child_refuse_and_those_of_the_parent_go_on() {
    let Some(packs) = packs() else { return };
    let hand = Hand::default();
    let host = builder(&hand).build();
    let load = |parts: &[&str]| load(&packs, &host, &program(parts));
    let (arm, init, start, cancel) = (load(&[INIT, SET, START]), load(&[INIT]), load(&[START]), load(&[CANCEL]));
    assert_eq!(run(&arm, 0, 10, 0), 0);
    let code = forked(|| {
        // The child does not touch the lock, which the thread may have held: it would wait for a thread that it does
        // not have.
        hand.0.fetch_add(100, std::sync::atomic::Ordering::SeqCst);
        host.look_at_time();
        let refused = [run(&init, 1, 0, 0), run(&start, 0, 10, 0), run(&cancel, 0, 0, 0)];
        let other = builder(&Hand::default()).build();
        // A host that the child makes has a thread of its own.
        let own = super::load(&packs, &other, &program(&[INIT, SET, START]));
        let is_armed = run(&own, 1, 0, 0) == 0;
        other.look_at_time();
        let is_called = values(&other).get(1).map(|value| value[0]) == Some(2);
        let is_not = values(&host).get(0).map(|value| value[0]) == Some(0);
        values(&host).set(0, &[0; 4]).expect("no timer ends by that");
        drop((arm, init, start, cancel, host));
        i32::from(refused == [-1; 3]) | i32::from(is_armed) << 1 | i32::from(is_called) << 2 | i32::from(is_not) << 3
    });
    assert_eq!(code, 15);
}

//! A deaf thread does not notice that it is held.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::{ptr, thread};

use palimpsest_sys::threads::hold::World;
use palimpsest_sys::trap::is_debugged;

use crate::support::{gettid, go_deaf, play, status_of, wait_until};

#[test]
fn a_deaf_thread_is_traced_and_gets_no_signal() {
    play("quiet::a_deaf_thread_is_traced_and_gets_no_signal", || {
        let (told, tid) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = thread::spawn(move || {
            go_deaf();
            told.send(gettid()).expect("heard");
            let _ = ended.recv();
        });
        let tid = tid.recv().expect("told");
        let tracer = || status_of(tid, "TracerPid").expect("alive");
        let world = World::prepare().expect("a free signal");
        world.rehearse().expect("it can be traced");
        assert_eq!(tracer(), "0");
        let stopped = world.stop_others().expect("it can be traced");
        assert!(stopped.traced() >= 1 && tracer() != "0");
        assert!(status_of(tid, "State").expect("alive").starts_with('t'));
        assert!(stopped.held().all(|held| held.tid != tid), "it was sent a signal");
        drop(stopped);
        assert_eq!(tracer(), "0");
        assert_eq!(status_of(tid, "SigPnd").expect("alive"), "0000000000000000");
        end.send(()).expect("waiting");
        thread.join().expect("alive");
    });
}

/// Ends the other thread, also if this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Fails on: whoever holds threads that is taken for a debugger. A handler of traps believed that this had set back the
/// program counter, and let the thread continue in the middle of an instruction.
#[test]
fn who_holds_a_thread_is_no_debugger_and_others_are() {
    play("quiet::who_holds_a_thread_is_no_debugger_and_others_are", || {
        let (traced, debugged, is_over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let (told, tid) = mpsc::channel();
        thread::scope(|scope| {
            let _ends = Ends(&is_over);
            scope.spawn(|| {
                go_deaf();
                let own = gettid();
                told.send(own).expect("heard");
                while !is_over.load(Ordering::Relaxed) {
                    let is_traced = status_of(own, "TracerPid").is_some_and(|tracer| tracer != "0");
                    traced.fetch_add(u32::from(is_traced), Ordering::Relaxed);
                    debugged.fetch_add(u32::from(is_debugged()), Ordering::Relaxed);
                }
            });
            let deaf = tid.recv().expect("told");
            let world = World::prepare().expect("a free signal");
            wait_until("it has seen itself traced", || {
                world.rehearse().expect("it can be traced");
                (traced.load(Ordering::Relaxed) >= 20).then_some(())
            });
            let by_holder = debugged.load(Ordering::Relaxed);
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
            wait_until("the debugger is seen", || (debugged.load(Ordering::Relaxed) > by_holder).then_some(()));
            // SAFETY: a child that was not waited for.
            unsafe { libc::kill(debugger, libc::SIGKILL) };
            // SAFETY: no status is requested.
            unsafe { libc::waitpid(debugger, ptr::null_mut(), 0) };
            assert_eq!(by_holder, 0);
        });
    });
}

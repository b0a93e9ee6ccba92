//! A deaf thread does not notice that it is held.

use std::sync::mpsc;
use std::thread;

use palimpsest_sys::threads::hold::World;

use crate::support::{gettid, go_deaf, play, status_of};

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

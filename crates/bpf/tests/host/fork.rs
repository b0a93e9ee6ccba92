//! A child of `fork` does not wait for threads that it does not have.
#![expect(unsafe_code, reason = "processes are forked")]

use std::sync::mpsc::channel;

use super::*;

#[test]
fn locks_of_threads_that_are_not_there_are_free() {
    let definition = Definition { lock: Some(8), ..Definition::new("locked", Kind::Array, 4, 24, 2) };
    let map = Arc::new(Map::new(definition).expect("good measures"));
    let values = ArrayHandle::<[u64; 3]>::new(map).expect("its type");
    let (held, is_held) = channel();
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let values = &values;
        scope.spawn(move || {
            values.change_locked(0, |_| {
                held.send(()).expect("somebody listens");
                let _ = is_done.recv();
            })
        });
        is_held.recv().expect("it is held");
        // SAFETY: the child takes two locks, and leaves.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "a child");
        if child == 0 {
            let taken = values.change_locked(0, |value| value[0] = 1).is_ok();
            let own = values.change_locked(1, |_| values.change_locked(1, |_| ()).is_err());
            // SAFETY: nothing of the parent's is run any more.
            unsafe { libc::_exit(i32::from(taken) | i32::from(own == Ok(true)) << 1) };
        }
        let mut status = 0;
        // SAFETY: `status` is there to be written.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        drop(done);
        assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 3, "{status:#x}");
    });
    assert_eq!(values.get(0), Some([0; 3]), "what the child did is the child's");
}

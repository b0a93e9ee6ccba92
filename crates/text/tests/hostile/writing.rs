//! Writes to text, where what that takes is lacking.

use palimpsest_sys::{TextWay, TextWriter};
use palimpsest_text::key::State;
use palimpsest_text::{branch, static_key};

use crate::child::{World, play};
use crate::exercise::{assert_tells, chain};
use crate::fork::in_fork;
use crate::seccomp::Answer;
use crate::{limits, seccomp};

static_key!(static SWITCHED: "hostile.switched" = off);

fn switch(state: State) {
    SWITCHED.set(state).unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert_eq!(branch!(unlikely SWITCHED), state.is_on());
}

/// Does what SELinux does without `execmem`. Fails on: a way to write that is tried on memory which can be executed.
#[test]
fn anonymous_memory_cannot_be_executed() {
    play("writing::anonymous_memory_cannot_be_executed", World::Same, || {
        seccomp::forbid_anonymous_code(Answer::Errno(libc::EACCES));
        switch(State::On);
        switch(State::Off);
    });
}

/// Fails on: a worse way that is taken for good because no descriptor was left once.
#[test]
fn no_descriptor_is_left_for_a_moment() {
    play("writing::no_descriptor_is_left_for_a_moment", World::Same, || {
        let last = std::fs::File::open("/dev/null").expect("there are descriptors");
        limits::use_all_descriptors();
        let mut writer = TextWriter::new();
        assert_tells(&chain(&writer.prepare().expect_err("none is left")), &["/proc/self/mem", "Too many open files"]);
        drop(last);
        assert_eq!(writer.prepare().expect("one is left"), TextWay::ProcMem);
        switch(State::On);
    });
}

/// Fails on: the process's name for its memory, which leads to that of its first thread.
#[test]
fn the_first_thread_has_ended() {
    play("writing::the_first_thread_has_ended", World::Same, || {
        let status = in_fork(|| {
            std::thread::spawn(|| {
                let stat = format!("/proc/self/task/{}/stat", std::process::id());
                let has_ended = || std::fs::read_to_string(&stat).expect("as long as the process").contains(") Z ");
                while !has_ended() {
                    std::thread::yield_now();
                }
                let changes = || {
                    assert_eq!(TextWriter::new().prepare().expect("it has memory"), TextWay::ProcMem);
                    [State::On, State::Off].into_iter().for_each(switch);
                };
                let is_wrong = std::panic::catch_unwind(changes).is_err();
                // SAFETY: ends the child.
                unsafe { libc::_exit(is_wrong.into()) };
            });
            // SAFETY: ends this thread, of whose stack nobody uses anything.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
        assert_eq!(status, 0, "{status:#x}");
    });
}

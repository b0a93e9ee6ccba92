//! The tracer or the process is killed while threads are held.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::sync::mpsc;
use std::{fs, thread};

use palimpsest_sys::threads::hold::World;

use crate::support::{gettid, go_deaf, is_playing, start, status_of, wait_until};

/// Holds a deaf thread and passes the tracer's process id to `then`, which must end this process.
fn hold_and(then: impl FnOnce(i32)) {
    let (told, tid) = mpsc::channel();
    thread::spawn(move || {
        go_deaf();
        told.send(gettid()).expect("heard");
        loop {
            thread::park();
        }
    });
    let tid = tid.recv().expect("told");
    let world = World::prepare().expect("a free signal");
    let _stopped = world.stop_others().expect("it can be traced");
    let tracer = status_of(tid, "TracerPid").and_then(|pid| pid.parse().ok()).expect("it is traced");
    then(tracer);
    loop {
        // A held thread that ran would end this with another status.
        thread::park();
    }
}

#[test]
fn who_kills_the_tracer_kills_the_process() {
    let name = "violence::who_kills_the_tracer_kills_the_process";
    if is_playing(name) {
        hold_and(|tracer| {
            // SAFETY: the tracer of a held thread, for which nobody has waited.
            assert_eq!(unsafe { libc::kill(tracer, libc::SIGKILL) }, 0);
        });
    }
    let status = start(name).wait().expect("a child of this process");
    assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
}

#[test]
fn the_tracer_does_not_outlive_the_process() {
    let name = "violence::the_tracer_does_not_outlive_the_process";
    let path = |pid: u32| std::env::temp_dir().join(format!("palimpsest-tracer-{pid}"));
    if is_playing(name) {
        hold_and(|tracer| {
            let mut file = fs::File::create(path(std::process::id())).expect("a folder for temporary files");
            writeln!(file, "{tracer}").expect("room");
        });
    }
    let mut child = start(name);
    let path = path(child.id());
    let tracer: i32 =
        wait_until("a thread is held", || fs::read_to_string(&path).ok()?.trim_end_matches('\n').parse().ok());
    assert!(status_of(tracer, "Name").is_some_and(|name| name == "palimpsest-hold"));
    // A core of the tracer would be the program's memory. 0 if the limit is that already.
    let limits = fs::read_to_string(format!("/proc/{tracer}/limits")).expect("it lives");
    let core =
        limits.lines().find_map(|line| line.strip_prefix("Max core file size")).expect("a limit of every process");
    child.kill().expect("a child of this process");
    assert_eq!(child.wait().expect("a child of this process").signal(), Some(libc::SIGKILL));
    fs::remove_file(&path).expect("made above");
    assert!(core.split_whitespace().take(2).all(|limit| limit == "0" || limit == "1"), "{core}");
    wait_until("the tracer is gone", || {
        status_of(tracer, "State").is_none_or(|state| state.starts_with('Z')).then_some(())
    });
}

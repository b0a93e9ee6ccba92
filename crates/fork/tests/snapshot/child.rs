//! Runs scenarios in processes of one thread: this test binary is started again, and forks, since the harness has a
//! thread for each test.

use std::io::{self, PipeReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::{env, fs};

const SCENARIO: &str = "PALIMPSEST_SNAPSHOT_SCENARIO";
const DONE: &str = "the scenario was played to its end";

/// Plays `scenario` in a process of its own; `name` is the calling test's.
///
/// # Panics
///
/// The process died of a signal, or an assertion failed in it.
pub(crate) fn play(name: &str, scenario: impl FnOnce()) {
    if env::var(SCENARIO).is_ok_and(|playing| playing == name) {
        return play_here(name, scenario);
    }
    let own = env::current_exe().expect("/proc is mounted");
    let output = Command::new(own)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(SCENARIO, name)
        .output()
        .expect("this binary can be started again");
    let stdout = String::from_utf8_lossy(&output.stdout);
    println!("{stdout}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && stdout.contains(DONE), "{name} ended with {}", output.status);
}

fn play_here(name: &str, scenario: impl FnOnce()) {
    // SAFETY: the child goes on with this thread alone; the others wait for it, and hold no lock that it takes.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1, "fork");
    if child == 0 {
        // No clock ends it, since a machine may be slow: the scenario ends with the test. SAFETY: takes numbers.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let ended = catch_unwind(AssertUnwindSafe(scenario));
        // SAFETY: ends the child without the harness's own ending.
        unsafe { libc::_exit(if ended.is_ok() { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above; the status is a local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "{name} ended with wait status {status:#x}");
    println!("{DONE}");
}

/// Starts a thread that reads, and waits until it sleeps there.
pub(crate) fn asleep_in_read(mut reader: PipeReader) -> JoinHandle<io::Result<usize>> {
    let (tell, told) = mpsc::channel();
    let thread = thread::spawn(move || {
        let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
        reader.read(&mut [0])
    });
    let tid = told.recv().expect("told");
    let of_thread = |file: &str| fs::read_to_string(format!("/proc/self/task/{tid}/{file}"));
    let is_asleep = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('S'));
    // The number comes first. If the kernel does not tell calls: the thread sleeps nowhere else once it has told its
    // own number.
    let is_read = |call: String| call.split(' ').next() == Some(&libc::SYS_read.to_string());
    while !(of_thread("stat").is_ok_and(is_asleep) && of_thread("syscall").map_or(true, is_read)) {
        thread::yield_now();
    }
    thread
}

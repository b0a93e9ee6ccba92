//! Scenarios in processes of one thread: this test binary is started again, and forks, since the harness has a thread
//! for each test.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

const SCENARIO: &str = "PALIMPSEST_SNAPSHOT_SCENARIO";
const DONE: &str = "the scenario was played to its end";

/// Plays `scenario` in a process of its own; `name` is the name of the calling test.
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
        // No clock ends it: a machine may be slow. Who ends the test ends the scenario.
        // SAFETY: takes numbers.
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

//! Scenarios in child processes, and threads that block all signals.

use std::process::{Child, Command, ExitStatus, Stdio};
use std::ptr;
use std::time::{Duration, Instant};
use std::{env, fs, mem, thread};

const SCENARIO: &str = "PALIMPSEST_TRACER_SCENARIO";

/// Seconds after which a hanging scenario is ended.
const PATIENCE_SECONDS: u32 = 1200;

/// Returns whether this process should play the scenario of the test `name`.
pub(crate) fn is_playing(name: &str) -> bool {
    let playing = env::var(SCENARIO).is_ok_and(|playing| playing == name);
    if playing {
        // SAFETY: takes a number. The default action of SIGALRM ends the process.
        unsafe { libc::alarm(PATIENCE_SECONDS) };
    }
    playing
}

/// Starts this binary to play the scenario of the test `name`.
pub(crate) fn start(name: &str) -> Child {
    let own = env::current_exe().expect("/proc is mounted");
    let mut command = Command::new(own);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(SCENARIO, name);
    command.stdin(Stdio::null()).spawn().expect("this binary starts")
}

/// Plays `scenario` in its own process, which must end well.
pub(crate) fn play(name: &str, scenario: impl FnOnce()) {
    if is_playing(name) {
        return scenario();
    }
    let status = start(name).wait().expect("a child of this process");
    assert!(status.success(), "{name}: {status}");
}

/// Waits for the end of a scenario, and disturbs it meanwhile.
pub(crate) fn ends(child: &mut Child, mut disturb: impl FnMut(i32)) -> ExitStatus {
    let pid = child.id().cast_signed();
    loop {
        if let Some(status) = child.try_wait().expect("a child of this process") {
            return status;
        }
        disturb(pid);
    }
}

/// Blocks all signals of the calling thread.
pub(crate) fn go_deaf() {
    // SAFETY: all-zero is a valid set, which is then filled.
    let mut all: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: a valid place for a set.
    unsafe { libc::sigfillset(&mut all) };
    // SAFETY: a valid set; the old one is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &all, ptr::null_mut()) };
}

pub(crate) fn gettid() -> i32 {
    // SAFETY: takes nothing and gives a number.
    unsafe { libc::gettid() }
}

/// Calls `ask` until there is an answer.
pub(crate) fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(600);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a field of a thread's status.
pub(crate) fn status_of(tid: i32, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(|value| value.trim().to_owned())
}

/// Waits until a thread sleeps in a system call of one of these numbers.
pub(crate) fn sleeps(tid: i32, numbers: &[libc::c_long]) {
    let letter = || status_of(tid, "State").is_some_and(|state| state.starts_with('S'));
    // The call's number and arguments; -1 in a page fault, "running" elsewhere (`proc(5)`).
    let calls = || match fs::read_to_string(format!("/proc/self/task/{tid}/syscall")) {
        Ok(call) => {
            call.split(' ').next().is_some_and(|first| numbers.iter().any(|number| first == number.to_string()))
        }
        // The kernel does not tell: the thread may have slept elsewhere, before the call.
        Err(_) => {
            thread::sleep(Duration::from_millis(20));
            true
        }
    };
    wait_until("the thread sleeps", || (letter() && calls()).then_some(()));
}

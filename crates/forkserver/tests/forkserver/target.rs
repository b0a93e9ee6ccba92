//! The program under test: a parser with planted faults, which notices if a run finds traces of an earlier one.
//!
//! It is part of this test program, which becomes the target if the environment says so.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use palimpsest_forkserver::{Inputs, Mode, Protocol, Server, coverage};

// This program has no code with guards; this tests that the functions can be defined.
palimpsest_forkserver::export_guards!();

/// The variable that says how to serve; without it the target does nothing.
const VARIABLE: &str = "PALIMPSEST_TEST_TARGET";

/// Bytes of heap that every run finds and changes.
const HEAP: usize = 8 << 20;

/// Runs in this process. A run that sees a value other than 0 is not isolated.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// The modes, by name.
pub(crate) const MODES: [&str; 3] = ["plain", "frozen", "reset"];

pub(crate) fn mode(name: &str) -> Mode {
    match name {
        "plain" => Mode::Plain,
        "frozen" => Mode::frozen(),
        "reset" => Mode::reset(),
        other => panic!("no mode {other:?}"),
    }
}

/// Returns a command that starts the target: `description` is a mode, a generation and a way of input, for example
/// `frozen new shared`, perhaps with what the target does about its children: `ignored`, `unwaited` or `reaped`.
pub(crate) fn command(description: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    let (variable, value) = environment(description);
    command.env(variable, value);
    command
}

/// Returns the environment variable for the target.
pub(crate) fn environment(description: &str) -> (&'static str, &str) {
    (VARIABLE, description)
}

/// Serves as the environment says. Does not return if it says anything.
pub(crate) fn serve_if_asked() {
    let Ok(description) = std::env::var(VARIABLE) else { return };
    let words: Vec<&str> = description.split(' ').collect();
    let [mode_name, generation, inputs, ref children @ ..] = words[..] else { panic!("cannot serve {description:?}") };
    let mut server = Server::new(mode(mode_name)).token(*b"SELECT").map_len(65536).inputs(match inputs {
        "shared" => Inputs::SharedMemory,
        _ => Inputs::StandardInput,
    });
    server = match generation {
        "old" => server.protocol(Protocol::Old),
        "new" => server.protocol(Protocol::New),
        _ => server,
    };
    let action = children.first().map(|children| set_action(children));
    let mut target = target();
    let mut target = |input: &[u8]| {
        if action.is_some_and(|action| own_action() != action) {
            // SAFETY: ends the process by a signal that none of the planted faults causes.
            unsafe { libc::raise(libc::SIGUSR2) };
        }
        target(input);
    };
    // SAFETY: (1) `main` calls this before anything else, on the only thread; (2) glibc's allocator, and nothing that
    // discards memory by itself; (3) the program that starts this leaves pipes there, or nothing.
    let ended = unsafe { server.start(&mut target) };
    eprintln!("{ended:?}");
    let is_as_before = action.is_none_or(|action| own_action() == action);
    std::process::exit(i32::from(ended.is_err()) + 2 * i32::from(!is_as_before));
}

/// Sets what this process does when a child ends. Returns handler and flags.
fn set_action(name: &str) -> (usize, i32) {
    /// Waits for any child, as servers do.
    extern "C" fn reap(_: i32) {
        // SAFETY: takes no place for the status.
        while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
    }
    // SAFETY: zeros are the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    match name {
        "ignored" => action.sa_sigaction = libc::SIG_IGN,
        "unwaited" => action.sa_flags = libc::SA_NOCLDWAIT,
        "reaped" => action.sa_sigaction = reap as *const () as usize,
        other => panic!("children cannot be {other:?}"),
    }
    // SAFETY: the handler makes one system call, again and again.
    assert_eq!(unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, std::ptr::null_mut()) }, 0);
    own_action()
}

fn own_action() -> (usize, i32) {
    // SAFETY: zeros are the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks; the answer goes to a local.
    assert_eq!(unsafe { libc::sigaction(libc::SIGCHLD, std::ptr::null(), &raw mut action) }, 0);
    (action.sa_sigaction, action.sa_flags)
}

/// Returns the target with its heap.
pub(crate) fn target() -> impl FnMut(&[u8]) {
    let mut heap = vec![1u8; HEAP];
    move |input| {
        let isolated = RUNS.fetch_add(1, Ordering::Relaxed) == 0 && heap.iter().step_by(4096).all(|byte| *byte == 1);
        if !isolated {
            // A signal that none of the faults planted below causes. SAFETY: ends the process.
            unsafe { libc::raise(libc::SIGUSR1) };
        }
        heap.iter_mut().step_by(4096 * 16).for_each(|byte| *byte = 2);
        parse(input);
    }
}

fn parse(input: &[u8]) {
    palimpsest_forkserver::edge!();
    coverage::hit(1);
    for (place, byte) in input.iter().take(32).enumerate() {
        coverage::hit(100 + place * 256 + usize::from(*byte));
    }
    match input {
        b"crash" => std::process::abort(),
        b"panic" => panic!("planted"),
        b"trap" => {
            // SAFETY: ends the process by this signal.
            unsafe { libc::raise(libc::SIGILL) };
        }
        b"exit" => std::process::exit(7),
        b"hang" => std::thread::sleep(Duration::from_secs(3600)),
        b"oom" => {
            // SAFETY: ends the process as the kernel does when memory runs out.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        _ => {}
    }
    if input.starts_with(b"FUZ") {
        coverage::hit(20_000);
        assert_ne!(input.get(3), Some(&b'Z'), "found");
    }
}

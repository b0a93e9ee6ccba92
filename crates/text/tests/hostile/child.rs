//! Scenarios in child processes: this test binary starts itself again and tells the child which scenario to play.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Command, Output};

const SCENARIO: &str = "PALIMPSEST_HOSTILE_SCENARIO";
/// Seconds after which a hanging scenario is ended; nothing else depends on it.
const PATIENCE_SECONDS: u32 = 1200;
const DONE: &str = "the scenario was played to its end";

/// The conditions of the child, made before it starts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum World {
    /// The child makes its own conditions.
    Same,
    /// A pid name space of its own, in which this shell command runs first.
    PidNamespace(&'static str),
    /// A pid name space of its own, with the `/proc` of the one outside.
    PidNamespaceOnly,
    /// A mount name space of its own, in which this shell command runs first.
    MountNamespace(&'static str),
}

/// Plays `scenario` in a child process; `name` is the name of the calling test. If this user may not make such a world,
/// prints that and returns.
///
/// # Panics
///
/// The child died of a signal, or an assertion failed in it.
pub(crate) fn play(name: &str, world: World, scenario: impl FnOnce()) {
    if env::var(SCENARIO).is_ok_and(|playing| playing == name) {
        // SAFETY: takes a number. A scenario that hangs ends by SIGALRM.
        unsafe { libc::alarm(PATIENCE_SECONDS) };
        scenario();
        println!("{DONE}");
        return;
    }
    let Some(mut command) = command(world) else { return };
    let command = command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(SCENARIO, name);
    let Output { status, stdout, stderr } = match command.output() {
        Ok(output) => output,
        Err(error) if error.raw_os_error() == Some(libc::ENOEXEC) => {
            return println!("skipped: this binary is emulated and cannot start itself without binfmt_misc");
        }
        Err(error) => panic!("{name} cannot be started: {error}"),
    };
    let stdout = String::from_utf8_lossy(&stdout);
    let stderr = String::from_utf8_lossy(&stderr);
    println!("{stdout}{stderr}");
    assert_eq!(status.signal(), None, "{name} died of a signal");
    // A shell between us reports the signal by a status above 128.
    assert!(status.code() < Some(128), "{name} died of a signal: {status}");
    assert!(status.success() && stdout.contains(DONE), "{name} ended with {status}");
}

/// Ends the child, since its scenario cannot be played by this user or kernel.
pub(crate) fn skip(reason: &str) -> ! {
    println!("skipped: {reason}\n{DONE}");
    process::exit(0)
}

/// Returns the command that starts this binary in `world`, or nothing if that is not allowed.
fn command(world: World) -> Option<Command> {
    let own = env::current_exe().expect("/proc is mounted for the parent");
    let (unshare, first) = match world {
        World::Same => return Some(Command::new(own)),
        World::PidNamespace(first) => (["--mount", "--pid", "--fork", "--mount-proc"].as_slice(), first),
        World::PidNamespaceOnly => (["--pid", "--fork"].as_slice(), ":"),
        World::MountNamespace(first) => (["--mount"].as_slice(), first),
    };
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["sh", "-ec", script, "sh"]);
        command
    };
    let trial = shell(first).output();
    if !trial.as_ref().is_ok_and(|output| output.status.success()) {
        println!("skipped: {world:?} cannot be made here (root and util-linux are needed): {trial:?}");
        return None;
    }
    let mut command = shell(&format!("{first}; exec \"$@\""));
    command.arg(own);
    Some(command)
}

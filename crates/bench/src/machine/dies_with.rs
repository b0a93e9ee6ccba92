//! Children that do not outlive the thread that starts them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Makes the kernel kill what `command` starts when the thread that starts it ends.
pub(crate) fn die_with_this_thread(command: &mut Command) -> &mut Command {
    let parent = getpid();
    // SAFETY: the closure makes two system calls, which are async-signal-safe, and allocates nothing.
    unsafe { command.pre_exec(move || die_with(parent)) }
}

fn die_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended just before.
    if getppid() == Some(parent) { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::thread;

    use super::*;

    #[test]
    fn a_child_dies_with_its_thread() {
        let started = || die_with_this_thread(Command::new("sleep").arg("20")).spawn().expect("there is sleep");
        let mut child = thread::spawn(started).join().expect("it ends");
        let status = child.wait().expect("a child");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }
}

//! Processes that `/proc` hides: mounted with `hidepid`, it shows those of others as if there were none (`proc(5)`).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// Whether there is such a process, and `/proc` says that there is none.
pub(crate) fn is_hidden(pid: Pid) -> bool {
    is_hidden_in(Path::new("/proc"), pid)
}

fn is_hidden_in(proc: &Path, pid: Pid) -> bool {
    // Each process has this file.
    let status = proc.join(pid.as_raw_nonzero().to_string()).join("status");
    let is_unseen = fs::metadata(status).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    // In this order, since it may end meanwhile. Whoever may not send it a signal is told so.
    is_unseen && matches!(test_kill_process(pid), Ok(()) | Err(Errno::PERM))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a process that is there, and counts as absent; one that is absent, and counts as hidden.
    #[test]
    fn hidden_is_what_is_there_and_not_shown() {
        let nothing = tempfile::tempdir().expect("a folder");
        let own = rustix::process::getpid();
        assert!(is_hidden_in(nothing.path(), own) && !is_hidden(own));
        // The first one, to which tests may send no signal unless root runs them.
        assert!(is_hidden_in(nothing.path(), Pid::INIT));
        // Above what `kernel.pid_max` can be.
        let absent = Pid::from_raw(i32::MAX).expect("not 0");
        assert!(!is_hidden_in(nothing.path(), absent) && !is_hidden(absent));
    }
}

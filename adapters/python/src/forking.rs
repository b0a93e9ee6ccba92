//! A fork of the interpreter.

use std::io;

use palimpsest_fork::Forked;
use pyo3::prelude::*;

// // Part of the stable interface since Python 3.7, on platforms with `fork`.
unsafe extern "C" {
    /// Runs the handlers of `os.register_at_fork` and takes the interpreter's locks.
    safe fn PyOS_BeforeFork();
    /// Gives the locks back in the parent.
    safe fn PyOS_AfterFork_Parent();
    /// Makes the interpreter one of a single thread, in the child.
    safe fn PyOS_AfterFork_Child();
}

/// Forks the interpreter.
///
/// # Errors
///
/// `OSError`, as of `os.fork`.
pub(crate) fn fork(_py: Python<'_>) -> PyResult<i32> {
    PyOS_BeforeFork();
    // SAFETY: 1. the child is an interpreter whose locks were held by the thread that forks, as after `os.fork`. 2. as
    // for `freeze`, of which contract 4 is about forks.
    let forked = unsafe { palimpsest_fork::fork() };
    match forked {
        Ok(Forked::Child) => {
            PyOS_AfterFork_Child();
            Ok(0)
        }
        Ok(Forked::Parent(child)) => {
            PyOS_AfterFork_Parent();
            Ok(child.as_raw_nonzero().get())
        }
        Err(error) => {
            PyOS_AfterFork_Parent();
            Err(io::Error::from_raw_os_error(error.0.raw_os_error()).into())
        }
    }
}

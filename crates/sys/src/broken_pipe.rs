//! Restores how this process was started with respect to broken pipes and closed streams, for programs that it
//! executes.
//!
//! Rust's runtime ignores SIGPIPE before `main`, and the standard library resets it to its default for programs that
//! are executed. So a program that was started with SIGPIPE ignored (`IgnoreSIGPIPE=` of systemd, wrappers like
//! `nohup`) must restore that before it executes another program in its place. Of streams `closed_streams` tells.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::closed_streams;

/// Whether SIGPIPE was ignored when this process was started. `Relaxed`: written before there are threads.
static WAS_IGNORED: AtomicBool = AtomicBool::new(false);

/// The dynamic linker calls this before Rust's runtime starts.
#[used]
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
static NOTE: extern "C" fn() = note;

// In the section of what runs before `main`, which also the preload object has, in each program: side by side, it costs
// one page fault.
#[cfg_attr(not(miri), unsafe(link_section = "palimpsest_start"))]
extern "C" fn note() {
    let mut present = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: changes nothing, and the place is valid for an action.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), present.as_mut_ptr()) };
    // SAFETY: all zeros is a valid action, and the kernel's is one.
    let present = unsafe { present.assume_init() };
    WAS_IGNORED.store(asked == 0 && present.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
    closed_streams::note();
}

/// Executes a program in place of this one, with SIGPIPE ignored and without the standard streams that are closed, if
/// this one was started so. Returns only if that fails.
pub fn execute(command: &mut Command) -> io::Error {
    if WAS_IGNORED.load(Ordering::Relaxed) {
        let ignore = || {
            // SAFETY: ignoring a signal runs no code, and nobody else sets it just before the program is executed.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one system call, which is async-signal-safe, and allocates nothing.
        unsafe { command.pre_exec(ignore) };
    }
    let closed = closed_streams::closed();
    let close = move || {
        for number in closed.clone() {
            // SAFETY: `/dev/null`, which nobody uses: the program is about to be executed.
            unsafe { libc::close(number) };
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(close) };
    command.exec()
}

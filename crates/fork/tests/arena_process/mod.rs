//! What tests of the arena share that look at the whole process: its descriptors and limits.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Such tests take turns.
static PROCESS: Mutex<()> = Mutex::new(());

pub(crate) fn turn() -> MutexGuard<'static, ()> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The descriptors of arenas.
pub(crate) fn descriptors() -> Vec<i32> {
    let entries = fs::read_dir("/proc/self/fd").expect("procfs").flatten();
    let is_arena = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().contains("palimpsest-arena"))
    };
    entries.filter(is_arena).filter_map(|entry| entry.file_name().to_string_lossy().parse().ok()).collect()
}

/// Pins a page, as a device would: a pipe holds it, so that its file cannot be sealed.
pub(crate) fn pin(byte: *const u8) -> (std::io::PipeReader, std::io::PipeWriter) {
    let (read, write) = std::io::pipe().expect("a pipe");
    let part = libc::iovec { iov_base: byte.cast_mut().cast(), iov_len: 1 };
    let descriptor = std::os::fd::AsRawFd::as_raw_fd(&write);
    // SAFETY: the byte is mapped; the kernel only reads it.
    assert_eq!(unsafe { libc::vmsplice(descriptor, &raw const part, 1, 0) }, 1);
    (read, write)
}

/// Runs `body` with this many descriptors allowed.
pub(crate) fn with_descriptors<R>(most: u64, body: impl FnOnce() -> R) -> R {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let small = rustix::process::Rlimit { current: Some(most), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, small).expect("lowering is allowed");
    let result = body();
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).expect("the old limit");
    result
}

//! Finds threads that a trap would end.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use palimpsest_sys::proc::status::Status;

/// SIGTRAP's number on every Linux.
const SIGTRAP: i32 = 5;

/// How long a thread may block SIGTRAP before that is an error. The C library blocks all signals while it starts a
/// thread or a process, until the new one has run; on a busy machine that takes a while.
const PATIENCE: Duration = Duration::from_secs(2);
/// Minimum number of looks meanwhile: if these take longer than that, no thread got a CPU.
const LOOKS: usize = 400;

/// Returns the first thread of this process that blocks SIGTRAP and keeps doing so.
pub(super) fn who_blocks_traps() -> io::Result<Option<u32>> {
    let started = Instant::now();
    let mut looks = 0;
    loop {
        looks += 1;
        match who_blocks_now()? {
            None => return Ok(None),
            Some(tid) if looks > LOOKS && started.elapsed() > PATIENCE => return Ok(Some(tid)),
            Some(_) => thread::sleep(Duration::from_micros(200)),
        }
    }
}

fn who_blocks_now() -> io::Result<Option<u32>> {
    for entry in fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let tid = name.to_str().and_then(|name| name.parse().ok());
        let tid = tid.ok_or_else(|| io::Error::other(format!("thread id {}", name.display())))?;
        let status = match Status::of_thread(tid) {
            Ok(status) => status,
            // The thread has ended meanwhile.
            Err(error) if error.is_absent() => continue,
            Err(error) => return Err(io::Error::other(error)),
        };
        // A thread that is ending runs no more code.
        let ended = matches!(status.state, Some('Z' | 'X'));
        if !ended && status.blocked.is_none_or(|set| set.contains(SIGTRAP)) {
            return Ok(Some(tid));
        }
    }
    Ok(None)
}

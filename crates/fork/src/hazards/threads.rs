//! Other threads.

use rustix::io::Errno;

/// How many threads the process has, workers of the kernel included. Allocates nothing.
pub(crate) fn count() -> Result<usize, Errno> {
    // The type of the count differs between architectures.
    fn wide(links: impl Into<u64>) -> u64 {
        links.into()
    }
    // The directory has a link from each thread's, beside its own two (`proc_task_getattr` in `fs/proc/base.c`).
    let links = wide(rustix::fs::stat(c"/proc/self/task")?.st_nlink);
    Ok(usize::try_from(links.saturating_sub(2)).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_more_is_seen() {
        let listed = || std::fs::read_dir("/proc/self/task").expect("/proc is mounted").count();
        // The harness starts and ends threads as it likes.
        let agree = || (0..1000).any(|_| listed() == count().expect("/proc is mounted"));
        assert!(agree());
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let threads: Vec<_> = std::iter::once(std::thread::spawn(move || ended.recv())).collect();
        assert!(agree() && count().expect("/proc is mounted") >= 2);
        drop(end);
        threads.into_iter().for_each(|thread| drop(thread.join()));
    }
}

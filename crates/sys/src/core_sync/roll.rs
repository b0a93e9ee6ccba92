//! Who is there: the threads of the process, and when a list of them is known to leave out nobody.
//!
//! `/proc/self/task` lists threads from the oldest to the newest, one step from a thread to the next (`next_tid` in `fs/proc/base.c`). A step from a thread
//! that has just ended leads nowhere: the walk is over, and the next system call goes on by number (`first_tid`), past as many threads as
//! have ended. So a list may lack threads that live, wherever threads come and go. Two proofs that it does not:
//!
//! * It names as many as the process has, and nobody that is gone by the time that these are counted. Where threads are made without pause there is hardly ever such a list.
//! * One walk has come to a [`Sentinel`]: it has passed everyone who is older.

use std::fs::File;
use std::io;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};

use rustix::fs::RawDir;

/// Bytes of a `linux_dirent64` with a name of up to 12 bytes, which a thread's id is: 19 in front of the name, a zero behind it, aligned to 8.
const ENTRY: usize = 32;

/// Thread ids in the order of the kernel's list, oldest first.
pub(super) struct Roll {
    tids: Vec<i32>,
    /// So many of them came from one walk.
    walked: usize,
}

impl Roll {
    /// Lists the threads, the first `most` of them in one walk.
    pub(super) fn call(most: usize) -> io::Result<Self> {
        let tasks = File::open("/proc/self/task")?;
        // Untouched memory is not allocated.
        let mut buffer = Vec::with_capacity(most.saturating_mul(ENTRY));
        let mut list = RawDir::new(tasks, buffer.spare_capacity_mut());
        let mut roll = Self { tids: Vec::new(), walked: 0 };
        let mut is_first_walk = true;
        while let Some(entry) = list.next() {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name == "." || name == ".." {
                continue;
            }
            let unknown = |_| io::Error::new(io::ErrorKind::InvalidData, format!("thread id {name}"));
            roll.tids.push(name.parse().map_err(unknown)?);
            if is_first_walk {
                roll.walked += 1;
                // The next entry is another system call's.
                is_first_walk = !list.is_buffer_empty();
            }
        }
        Ok(roll)
    }

    pub(super) fn tids(&self) -> &[i32] {
        &self.tids
    }

    /// Whether the walk has passed everyone who is older than `sentinel`.
    pub(super) fn has_come_to(&self, sentinel: &Sentinel) -> bool {
        self.tids[..self.walked].contains(&sentinel.tid)
    }
}

/// A thread that does nothing but be there: whoever was there before it is older, and whoever comes after it is younger.
pub(super) struct Sentinel {
    tid: i32,
    /// Ends the thread when it is gone. Never empty before that.
    post: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sentinel {
    /// Starts the thread; an error where the process must not have another.
    pub(super) fn post() -> io::Result<Self> {
        let (post, relief) = mpsc::channel::<()>();
        let (name, named) = mpsc::channel();
        let thread = Builder::new().name("palimpsest-sync".to_owned()).spawn(move || {
            let _ = name.send(rustix::thread::gettid().as_raw_nonzero().get());
            let _ = relief.recv();
        })?;
        let tid = named.recv().map_err(io::Error::other)?;
        Ok(Self { tid, post: Some(post), thread: Some(thread) })
    }
}

impl Sentinel {
    /// Its id. It need not be signalled: nothing that it executes is older than it is, and it blocks what its maker blocks.
    pub(super) fn tid(&self) -> i32 {
        self.tid
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.post = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_comes_to_the_newest() {
        let before = Roll::call(100).unwrap();
        let sentinel = Sentinel::post().unwrap();
        assert!(!before.has_come_to(&sentinel));
        // Threads of other tests may end just then.
        assert!((0..1000).any(|_| Roll::call(100).unwrap().has_come_to(&sentinel)));
    }

    #[test]
    fn what_another_system_call_adds_proves_nothing() {
        let sentinel = Sentinel::post().unwrap();
        // Room for the two dots, of 24 bytes each.
        let roll = Roll::call(2).unwrap();
        assert!(roll.tids().len() > 1 && !roll.has_come_to(&sentinel), "{:?}", roll.tids());
    }
}

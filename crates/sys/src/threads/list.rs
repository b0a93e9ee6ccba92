//! Lists the threads of the process, and proves lists complete.
//!
//! `/proc/self/task` lists threads from the oldest to the newest, one step from a thread to the next (`next_tid` in
//! `fs/proc/base.c`). A step from a thread that has just ended leads nowhere: the walk is over, and the next system
//! call continues by number (`first_tid`), past as many threads as have ended. So while threads come and go, a list may
//! lack living threads. There are two proofs that it does not:
//!
//! * It names as many threads as the process has, and none that is gone when these are counted. While threads are made
//!   without pause, there is hardly ever such a list.
//! * One walk has reached a [`Sentinel`]: it has passed all older threads.

use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;

use super::own::{own_process, own_thread};
use super::task::{is_numbered_elsewhere, task_stat};
use crate::brief_file::BriefFile;

/// How long a thread may take to come to rest.
pub(super) const PATIENCE: Duration = Duration::from_millis(1000);

/// After how long to look more closely at a thread that does not answer.
pub(super) const GRACE: Duration = Duration::from_millis(5);

/// How long to wait for other threads. If the machine is suspended, or so busy that the waiting thread gets no CPU, the
/// others get none either. So each look counts for at most [`GRACE`], however long ago the last one was.
///
/// A wait ends after 200 looks ([`PATIENCE`] divided by [`GRACE`]) if each is late, or after a second, naps included,
/// if they follow each other quickly. It takes longer only while the machine gives the waiting thread no CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    looked: Instant,
    waited: Duration,
}

impl Wait {
    pub(super) fn begin() -> Self {
        Self { looked: Instant::now(), waited: Duration::ZERO }
    }

    /// Looks at the clock. Returns the time that counts so far.
    pub(super) fn look(&mut self) -> Duration {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Duration {
        self.waited += now.saturating_duration_since(self.looked).min(GRACE);
        self.looked = now;
        self.waited
    }
}

/// What the entry behind a thread belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The same system call, and so the same walk of the kernel.
    SameWalk,
    /// Another system call.
    AnotherWalk,
}

/// Calls `each` with the threads of this process until it breaks. Returns how many it has named.
fn walk(buffer: &mut [MaybeUninit<u8>], each: &mut dyn FnMut(i32, Next) -> ControlFlow<()>) -> Result<usize, Errno> {
    let tasks = BriefFile::open(c"/proc/self/task", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let mut list = RawDir::new(tasks, buffer);
    let mut count = 0;
    while let Some(entry) = list.next() {
        let Some(tid) = entry?.file_name().to_str().ok().and_then(|name| name.parse::<i32>().ok()) else { continue };
        count += 1;
        let next = if list.is_buffer_empty() { Next::AnotherWalk } else { Next::SameWalk };
        if each(tid, next).is_break() {
            break;
        }
    }
    Ok(count)
}

/// Calls `each` with the threads of this process until it breaks. Returns how many it has named. Does not use the heap.
/// A listing can miss threads while others end.
pub(super) fn list(each: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<usize, Errno> {
    walk(&mut [MaybeUninit::uninit(); 4096], &mut |tid, _| each(tid))
}

/// Returns how many threads the process has, including the kernel's workers and the calling thread. Allocates nothing.
///
/// A joined thread may still be in the list: `pthread_join` returns as soon as the kernel has cleared a word, and only
/// then does the kernel forget the thread. So if all others are ending, this waits for their end, as long as for a
/// thread to come to rest: for at most a second of its own time, naps included. Not for callers that hold up other
/// threads.
///
/// With a `/proc` of another pid namespace the count is right, or `/proc/self` is missing: it is the kernel that leads
/// there. But the calling thread has another number there, so that it is taken for one that stays, and nothing waits.
///
/// # Errors
///
/// The kernel's, such as ENOENT if `/proc` is not mounted.
pub fn count() -> Result<usize, Errno> {
    // The type of the count differs between architectures.
    fn wide(links: impl Into<u64>) -> u64 {
        links.into()
    }
    let own = own_thread();
    let mut wait = Wait::begin();
    loop {
        // The directory has a link for each thread, besides its own two (`proc_task_getattr` in `fs/proc/base.c`).
        let links = wide(rustix::fs::stat(c"/proc/self/task")?.st_nlink);
        let count = usize::try_from(links.saturating_sub(2)).unwrap_or(usize::MAX);
        if count <= 1 || wait.look() > PATIENCE || is_anyone_staying(own)? {
            return Ok(count);
        }
        nap();
    }
}

/// Returns whether the list names a thread other than `own` that is not ending, or that is the process's first, which
/// is listed as long as the process.
fn is_anyone_staying(own: i32) -> Result<bool, Errno> {
    let mut is_staying = false;
    list(&mut |tid| {
        is_staying = tid != own && task_stat(tid).is_some_and(|stat| !stat.is_ending() || tid == own_process());
        if is_staying { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(is_staying)
}

pub(super) fn nap() {
    let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: 20_000 };
    // Interrupted or not, the caller looks again.
    let _ = rustix::thread::nanosleep(&pause);
}

/// Why no thread can be called by what `/proc` lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Unlisted {
    /// The kernel's error.
    Refused(Errno),
    /// `/proc` was mounted in another pid namespace: its numbers mean other threads here, or none.
    OtherNamespace,
}

/// Bytes of a `linux_dirent64` with a name of up to 12 bytes, enough for a thread's id: 19 before the name, a zero
/// behind it, aligned to 8.
const ENTRY: usize = 32;

/// Thread ids in the order of the kernel's list, oldest first.
pub(super) struct Roll {
    tids: Vec<i32>,
    /// How many of them came from one walk.
    walked: usize,
}

impl Roll {
    /// Lists the threads, the first `most` of them in one walk.
    pub(super) fn call(most: usize) -> Result<Self, Unlisted> {
        if is_numbered_elsewhere() {
            return Err(Unlisted::OtherNamespace);
        }
        // Untouched memory is not allocated.
        let mut buffer = Vec::with_capacity(most.saturating_mul(ENTRY));
        let mut roll = Self { tids: Vec::new(), walked: 0 };
        let mut is_first_walk = true;
        walk(buffer.spare_capacity_mut(), &mut |tid, next| {
            roll.tids.push(tid);
            if is_first_walk {
                roll.walked += 1;
                is_first_walk = next == Next::SameWalk;
            }
            ControlFlow::Continue(())
        })
        .map_err(Unlisted::Refused)?;
        Ok(roll)
    }

    pub(super) fn tids(&self) -> &[i32] {
        &self.tids
    }

    /// Returns whether the walk has passed all threads older than `sentinel`.
    pub(super) fn has_come_to(&self, sentinel: &Sentinel) -> bool {
        self.tids[..self.walked].contains(&sentinel.tid)
    }
}

/// An idle thread that divides the list: all threads before it are older, all behind it younger.
pub(super) struct Sentinel {
    tid: i32,
    /// Ends the thread when dropped. Never `None` before that.
    post: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sentinel {
    /// Starts the thread. Fails if the process may not have another.
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
    /// Returns the sentinel's id. It needs no signal: nothing that it executes is older than itself, and it blocks what
    /// its maker blocks.
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
    use crate::threads::in_pid_namespace;

    /// Fails if a patience ends while no thread runs.
    #[test]
    fn a_look_after_a_long_time_counts_for_little() {
        let mut wait = Wait::begin();
        let began = wait.looked;
        assert_eq!(wait.look_at(began + Duration::from_millis(2)), Duration::from_millis(2));
        assert_eq!(wait.look_at(began + Duration::from_secs(60)), Duration::from_millis(2) + GRACE);
        assert_eq!(wait.look_at(began + Duration::from_millis(60_001)), Duration::from_millis(3) + GRACE);
    }

    /// Fails on: a wait that never ends if each look is late, or that ends after a number of naps, however short.
    #[test]
    fn a_wait_ends_by_its_looks_whatever_the_clock_does() {
        let looks = |step: Duration| {
            let mut wait = Wait::begin();
            let began = wait.looked;
            (1..1_000_000).find(|&look| wait.look_at(began + step * look) > PATIENCE)
        };
        assert_eq!(looks(Duration::from_secs(3600)), Some(201));
        assert_eq!(looks(Duration::from_micros(20)), Some(50_001));
    }

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

    #[test]
    fn a_thread_more_is_counted() {
        let listed = || std::fs::read_dir("/proc/self/task").expect("/proc is mounted").count();
        // The test harness starts and ends threads at any time.
        let agree = || (0..1000).any(|_| listed() == count().expect("/proc is mounted"));
        assert!(agree());
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || ended.recv());
        assert!(agree() && count().expect("/proc is mounted") >= 2);
        drop(end);
        drop(thread.join());
    }

    /// Fails on: a count that takes a list in other numbers for one that names nobody else.
    #[test]
    fn threads_are_counted_by_a_proc_of_another_pid_namespace_too() {
        let status = in_pid_namespace(|| {
            let is_alone = count() == Ok(1);
            let (end, ended) = mpsc::channel::<()>();
            let thread = std::thread::spawn(move || ended.recv());
            let are_two = is_numbered_elsewhere() && count() == Ok(2);
            drop(end);
            drop(thread.join());
            is_alone && are_two
        });
        assert!(matches!(status, None | Some(0)), "{status:?}");
    }

    #[test]
    fn this_thread_is_listed_and_stays() {
        let own = own_thread();
        let mut seen = false;
        list(&mut |tid| {
            seen |= tid == own;
            ControlFlow::Continue(())
        })
        .expect("/proc is mounted");
        assert!(seen);
        assert!(is_anyone_staying(i32::MAX).expect("/proc is mounted"));
    }
}

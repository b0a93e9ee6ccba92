//! Forking: how long it takes, and what a child finds.

use palimpsest_sys::Causes;
use std::io::{self, Read, Write};
use std::time::Duration;

use palimpsest_fork::arena::Arena;
use palimpsest_fork::snapshot::{self, Snapshot, Sweep};
use palimpsest_fork::{Forked, Measure, Options, Pages, Pause, Stage};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use super::Heap;
use crate::harness::clock::Stopwatch;

/// How a process forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkWay {
    /// Through the C library alone.
    Plain,
    /// Through [`palimpsest_fork::fork`], which repairs what the parent wrote to when that pays.
    Repairing,
}

/// A child that must be waited for.
#[derive(Debug)]
pub(crate) struct Child(libc::pid_t);

/// Forks. Returns the child, and how long the call took here; the child does `work` and ends with the code that it
/// returns.
pub(crate) fn spawn(way: ForkWay, work: impl FnOnce() -> i32) -> io::Result<(Child, Duration)> {
    let stopwatch = Stopwatch::start();
    let pid = match way {
        // SAFETY: the processes that measure have one thread, or children that call nothing which needs a lock.
        ForkWay::Plain => unsafe { libc::fork() },
        // SAFETY: 1. as above. 2. The contract of `freeze` is kept, see there.
        ForkWay::Repairing => match unsafe { palimpsest_fork::fork() }.map_err(io::Error::other)? {
            Forked::Parent(pid) => pid.as_raw_nonzero().get(),
            Forked::Child => 0,
        },
    };
    let taken = stopwatch.elapsed();
    match pid {
        0 => {
            let code = work();
            // SAFETY: ends the child at once; nothing of the parent's is flushed twice.
            unsafe { libc::_exit(code) }
        }
        1.. => Ok((Child(pid), taken)),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Child {
    /// Ends a sleeping child.
    pub(crate) fn end(self) -> io::Result<()> {
        // SAFETY: the child is this value's and was not waited for, so the number is still its own.
        if unsafe { libc::kill(self.0, libc::SIGKILL) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: no status is asked for.
        if unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) } != self.0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits for its end; an error if it did not end well.
    pub(crate) fn wait(self) -> io::Result<()> {
        let mut status = 0;
        // SAFETY: `status` is a place for the answer.
        if unsafe { libc::waitpid(self.0, &mut status, 0) } != self.0 {
            return Err(io::Error::last_os_error());
        }
        if status == 0 { Ok(()) } else { Err(io::Error::other(format!("a child ended with status {status:#x}"))) }
    }
}

/// A child that works in turns: it stops itself (SIGSTOP) after each until it is continued.
#[derive(Debug)]
pub(crate) struct Looping(Child);

impl Looping {
    /// Forks the child, which stops before its first turn.
    pub(crate) fn start(mut turn: impl FnMut()) -> io::Result<Self> {
        let work = || {
            loop {
                // A child that cannot stop must not go on writing.
                if kill_process(getpid(), Signal::STOP).is_err() {
                    return 1;
                }
                turn();
            }
        };
        let looping = Self(spawn(ForkWay::Plain, work)?.0);
        match looping.until_it_stops() {
            Ok(()) => Ok(looping),
            Err(error) => looping.end().and(Err(error)),
        }
    }

    /// Makes it take a turn.
    pub(crate) fn turn(&self) -> io::Result<()> {
        kill_process(self.pid()?, Signal::CONT)?;
        self.until_it_stops()
    }

    /// Ends it.
    pub(crate) fn end(self) -> io::Result<()> {
        self.0.end()
    }

    fn until_it_stops(&self) -> io::Result<()> {
        match waitpid(Some(self.pid()?), WaitOptions::UNTRACED)? {
            Some((_, status)) if status.stopped() => Ok(()),
            other => Err(io::Error::other(format!("a child that works in turns did not stop: {other:?}"))),
        }
    }

    fn pid(&self) -> io::Result<Pid> {
        Pid::from_raw(self.0.0).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Forks a child that finds out a number. Returns the number.
pub(crate) fn ask_child(way: ForkWay, work: impl FnOnce() -> io::Result<f64>) -> io::Result<f64> {
    let (mut read, mut write) = io::pipe()?;
    let tell = || match work().and_then(|number| write.write_all(&number.to_ne_bytes())) {
        Ok(()) => 0,
        Err(_) => 1,
    };
    let (child, _) = spawn(way, tell)?;
    let mut bytes = [0; size_of::<f64>()];
    child.wait()?;
    read.read_exact(&mut bytes)?;
    Ok(f64::from_ne_bytes(bytes))
}

/// Sleeps until a signal ends this process.
pub(crate) fn sleep() -> i32 {
    loop {
        // SAFETY: waits.
        unsafe { libc::pause() };
    }
}

/// Freezes this process. Returns how long that took.
pub(crate) fn freeze(pages: Pages) -> Result<Duration, palimpsest_fork::FreezeError> {
    let options = Options::new().pages(pages).measure(Measure::Nothing);
    let stopwatch = Stopwatch::start();
    // SAFETY: 1. a measuring process discards and moves no memory that it froze: glibc's allocator, which it uses,
    // unmaps big blocks and counts on no zeros in others. 2. It has no I/O under way, as it waits for its parent. 3.
    // Nobody shares or writes its memory. 4. That stays so.
    unsafe { palimpsest_fork::freeze(&options) }?;
    Ok(stopwatch.elapsed())
}

/// Freezes this process in slices, one after the other. Returns how long the process stood still each time, beginning
/// with the look that plans.
pub(crate) fn freeze_in_slices(budget: Duration) -> Result<Vec<Duration>, String> {
    let told = |error: palimpsest_fork::FreezeError| Causes(&error).to_string();
    let options = Options::new().pause(Pause::Within(budget)).measure(Measure::Nothing);
    let stopwatch = Stopwatch::start();
    // SAFETY: 1. to 4. as in `freeze`.
    unsafe { palimpsest_fork::freeze(&options) }.map_err(told)?;
    let mut stops = vec![stopwatch.elapsed()];
    loop {
        let stopwatch = Stopwatch::start();
        // SAFETY: 1. as in `freeze`.
        let progress = unsafe { palimpsest_fork::freeze_slice() }.map_err(told)?;
        stops.push(stopwatch.elapsed());
        match progress.stage {
            Stage::UnderWay => {}
            Stage::Done => return Ok(stops),
            _ => return Err(format!("the freeze ended early: {progress:?}")),
        }
    }
}

/// Freezes the memory of `arena`. Returns how long that took.
pub(crate) fn freeze_arena(arena: &Arena) -> Result<Duration, palimpsest_fork::arena::StrandedError> {
    let stopwatch = Stopwatch::start();
    arena.freeze()?;
    Ok(stopwatch.elapsed())
}

/// A snapshot of a heap.
pub(crate) struct Reset(Snapshot);

impl Reset {
    /// Takes it. With [`Sweep::Never`], only declared pages are restored.
    pub(crate) fn take(heap: &Heap, sweep: Sweep) -> Result<Self, String> {
        let ranges = vec![heap.addresses(0..heap.pages())];
        let options = snapshot::SnapshotOptions::new(snapshot::Scope::Ranges(ranges)).sweep(sweep);
        // SAFETY: 1. only this thread accesses the heap. 2. It is not discarded. 3. The process closes nothing that it
        // did not open.
        let taken = unsafe { Snapshot::take(&options) };
        taken.map(Self).map_err(|error| Causes(&error).to_string())
    }

    /// Declares that these pages are written in every round.
    pub(crate) fn declare(&mut self, heap: &Heap, page: usize) -> Result<(), String> {
        let range = heap.addresses(page..page + 1);
        self.0.declare(range).map_err(|error| Causes(&error).to_string())
    }

    /// Restores everything. Returns how long that took, and how many pages it was.
    pub(crate) fn restore(&mut self) -> Result<(Duration, usize), String> {
        let stopwatch = Stopwatch::start();
        // SAFETY: 1. as in `take`. 2. Nothing refers into the heap: it is accessed page by page. 3. Without a sweep,
        // the declared pages are all that are written.
        let restored = unsafe { self.0.restore() };
        let taken = stopwatch.elapsed();
        restored.map(|restored| (taken, restored.pages)).map_err(|error| Causes(&error).to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn a_child_that_works_in_turns_takes_one_at_a_time() {
        let (mut read, mut write) = io::pipe().expect("a pipe");
        // In the child's own memory: each turn finds what the last one has left.
        let turns = AtomicU32::new(0);
        let looping = Looping::start(|| {
            let turn = turns.fetch_add(1, Ordering::Relaxed) + 1;
            let _unread = write.write_all(&turn.to_ne_bytes());
        })
        .expect("a child");
        let mut told = [0; 4];
        for turn in 1..=3_u32 {
            looping.turn().expect("it stops again");
            read.read_exact(&mut told).expect("it has told");
            assert_eq!(u32::from_ne_bytes(told), turn);
        }
        looping.end().expect("it is ended");
        assert_eq!(turns.into_inner(), 0);
        drop(write);
        assert_eq!(read.read(&mut told).expect("the end of the pipe"), 0, "no turn more");
    }
}

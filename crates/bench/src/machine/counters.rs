//! Counters of the calling thread: what the CPU or the kernel counts while the thread is in user mode.
//!
//! Sources: `perf_event_open(2)`; `include/uapi/linux/perf_event.h`.

use std::io;
use std::marker::PhantomData;

#[cfg(test)]
use perf_event::events::Software;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware};
use perf_event::{Builder, Counter, Group};
use rustix::io::Errno;

/// What can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Instruction fetches that the TLB did not translate.
    ItlbMisses,
    /// Instructions that were executed to their end.
    Instructions,
    /// Nanoseconds on a CPU. Every machine has this one.
    #[cfg(test)]
    TaskClock,
    /// Page faults. Every machine has this one.
    #[cfg(test)]
    PageFaults,
    /// Every machine has this one, which stays 0 (`PERF_COUNT_SW_DUMMY`).
    #[cfg(test)]
    Dummy,
    /// No machine has this one.
    #[cfg(test)]
    Nothing,
}

impl Event {
    /// Returns how it is counted: of this thread, in user mode.
    fn builder(self) -> Builder<'static> {
        match self {
            Self::ItlbMisses => {
                Builder::new(Cache { which: CacheId::ITLB, operation: CacheOp::READ, result: CacheResult::MISS })
            }
            Self::Instructions => Builder::new(Hardware::INSTRUCTIONS),
            #[cfg(test)]
            Self::TaskClock => Builder::new(Software::TASK_CLOCK),
            #[cfg(test)]
            Self::PageFaults => Builder::new(Software::PAGE_FAULTS),
            #[cfg(test)]
            Self::Dummy => Builder::new(Software::DUMMY),
            #[cfg(test)]
            Self::Nothing => Builder::new(Software(0xffff)),
        }
    }

    /// Its name in messages: that of `perf list`.
    fn name(self) -> &'static str {
        match self {
            Self::ItlbMisses => "iTLB-load-misses",
            Self::Instructions => "instructions",
            #[cfg(test)]
            Self::TaskClock => "task-clock",
            #[cfg(test)]
            Self::PageFaults => "page-faults",
            #[cfg(test)]
            Self::Dummy => "dummy",
            #[cfg(test)]
            Self::Nothing => "nothing",
        }
    }
}

/// Why nothing was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CountError {
    /// Neither the CPU nor the hypervisor offers it.
    #[error("no such counter here: {name}: {errno}", name = event.name(), errno = Named(*errno))]
    Missing { event: Event, errno: Errno },
    /// The kernel lets only others count.
    #[error("{name} may not be counted: {errno}; kernel.perf_event_paranoid must be 2 or less, and no filter of \
             system calls may forbid perf_event_open", name = event.name(), errno = Named(*errno))]
    Forbidden { event: Event, errno: Errno },
    /// Something else.
    #[error("{name} cannot be counted: {errno}", name = event.name(), errno = Named(*errno))]
    Open { event: Event, errno: Errno },
    /// A counter that exists does not tell.
    #[error("cannot read a counter: {errno}", errno = Named(*errno))]
    Read { errno: Errno },
    /// Others count too, and the counters went round.
    #[error("the counters ran for {running} ns of {enabled} ns only: others count on this CPU, too")]
    Shared { enabled: u128, running: u128 },
}

impl CountError {
    fn opening(event: Event, error: &io::Error) -> Self {
        let errno = errno_of(error);
        match errno {
            Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP => Self::Missing { event, errno },
            // Filters of system calls, those of containers among them, answer EPERM.
            Errno::ACCESS | Errno::PERM => Self::Forbidden { event, errno },
            _ => Self::Open { event, errno },
        }
    }
}

/// Shows an error by its name in manuals, if it is one of those that `perf_event_open` is known for.
struct Named(Errno);

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self.0 {
            Errno::NOENT => "ENOENT",
            Errno::NODEV => "ENODEV",
            Errno::OPNOTSUPP => "EOPNOTSUPP",
            Errno::ACCESS => "EACCES",
            Errno::PERM => "EPERM",
            Errno::INVAL => "EINVAL",
            Errno::NOSYS => "ENOSYS",
            other => return write!(f, "{other}"),
        };
        f.write_str(name)
    }
}

/// How many events are counted together.
const EVENTS: usize = 2;

/// Two counters of the thread that has opened them, on the CPU at the same times. Threads and processes that the thread
/// starts are not counted.
pub(crate) struct Counters {
    group: Group,
    members: [Counter; EVENTS],
    /// Another thread would get this one's counts.
    own_thread: PhantomData<*const ()>,
}

/// What the kernel tells of a group; times are nanoseconds.
#[derive(Clone, Copy)]
struct Reading {
    enabled: u128,
    running: u128,
    counts: [u64; EVENTS],
}

impl Counters {
    /// Makes counters, which count from now on.
    pub(crate) fn open([first, second]: [Event; EVENTS]) -> Result<Self, CountError> {
        let failed = |event| move |error: io::Error| CountError::opening(event, &error);
        let mut group = Group::new().map_err(failed(first))?;
        let mut add = |event: Event| group.add(&event.builder()).map_err(failed(event));
        let members = [add(first)?, add(second)?];
        group.enable().map_err(failed(first))?;
        Ok(Self { group, members, own_thread: PhantomData })
    }

    /// Returns what was counted while `work` ran.
    pub(crate) fn count<R>(&mut self, work: impl FnOnce() -> R) -> Result<(R, [u64; EVENTS]), CountError> {
        let before = self.read()?;
        let result = work();
        Ok((result, self.read()?.since(&before)?))
    }

    fn read(&mut self) -> Result<Reading, CountError> {
        let counts = self.group.read().map_err(|error| CountError::Read { errno: errno_of(&error) })?;
        let [enabled, running] = [counts.time_enabled(), counts.time_running()];
        let nanoseconds = |time: Option<std::time::Duration>| time.unwrap_or_default().as_nanos();
        Ok(Reading {
            enabled: nanoseconds(enabled),
            running: nanoseconds(running),
            counts: self.members.each_ref().map(|member| counts[member]),
        })
    }
}

impl Reading {
    /// Returns what was counted since `before`, unless that is an estimate.
    fn since(&self, before: &Self) -> Result<[u64; EVENTS], CountError> {
        let (enabled, running) = (self.enabled - before.enabled, self.running - before.running);
        if running < enabled {
            return Err(CountError::Shared { enabled, running });
        }
        Ok(std::array::from_fn(|event| self.counts[event] - before.counts[event]))
    }
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Writes to memory that was never written to.
    fn fault() {
        let mut memory = vec![0_u8; 64 * MIB];
        memory.iter_mut().step_by(4096).for_each(|byte| *byte = std::hint::black_box(1));
        std::hint::black_box(&memory);
    }

    #[test]
    fn what_this_thread_does_during_the_work_is_counted() {
        let mut counters = match Counters::open([Event::PageFaults, Event::TaskClock]) {
            Ok(counters) => counters,
            Err(error) => return println!("skipped: {error}"),
        };
        fault();
        let (result, [none, _]) = counters.count(|| 5).expect("they count");
        let ((), [some, nanoseconds]) = counters.count(fault).expect("they count");
        // With huge pages, 64 MiB are 32 faults.
        assert!(result == 5 && none < 16 && some >= 31 && nanoseconds > 0, "{none} {some} {nanoseconds}");
        let elsewhere = || std::thread::scope(|scope| scope.spawn(fault).join().expect("it ends"));
        let ((), [starting, _]) = counters.count(elsewhere).expect("they count");
        assert!(starting < 31, "another thread's {starting} faults are counted");
    }

    #[test]
    fn refusals_keep_the_error() {
        let event = Event::ItlbMisses;
        let said = |errno: Errno| CountError::opening(event, &errno.into()).to_string();
        assert_eq!(said(Errno::NOENT), "no such counter here: iTLB-load-misses: ENOENT");
        for (errno, name) in [(Errno::ACCESS, "EACCES"), (Errno::PERM, "EPERM")] {
            let text = said(errno);
            assert!(text.contains(name) && text.contains("kernel.perf_event_paranoid"), "{text}");
        }
        assert!(said(Errno::INVAL).ends_with("EINVAL"));
        let refused = Counters::open([Event::PageFaults, Event::Nothing]).map(drop).expect_err("there is none");
        let named = |error| matches!(error, CountError::Missing { event: Event::Nothing, .. });
        assert!(named(refused) || matches!(refused, CountError::Forbidden { .. }), "{refused}");
    }

    #[test]
    fn estimates_are_refused() {
        let before = Reading { enabled: 100, running: 90, counts: [5, 6] };
        let after = |running| Reading { enabled: 150, running, counts: [15, 26] };
        assert_eq!(after(140).since(&before), Ok([10, 20]));
        assert_eq!(after(139).since(&before), Err(CountError::Shared { enabled: 50, running: 49 }));
    }
}

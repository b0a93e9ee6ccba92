//! Counters of the calling thread: what the CPU or the kernel counts while the thread is in user mode.
//!
//! Not by the crate `perf-event2`: this is in the first build of whoever tries the program, which has sixty crates at
//! most, and would have six more for one figure.
//!
//! Sources: `perf_event_open(2)`; `include/uapi/linux/perf_event.h`.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

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
    /// Returns the kernel's type and number (`perf_type_id`, and the enumeration that belongs to it).
    fn attributes(self) -> (u32, u64) {
        const HARDWARE: u32 = 0;
        const HARDWARE_CACHE: u32 = 3;
        match self {
            // `PERF_COUNT_HW_CACHE_ITLB`, `_OP_READ`, `_RESULT_MISS`.
            Self::ItlbMisses => (HARDWARE_CACHE, 4 | 1 << 16),
            Self::Instructions => (HARDWARE, 1),
            #[cfg(test)]
            Self::TaskClock => (SOFTWARE, 1),
            #[cfg(test)]
            Self::PageFaults => (SOFTWARE, 2),
            #[cfg(test)]
            Self::Dummy => (SOFTWARE, 9),
            #[cfg(test)]
            Self::Nothing => (SOFTWARE, 0xffff),
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

#[cfg(test)]
const SOFTWARE: u32 = 1;

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
    Shared { enabled: u64, running: u64 },
}

impl CountError {
    fn opening(event: Event, errno: Errno) -> Self {
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

/// `struct perf_event_attr` as it was first published (`PERF_ATTR_SIZE_VER0`): the kernel takes later fields as 0.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// Bits of `flags`.
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;

/// `PERF_FORMAT_TOTAL_TIME_ENABLED`, `PERF_FORMAT_TOTAL_TIME_RUNNING` and `PERF_FORMAT_GROUP`.
const TIMES_AND_GROUP: u64 = 1 | 1 << 1 | 1 << 3;

/// How many events are counted together.
const EVENTS: usize = 2;

/// Two counters of the thread that has opened them, on the CPU at the same times. Threads and processes that the thread
/// starts are not counted.
pub(crate) struct Counters {
    /// The first one leads the group.
    files: [OwnedFd; EVENTS],
    /// Another thread would get this one's counts.
    own_thread: PhantomData<*const ()>,
}

/// What the kernel tells of a group.
#[derive(Clone, Copy)]
struct Reading {
    enabled: u64,
    running: u64,
    counts: [u64; EVENTS],
}

impl Counters {
    /// Makes counters, which count from now on.
    pub(crate) fn open([leader, member]: [Event; EVENTS]) -> Result<Self, CountError> {
        let first = open(leader, None)?;
        let second = open(member, Some(&first))?;
        Ok(Self { files: [first, second], own_thread: PhantomData })
    }

    /// Returns what was counted while `work` ran.
    pub(crate) fn count<R>(&self, work: impl FnOnce() -> R) -> Result<(R, [u64; EVENTS]), CountError> {
        let before = self.read()?;
        let result = work();
        Ok((result, self.read()?.since(&before)?))
    }

    fn read(&self) -> Result<Reading, CountError> {
        let failed = |errno| CountError::Read { errno };
        let mut bytes = [0; (3 + EVENTS) * size_of::<u64>()];
        // Without room for all the kernel refuses; less comes of a group that cannot be scheduled (end of file).
        if rustix::io::read(&self.files[0], &mut bytes[..]).map_err(failed)? < bytes.len() {
            return Err(failed(Errno::IO));
        }
        let (words, _) = bytes.as_chunks();
        let word = |number: usize| u64::from_ne_bytes(words[number]);
        // The first is the number of events.
        Ok(Reading { enabled: word(1), running: word(2), counts: std::array::from_fn(|event| word(3 + event)) })
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

fn open(event: Event, leader: Option<&OwnedFd>) -> Result<OwnedFd, CountError> {
    let (kind, config) = event.attributes();
    let attributes = Attributes {
        kind,
        size: size_of::<Attributes>() as u32,
        config,
        read_format: TIMES_AND_GROUP,
        flags: EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR,
        ..Attributes::default()
    };
    let (this_thread, any_cpu, leader) = (0, -1, leader.map_or(-1, AsRawFd::as_raw_fd));
    // `PERF_FLAG_FD_CLOEXEC`.
    let close_on_exec: libc::c_ulong = 1 << 3;
    // SAFETY: the kernel reads the attributes, a local of the size that they tell; all else are numbers.
    let answer = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attributes, this_thread, any_cpu, leader, close_on_exec)
    };
    match RawFd::try_from(answer) {
        // SAFETY: a new file, which nobody else knows.
        Ok(file) if file >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(file) }),
        _ => Err(CountError::opening(event, last_errno())),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
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
        let counters = match Counters::open([Event::PageFaults, Event::TaskClock]) {
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
        let said = |errno| CountError::opening(event, errno).to_string();
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

//! The calls of a freeze, and of waits in which it goes on, that a plain program need not make, and what each is for.

use std::fmt;
use std::ptr;

use super::{Part, Probe, attempt};
use crate::pages::pagemap::PAGEMAP_SCAN;
use crate::pages::query::PROCMAP_QUERY;

/// A system call that freezing makes and a plain program need not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FreezeCall {
    /// `memfd_create`: the files with frozen memory.
    MemfdCreate,
    /// `ftruncate` of such a file.
    Truncate,
    /// `pwrite64` into it.
    Write,
    /// `fstat`: which file it is.
    Status,
    /// `fchmod`: who may open it again.
    Rights,
    /// `fcntl`: its seals; and the standard library's look at a descriptor.
    Seal,
    /// `ioctl`: `PAGEMAP_SCAN` and `PROCMAP_QUERY`.
    Ioctl,
    /// `msync`: whether memory is locked.
    Msync,
    /// `madvise`: populates, collapses and restores advice.
    Madvise,
    /// `mremap`: keeps written pages aside while it makes a huge page for them.
    Remap,
    /// `mlock2`: restores locks.
    Lock,
    /// `munlock`: keeps tables from being populated under `mlockall`.
    Unlock,
    /// `pkey_mprotect`: restores protection keys.
    ProtectionKey,
    /// `get_mempolicy`: finds memory with its own policy, which is left alone.
    MemoryPolicy,
    /// `prctl`: names for tables, and whether there are huge pages.
    Prctl,
    /// `prlimit64`: limits of files and descriptors.
    Limits,
    /// `sysinfo`: how much memory there is, for tables of that size.
    SystemInfo,
    /// `rt_tgsigqueueinfo`: holds other threads.
    QueueSignal,
    /// `nanosleep`: waits for other threads.
    Sleep,
    /// `io_uring_register`: memory that a ring holds.
    RingRegister,
    /// `io_submit`, without requests: whether a context of Linux AIO exists.
    AsyncSubmit,
    /// `clock_gettime` of the thread's CPU time: the cost of freezes and forks.
    CpuTime,
    /// `getrusage`: how much memory the program has used.
    Usage,
    /// `mincore`: which of its memory is worth a huge page.
    Mincore,
    /// `ppoll`: takes the place of a wait.
    Poll,
    /// `epoll_pwait`: takes the place of a wait.
    EpollWait,
    /// `pselect6`: takes the place of a wait.
    Select,
    /// `process_vm_readv`: copies what `select` is asked for.
    ReadMemory,
    /// `process_vm_writev`: hands its answer over.
    WriteMemory,
    /// `rt_sigpending`: whether a signal should end a wait, or was there before a report was written.
    PendingSignals,
    /// `rt_sigtimedwait`: takes back a signal that writing a report has brought.
    TakeSignal,
    /// `getpid`: whose memory it is.
    ProcessId,
    /// `gettid`: which thread holds the others.
    ThreadId,
    /// `close_range`: takes descriptors from a deputy.
    CloseRange,
    /// `prctl`: takes all calls from a deputy but its own.
    Confine,
    /// `getppid`: whether a deputy's sender lives.
    ParentId,
    /// `sched_getattr`: the time slice of whoever sends a deputy.
    TellTimeslice,
    /// `sched_setattr`: a short time slice for the time until a deputy is at work, and the own one again.
    SetTimeslice,
    /// `sched_yield`: lets a deputy's sender go first.
    Yield,
    /// `kill`: ends a deputy that was stopped, or does not begin.
    Kill,
}

impl FreezeCall {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 40] = [
        Self::MemfdCreate,
        Self::Truncate,
        Self::Write,
        Self::Status,
        Self::Rights,
        Self::Seal,
        Self::Ioctl,
        Self::Msync,
        Self::Madvise,
        Self::Remap,
        Self::Lock,
        Self::Unlock,
        Self::ProtectionKey,
        Self::MemoryPolicy,
        Self::Prctl,
        Self::Limits,
        Self::SystemInfo,
        Self::QueueSignal,
        Self::Sleep,
        Self::RingRegister,
        Self::AsyncSubmit,
        Self::CpuTime,
        Self::Usage,
        Self::Mincore,
        Self::Poll,
        Self::EpollWait,
        Self::Select,
        Self::ReadMemory,
        Self::WriteMemory,
        Self::PendingSignals,
        Self::TakeSignal,
        Self::ProcessId,
        Self::ThreadId,
        Self::CloseRange,
        Self::Confine,
        Self::ParentId,
        Self::TellTimeslice,
        Self::SetTimeslice,
        Self::Yield,
        Self::Kill,
    ];

    /// Returns what cannot be done without the call.
    pub const fn part(self) -> Part {
        match self {
            Self::Status
            | Self::Seal
            | Self::Ioctl
            | Self::Msync
            | Self::Madvise
            | Self::Remap
            | Self::Unlock
            | Self::Prctl
            | Self::Limits
            | Self::SystemInfo
            | Self::Sleep
            | Self::CpuTime
            | Self::PendingSignals
            | Self::TakeSignal
            | Self::Kill
            | Self::ProcessId
            | Self::ThreadId => Part::Service,
            Self::MemfdCreate | Self::Truncate | Self::Write | Self::Rights | Self::Lock => Part::Freezing,
            Self::QueueSignal => Part::Holding,
            Self::Poll | Self::EpollWait | Self::Select | Self::ReadMemory | Self::WriteMemory => Part::Waits,
            Self::CloseRange | Self::Confine | Self::ParentId => Part::Deputies,
            Self::TellTimeslice | Self::SetTimeslice | Self::Yield => Part::Promptness,
            Self::Usage | Self::Mincore => Part::Early,
            Self::ProtectionKey => Part::Keys,
            Self::MemoryPolicy => Part::Policies,
            Self::RingRegister => Part::Rings,
            Self::AsyncSubmit => Part::Contexts,
        }
    }

    /// Returns the call's number.
    pub const fn number(self) -> i64 {
        match self {
            Self::MemfdCreate => libc::SYS_memfd_create,
            Self::Truncate => libc::SYS_ftruncate,
            Self::Write => libc::SYS_pwrite64,
            Self::Status => libc::SYS_fstat,
            Self::Rights => libc::SYS_fchmod,
            Self::Seal => libc::SYS_fcntl,
            Self::Ioctl => libc::SYS_ioctl,
            Self::Msync => libc::SYS_msync,
            Self::Madvise => libc::SYS_madvise,
            Self::Remap => libc::SYS_mremap,
            Self::Lock => libc::SYS_mlock2,
            Self::Unlock => libc::SYS_munlock,
            Self::ProtectionKey => libc::SYS_pkey_mprotect,
            Self::MemoryPolicy => libc::SYS_get_mempolicy,
            Self::Prctl => libc::SYS_prctl,
            Self::Limits => libc::SYS_prlimit64,
            Self::SystemInfo => libc::SYS_sysinfo,
            Self::QueueSignal => libc::SYS_rt_tgsigqueueinfo,
            Self::Sleep => libc::SYS_nanosleep,
            Self::RingRegister => libc::SYS_io_uring_register,
            Self::AsyncSubmit => libc::SYS_io_submit,
            Self::CpuTime => libc::SYS_clock_gettime,
            Self::Usage => libc::SYS_getrusage,
            Self::Mincore => libc::SYS_mincore,
            Self::Poll => libc::SYS_ppoll,
            Self::EpollWait => libc::SYS_epoll_pwait,
            Self::Select => libc::SYS_pselect6,
            Self::ReadMemory => libc::SYS_process_vm_readv,
            Self::WriteMemory => libc::SYS_process_vm_writev,
            Self::PendingSignals => libc::SYS_rt_sigpending,
            Self::TakeSignal => libc::SYS_rt_sigtimedwait,
            Self::ProcessId => libc::SYS_getpid,
            Self::ThreadId => libc::SYS_gettid,
            Self::CloseRange => libc::SYS_close_range,
            Self::Confine => libc::SYS_prctl,
            Self::ParentId => libc::SYS_getppid,
            Self::TellTimeslice => libc::SYS_sched_getattr,
            Self::SetTimeslice => libc::SYS_sched_setattr,
            Self::Yield => libc::SYS_sched_yield,
            Self::Kill => libc::SYS_kill,
        }
    }

    /// Makes the call with arguments that do nothing, whatever the answer.
    pub(super) fn attempt(self) {
        /// No descriptor, and no thread.
        const NONE: usize = usize::MAX;
        /// No protection key.
        const NO_KEY: usize = usize::MAX;
        let make = |arguments: [usize; 5]| {
            let [a, b, c, d, e] = arguments;
            // SAFETY: each set of arguments below names no descriptor, no thread, no memory, or a length of zero.
            unsafe { libc::syscall(self.number(), a, b, c, d, e, 0_usize) };
        };
        match self {
            Self::MemfdCreate => drop(attempt(Probe::MemfdCreate)),
            Self::Truncate | Self::Write | Self::Status | Self::Rights | Self::RingRegister => make([NONE, 0, 0, 0, 0]),
            Self::Seal => {
                make([NONE, libc::F_ADD_SEALS as usize, 0, 0, 0]);
                make([NONE, libc::F_GET_SEALS as usize, 0, 0, 0]);
            }
            Self::Ioctl => {
                make([NONE, PAGEMAP_SCAN as usize, 0, 0, 0]);
                make([NONE, PROCMAP_QUERY as usize, 0, 0, 0]);
            }
            Self::Msync => make([0, 0, libc::MS_INVALIDATE as usize, 0, 0]),
            Self::Madvise => {
                for advice in [
                    libc::MADV_POPULATE_READ,
                    libc::MADV_POPULATE_WRITE,
                    libc::MADV_COLLAPSE,
                    libc::MADV_DONTNEED,
                    libc::MADV_HUGEPAGE,
                    libc::MADV_NOHUGEPAGE,
                    libc::MADV_DONTFORK,
                    libc::MADV_DOFORK,
                    libc::MADV_DONTDUMP,
                    libc::MADV_MERGEABLE,
                    libc::MADV_SEQUENTIAL,
                    libc::MADV_RANDOM,
                    libc::MADV_WIPEONFORK,
                    libc::MADV_KEEPONFORK,
                ] {
                    make([0, 0, advice as usize, 0, 0]);
                }
            }
            // With a length of zero, which is refused whatever the flags.
            Self::Remap => {
                for flags in [libc::MREMAP_DONTUNMAP, libc::MREMAP_FIXED] {
                    make([0, 0, 0, (libc::MREMAP_MAYMOVE | flags) as usize, 0]);
                }
            }
            Self::Lock => make([0, 0, libc::MLOCK_ONFAULT as usize, 0, 0]),
            Self::ProtectionKey => make([0, 0, 0, NO_KEY, 0]),
            Self::Mincore | Self::Unlock | Self::MemoryPolicy | Self::AsyncSubmit => make([0; 5]),
            // For a set of no length, which is refused.
            Self::TakeSignal => make([0; 5]),
            // Writes to no memory, or names no process.
            Self::Usage
            | Self::SystemInfo
            | Self::PendingSignals
            | Self::ProcessId
            | Self::ThreadId
            | Self::ParentId
            | Self::Yield => make([0; 5]),
            Self::ReadMemory | Self::WriteMemory => make([NONE, 0, 0, 0, 0]),
            Self::EpollWait => make([NONE, 0, 0, 0, 0]),
            Self::Poll => {
                let moment = [0_usize; 2];
                make([0, 0, (&raw const moment).expose_provenance(), 0, 0]);
            }
            Self::Select => {
                let moment = [0_usize; 2];
                make([0, 0, 0, 0, (&raw const moment).expose_provenance()]);
            }
            Self::CpuTime => make([libc::CLOCK_THREAD_CPUTIME_ID as usize, 0, 0, 0, 0]),
            Self::Prctl => {
                make([libc::PR_GET_THP_DISABLE as usize, 0, 0, 0, 0]);
                make([libc::PR_SET_VMA as usize, libc::PR_SET_VMA_ANON_NAME as usize, 0, 0, ptr::null::<u8>().addr()]);
            }
            Self::Limits => make([0, libc::RLIMIT_FSIZE as usize, 0, 0, 0]),
            Self::QueueSignal => make([NONE, NONE, 0, 0, 0]),
            // Of no thread.
            Self::TellTimeslice | Self::SetTimeslice => make([NONE, 0, 0, 0, 0]),
            // From a number to a smaller one, which is refused.
            Self::CloseRange => make([NONE, 0, 0, 0, 0]),
            // In a mode that there is none of.
            Self::Confine => make([libc::PR_SET_SECCOMP as usize, NONE, 0, 0, 0]),
            // No process, and no signal.
            Self::Kill => make([i32::MAX as usize, 0, 0, 0, 0]),
            Self::Sleep => {
                let moment = [0_usize; 2];
                make([(&raw const moment).expose_provenance(), 0, 0, 0, 0]);
            }
        }
    }

    /// Returns the name, without commas: one of a call, with its argument if that is what matters.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::MemfdCreate => "memfd_create",
            Self::Truncate => "ftruncate",
            Self::Write => "pwrite64",
            Self::Status => "fstat",
            Self::Rights => "fchmod",
            Self::Seal => "fcntl",
            Self::Ioctl => "ioctl",
            Self::Msync => "msync",
            Self::Madvise => "madvise",
            Self::Remap => "mremap",
            Self::Lock => "mlock2",
            Self::Unlock => "munlock",
            Self::ProtectionKey => "pkey_mprotect",
            Self::MemoryPolicy => "get_mempolicy",
            Self::Prctl => "prctl",
            Self::Limits => "prlimit64",
            Self::SystemInfo => "sysinfo",
            Self::QueueSignal => "rt_tgsigqueueinfo",
            Self::Sleep => "nanosleep",
            Self::RingRegister => "io_uring_register",
            Self::AsyncSubmit => "io_submit",
            Self::CpuTime => "clock_gettime",
            Self::Usage => "getrusage",
            Self::Mincore => "mincore",
            Self::Poll => "ppoll",
            Self::EpollWait => "epoll_pwait",
            Self::Select => "pselect6",
            Self::ReadMemory => "process_vm_readv",
            Self::WriteMemory => "process_vm_writev",
            Self::PendingSignals => "rt_sigpending",
            Self::TakeSignal => "rt_sigtimedwait",
            Self::ProcessId => "getpid",
            Self::ThreadId => "gettid",
            Self::CloseRange => "close_range",
            Self::Confine => "prctl(PR_SET_SECCOMP)",
            Self::ParentId => "getppid",
            Self::TellTimeslice => "sched_getattr",
            Self::SetTimeslice => "sched_setattr",
            Self::Yield => "sched_yield",
            Self::Kill => "kill",
        }
    }
}

impl fmt::Display for FreezeCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

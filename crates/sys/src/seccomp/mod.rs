//! Tries system calls that a seccomp filter may punish.
//!
//! A filter answers a forbidden call with EPERM, with ENOSYS, or by killing the caller with SIGSYS; some do so even for
//! `MEMBARRIER_CMD_QUERY`. Therefore a call under a filter is first tried in a child that does nothing else and that
//! the program does not notice ([`child`]). Nothing here uses the heap.
//!
//! # What is tried before it is done
//!
//! | who | calls |
//! |---|---|
//! | core synchronisation | `membarrier` |
//! | memory files, of packs and of doctor | `memfd_create`, `userfaultfd` |
//! | the tracer | `ptrace`, `getppid`, `prctl`, `prlimit64` |
//! | replicas, local text | `get_mempolicy`, `mbind`, `move_pages`, each by itself |
//! | a freeze, a survey, a repair; the object of `palimpsest run`, and `run` for it | each [`FreezeCall`] |
//!
//! Of the last ones only some are needed ([`Part`]): who makes another asks [`FreezeCall::is_deadly`] first.
//!
//! A freeze also makes calls that any program makes: `openat`, `read`, `pread64`, `newfstatat`, `readlinkat` and
//! `getdents64` below `/proc`; `mmap`, `munmap`, `mprotect`, `close`; `rt_sigaction`, `rt_sigprocmask`, `futex`;
//! `clone` and `wait4`, for a process that is about to fork. Those are not tried: a filter that kills `openat` kills
//! the very call that finds out whether there is a filter.
//!
//! Source: `seccomp(2)`.

mod calls;
mod latest;
mod parts;
mod trial;

use std::fmt;

use rustix::io::Errno;

pub use calls::FreezeCall;
use latest::{Key, Latest};
pub use parts::{Calls, Part};
pub(crate) use trial::was_deadly_at_the_start;
pub use trial::{deadly_calls, found_deadly, probe_parts, tell};

use crate::threads::child::{self, NoChild};
use crate::threads::task::own_filters;
use crate::{Causes, last_errno};

/// A system call to try. Whatever it creates is given back at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Probe {
    /// `membarrier`: query, registration for `PRIVATE_EXPEDITED_SYNC_CORE`, and that command. Without a filter this
    /// registers the process.
    Membarrier,
    /// `memfd_create` for a file that may be mapped executable, with the flags in the order of
    /// [`ExecRung`](crate::ExecRung).
    MemfdCreate,
    /// `userfaultfd` for faults of user mode.
    Userfaultfd,
    /// `ptrace`, of no thread; first `prctl`, `prlimit64` and `getppid`, which a tracer calls, too.
    Ptrace,
    /// `get_mempolicy`, of nothing.
    GetMempolicy,
    /// `mbind`, of nothing.
    Mbind,
    /// `move_pages`, of nothing.
    MovePages,
}

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It works.
    Allowed,
    /// It failed with this error, from the filter or from the kernel itself.
    Refused(Errno),
    /// It ends the process with this signal.
    Killed {
        /// Number of the signal, usually SIGSYS.
        signal: i32,
    },
    /// It could not be tried, and must be considered deadly.
    Unknown(Untried),
}

impl Verdict {
    /// Returns whether the call can be made.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed)
    }
}

/// A sentence about the call, which is "it".
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allowed => f.write_str("it works"),
            Self::Refused(errno) => write!(f, "it fails with {}", std::io::Error::from(*errno)),
            Self::Killed { signal } => write!(f, "it ends the process with signal {signal}"),
            Self::Unknown(untried) => Causes(untried).fmt(f),
        }
    }
}

/// Why a call could not be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Untried {
    /// No child could be made.
    #[error("no child process could be made to try it in")]
    NoChild(#[source] NoChild),
    /// Somebody else waited for the child.
    #[error("the child process that tried it was lost")]
    LostChild(#[source] Errno),
    /// The child's exit status is not one of its own.
    #[error("the child process that tried it ended with status {0:#x}")]
    OddStatus(i32),
    /// There is no page in which a child could tell how far it has come.
    #[error("there is no memory to try it with")]
    NoMemory(#[source] Errno),
}

/// Tries a call: at once if no filter is installed, else first in a child.
///
/// Filters belong to threads, so the verdict holds for the calling thread and for those that it starts. Remembers a
/// child's verdict as long as the thread gets no further filter; where the kernel does not count filters (before Linux
/// 5.9) it could get one unnoticed, and each call is tried anew.
pub fn probe(probe: Probe) -> Verdict {
    // Without /proc the number counts as unknown, too: prctl(PR_GET_SECCOMP) could itself be deadly.
    let filters = own_filters();
    if filters == Some(0) {
        return attempt(probe).map_or_else(Verdict::Refused, |()| Verdict::Allowed);
    }
    let key = filters.and_then(|filters| Key::of_this_thread(filters, probe));
    if let Some(verdict) = key.and_then(|key| VERDICTS.of(key)) {
        return verdict;
    }
    let verdict = attempt_in_child(probe);
    if let (Some(key), Verdict::Allowed | Verdict::Refused(_) | Verdict::Killed { .. }) = (key, verdict) {
        VERDICTS.remember(key, verdict);
    }
    verdict
}

/// The latest verdicts. Behind all other variables, like whatever is big and seldom used, where the linker is lld: each
/// page with something that a start uses is copied in each program below `palimpsest run`. GNU ld puts it before zeros.
#[cfg_attr(not(miri), unsafe(link_section = "palimpsest_late"))]
static VERDICTS: Latest<Probe, Verdict> = Latest::new();

/// Makes the calls of a probe in this process. Allocates nothing and takes no lock.
fn attempt(probe: Probe) -> Result<(), Errno> {
    match probe {
        Probe::Membarrier => {
            let commands = membarrier(libc::MEMBARRIER_CMD_QUERY)?;
            if commands & i64::from(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE) == 0 {
                return Err(Errno::INVAL);
            }
            membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE)?;
            membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE)?;
            Ok(())
        }
        Probe::MemfdCreate => {
            let mut answer = Err(Errno::INVAL);
            for exec in [libc::MFD_EXEC, libc::MFD_NOEXEC_SEAL, 0] {
                answer = memfd_create(libc::MFD_CLOEXEC | exec).and_then(close);
                // vm.memfd_noexec forbids a flag by EACCES; kernels before 6.3 do not know it.
                if !matches!(answer, Err(Errno::ACCESS | Errno::INVAL)) {
                    break;
                }
            }
            answer
        }
        Probe::Userfaultfd => {
            let flags = libc::O_CLOEXEC | UFFD_USER_MODE_ONLY;
            // SAFETY: the call takes a number, makes a descriptor, and touches no memory.
            close(answer(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })?)
        }
        Probe::Ptrace => {
            // What nobody but the tracer does, without effect: for a signal, a name and a process that do not exist.
            for [option, argument] in [
                [libc::PR_SET_PDEATHSIG as usize, usize::MAX],
                [libc::PR_SET_NAME as usize, 0],
                [libc::PR_SET_PTRACER as usize, i32::MAX as usize],
                [libc::PR_GET_DUMPABLE as usize, 0],
            ] {
                // SAFETY: takes numbers and an address where nothing is mapped.
                unsafe { libc::syscall(libc::SYS_prctl, option, argument, 0_usize, 0_usize, 0_usize) };
            }
            // SAFETY: neither sets nor returns a limit.
            unsafe { libc::syscall(libc::SYS_prlimit64, 0_usize, libc::RLIMIT_CORE as usize, 0_usize, 0_usize) };
            // SAFETY: takes nothing.
            unsafe { libc::syscall(libc::SYS_getppid) };
            // SAFETY: no thread has the number 0, so this traces nobody (`sys_ptrace` in `kernel/ptrace.c`).
            match answer(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_SEIZE, 0_usize, 0_usize, 0_usize) }) {
                Err(Errno::SRCH) => Ok(()),
                other => other.map(drop),
            }
        }
        Probe::GetMempolicy => {
            // SAFETY: requests nothing, and writes to no memory.
            answer(unsafe { libc::syscall(libc::SYS_get_mempolicy, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) })
                .map(drop)
        }
        Probe::Mbind => {
            // SAFETY: for zero bytes, and with the default policy.
            answer(unsafe { libc::syscall(libc::SYS_mbind, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) })
                .map(drop)
        }
        Probe::MovePages => {
            // SAFETY: for zero pages.
            answer(unsafe { libc::syscall(libc::SYS_move_pages, 0, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) })
                .map(drop)
        }
    }
}

/// `include/uapi/linux/userfaultfd.h`
const UFFD_USER_MODE_ONLY: i32 = 1;

fn membarrier(command: i32) -> Result<i64, Errno> {
    // SAFETY: membarrier takes numbers and changes no memory.
    answer(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

fn memfd_create(flags: u32) -> Result<i64, Errno> {
    let name = c"palimpsest-probe".as_ptr();
    // SAFETY: the name is a C string that lives for ever; the call makes a descriptor and touches no memory.
    answer(unsafe { libc::syscall(libc::SYS_memfd_create, name, flags) })
}

fn close(descriptor: i64) -> Result<(), Errno> {
    // SAFETY: the caller made the descriptor just now, and nobody else knows it.
    answer(unsafe { libc::syscall(libc::SYS_close, descriptor) }).map(drop)
}

/// Turns the return value of `libc::syscall` into a result.
fn answer(returned: i64) -> Result<i64, Errno> {
    if returned == -1 { Err(last_errno()) } else { Ok(returned) }
}

/// What a child does before it exits.
#[derive(Clone, Copy)]
enum Errand {
    /// Forbids a core dump of itself, then tries the call.
    QuietlyTry(Probe),
    /// Only forbids a core dump: the control experiment for a child that was killed.
    Quietly,
    /// Tries the call, if even the control experiment dies.
    Try(Probe),
}

/// Tries a call in a child, whatever is known already. Uses neither the heap nor a lock.
pub(crate) fn attempt_in_child(probe: Probe) -> Verdict {
    match verdict(Errand::QuietlyTry(probe)) {
        Verdict::Killed { .. } if matches!(verdict(Errand::Quietly), Verdict::Killed { .. }) => {
            verdict(Errand::Try(probe))
        }
        verdict => verdict,
    }
}

/// Signals that a child may cause itself, which stay unblocked where the call is made in such a thread: a filter can
/// leave forbidden calls to a SIGSYS handler of the program, which is then part of the answer.
const OWN: [i32; 6] = [libc::SIGSYS, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

impl Errand {
    /// Signals that stay unblocked. None for what is done with all of them blocked: SIGSYS would end the caller then,
    /// whatever its handler.
    const fn open(self) -> &'static [i32] {
        match self {
            Self::QuietlyTry(Probe::Ptrace) | Self::Try(Probe::Ptrace) => &[],
            _ => &OWN,
        }
    }
}

/// Exit status for an error whose number does not fit into one.
const NUMBER_TOO_LARGE: i32 = 255;

fn verdict(errand: Errand) -> Verdict {
    // SAFETY: 1. the errand only makes system calls.
    let child = match unsafe { child::spawn(errand.open(), || run(errand)) } {
        Ok(child) => child,
        Err(no_child) => return Verdict::Unknown(Untried::NoChild(no_child)),
    };
    match child.wait() {
        Err(errno) => Verdict::Unknown(Untried::LostChild(errno)),
        Ok(status) if libc::WIFSIGNALED(status) => Verdict::Killed { signal: libc::WTERMSIG(status) },
        Ok(status) => match libc::WEXITSTATUS(status) {
            0 => Verdict::Allowed,
            NUMBER_TOO_LARGE => Verdict::Unknown(Untried::OddStatus(status)),
            errno => Verdict::Refused(Errno::from_raw_os_error(errno)),
        },
    }
}

/// Forbids a core dump of this process, which has memory of its own.
fn be_quiet() {
    // SAFETY: PR_SET_DUMPABLE takes a number and concerns only this process's memory.
    unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0_usize, 0_usize, 0_usize, 0_usize) };
}

/// Runs the errand in the child. Returns the exit status.
fn run(errand: Errand) -> i32 {
    if let Errand::QuietlyTry(_) | Errand::Quietly = errand {
        be_quiet();
    }
    match errand {
        Errand::QuietlyTry(probe) | Errand::Try(probe) => match attempt(probe) {
            Ok(()) => 0,
            Err(errno) => errno.raw_os_error().min(NUMBER_TOO_LARGE),
        },
        Errand::Quietly => 0,
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! Trying system calls that a seccomp filter may punish.
//!
//! A filter answers a forbidden call with EPERM, with ENOSYS, or by killing the caller with SIGSYS; some do so even for
//! `MEMBARRIER_CMD_QUERY`. Under a filter a call is therefore tried first in a child that does nothing else.
//! The child is made by a bare `clone` without exit signal, so that the program's SIGCHLD handler and its
//! `waitpid(-1, …)` never see it.
//!
//! Sources: `seccomp(2)`, `clone(2)` (exit signal 0), `wait(2)` (`__WALL`).

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::thread::ThreadId;

use rustix::io::Errno;

use crate::proc::status::{SeccompMode, Status};

/// A system call to be tried. Whatever it makes is given back at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Probe {
    /// `membarrier`: query, registration for `PRIVATE_EXPEDITED_SYNC_CORE`, and that command. Without a filter this
    /// registers the process.
    Membarrier,
    /// `memfd_create` for a file that may be mapped executable, with the flags in the order of
    /// [`ExecRung`](crate::shared_memory::ExecRung).
    MemfdCreate,
    /// `userfaultfd` for faults of user mode.
    Userfaultfd,
    /// `ptrace`, on nobody.
    Ptrace,
}

/// What became of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It works.
    Allowed,
    /// It failed with this error, from the filter or from the kernel proper.
    Refused(Errno),
    /// It ends the process by this signal.
    Killed {
        /// Number of the signal, usually SIGSYS.
        signal: i32,
    },
    /// It could not be tried, and must be taken for deadly.
    Unknown(Untried),
}

impl Verdict {
    /// Whether the call can be made.
    pub const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed)
    }
}

/// Why a call could not be tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Untried {
    /// No child could be made.
    #[error("no child process could be made to try it in")]
    NoChild(#[source] Errno),
    /// Somebody else waited for the child.
    #[error("the child process that tried it was lost")]
    LostChild(#[source] Errno),
    /// The child's exit status is none that it gives.
    #[error("the child process that tried it ended with status {0:#x}")]
    OddStatus(i32),
}

/// Tries a call: at once where no filter is installed, else first in a child.
///
/// Filters belong to threads, so the verdict holds for the calling thread and for what it starts. A verdict from
/// a child is remembered as long as the thread gets no further filter.
pub fn probe(probe: Probe) -> Verdict {
    // Without /proc the mode is taken for unknown: prctl(PR_GET_SECCOMP) could itself be deadly.
    let status = Status::of_this_thread().ok();
    if status.as_ref().and_then(|status| status.seccomp) == Some(SeccompMode::Disabled) {
        return attempt(probe).map_or_else(Verdict::Refused, |()| Verdict::Allowed);
    }
    let key = status.and_then(|status| status.seccomp_filters).map(|filters| Key {
        thread: std::thread::current().id(),
        filters,
        probe,
    });
    if let Some(verdict) = key.and_then(remembered) {
        return verdict;
    }
    let verdict = attempt_in_child(probe);
    if let (Some(key), Verdict::Allowed | Verdict::Refused(_) | Verdict::Killed { .. }) = (key, verdict) {
        remember(key, verdict);
    }
    verdict
}

/// What a verdict depends on: filters can only be added, so their number names the set that a thread has.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    thread: ThreadId,
    filters: u64,
    probe: Probe,
}

/// Verdicts are few and asked for rarely: a list and a lock suffice. Bounded, for programs with endless threads.
///
/// The lock is only ever tried: in a forked child it may be held for ever by a thread that was not forked.
static VERDICTS: Mutex<Vec<(Key, Verdict)>> = Mutex::new(Vec::new());
const MOST_VERDICTS: usize = 64;

fn verdicts() -> Option<MutexGuard<'static, Vec<(Key, Verdict)>>> {
    match VERDICTS.try_lock() {
        Ok(verdicts) => Some(verdicts),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn remembered(key: Key) -> Option<Verdict> {
    verdicts()?.iter().find(|(known, _)| *known == key).map(|(_, verdict)| *verdict)
}

fn remember(key: Key, verdict: Verdict) {
    let Some(mut verdicts) = verdicts() else { return };
    if verdicts.len() == MOST_VERDICTS {
        verdicts.remove(0);
    }
    verdicts.push((key, verdict));
}

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
            // SAFETY: no thread has the number 0, so nobody is traced (`sys_ptrace` in `kernel/ptrace.c`).
            match answer(unsafe { libc::syscall(libc::SYS_ptrace, libc::PTRACE_SEIZE, 0_usize, 0_usize, 0_usize) }) {
                Err(Errno::SRCH) => Ok(()),
                other => other.map(drop),
            }
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
    // SAFETY: the descriptor was made by the caller a moment ago and nobody else knows it.
    answer(unsafe { libc::syscall(libc::SYS_close, descriptor) }).map(drop)
}

/// Turns what `libc::syscall` returned into a result.
fn answer(returned: i64) -> Result<i64, Errno> {
    if returned == -1 {
        // Reads errno, and allocates nothing.
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    Ok(returned)
}

/// What a child does before it exits.
#[derive(Clone, Copy)]
enum Errand {
    /// Forbids a core dump of itself, then tries the call.
    QuietlyTry(Probe),
    /// Only forbids a core dump: the control experiment for a child that was killed.
    Quietly,
    /// Tries the call; where even the control experiment dies.
    Try(Probe),
}

/// Tries a call in a child, whatever was found before. Uses neither the heap nor a lock.
pub(crate) fn attempt_in_child(probe: Probe) -> Verdict {
    match verdict(Errand::QuietlyTry(probe)) {
        Verdict::Killed { .. } if matches!(verdict(Errand::Quietly), Verdict::Killed { .. }) => {
            verdict(Errand::Try(probe))
        }
        verdict => verdict,
    }
}

/// Exit status for an error whose number does not fit into one.
const NUMBER_TOO_LARGE: i32 = 255;

fn verdict(errand: Errand) -> Verdict {
    // A handler of the program must not run in the child. Signals that the child may bring upon itself stay
    // open: a filter can leave forbidden calls to a SIGSYS handler of the program, which then belongs to the answer.
    let own = [libc::SIGSYS, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];
    let mask = own.into_iter().fold(u64::MAX, |mask, signal| mask & !(1 << (signal - 1)));
    let before = set_signal_mask(mask);
    // SAFETY: without CLONE_VM the child gets its own copy of the memory and goes on at this very place, on a
    // copy of this stack. It only makes system calls until it exits: no lock that another thread holds is touched.
    let child = answer(unsafe { libc::syscall(libc::SYS_clone, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) });
    if child == Ok(0) {
        run_and_exit(errand);
    }
    set_signal_mask(before);
    match child {
        Ok(child) => wait(child),
        Err(errno) => Verdict::Unknown(Untried::NoChild(errno)),
    }
}

fn run_and_exit(errand: Errand) -> ! {
    if let Errand::QuietlyTry(_) | Errand::Quietly = errand {
        // SAFETY: PR_SET_DUMPABLE takes a number and concerns only the child's own memory.
        unsafe { libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0_usize, 0_usize, 0_usize, 0_usize) };
    }
    let status = match errand {
        Errand::QuietlyTry(probe) | Errand::Try(probe) => match attempt(probe) {
            Ok(()) => 0,
            Err(errno) => errno.raw_os_error().min(NUMBER_TOO_LARGE),
        },
        Errand::Quietly => 0,
    };
    loop {
        // SAFETY: ends the child; nothing of it is used afterwards.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

fn wait(child: i64) -> Verdict {
    let mut status = 0_i32;
    let waited = loop {
        // SAFETY: `status` outlives the call, and the kernel writes no more than an int to it.
        match answer(unsafe { libc::syscall(libc::SYS_wait4, child, &raw mut status, libc::__WALL, 0_usize) }) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    match waited {
        Err(errno) => Verdict::Unknown(Untried::LostChild(errno)),
        Ok(_) if libc::WIFSIGNALED(status) => Verdict::Killed { signal: libc::WTERMSIG(status) },
        Ok(_) => match libc::WEXITSTATUS(status) {
            0 => Verdict::Allowed,
            NUMBER_TOO_LARGE => Verdict::Unknown(Untried::OddStatus(status)),
            errno => Verdict::Refused(Errno::from_raw_os_error(errno)),
        },
    }
}

/// Sets the calling thread's signal mask past libc, which keeps two real-time signals for itself, and gives the old one.
pub(crate) fn set_signal_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: both sets are 8 bytes long, as the last argument says, and outlive the call.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const mask, &raw mut before, size_of::<u64>())
    };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_answers_as_this_process_does() {
        for probe in [Probe::Membarrier, Probe::MemfdCreate, Probe::Userfaultfd, Probe::Ptrace] {
            let here = attempt(probe).map_or_else(Verdict::Refused, |()| Verdict::Allowed);
            assert_eq!(attempt_in_child(probe), here, "{probe:?}");
        }
    }

    #[test]
    fn a_child_leaves_the_signal_mask_alone() {
        let before = Status::of_this_thread().expect("/proc is mounted").blocked;
        attempt_in_child(Probe::Membarrier);
        assert_eq!(Status::of_this_thread().expect("/proc is mounted").blocked, before);
    }

    /// Gives the calling thread a filter that answers the call `number` with `action`.
    fn install(number: i64, action: u32) {
        let statement = |code: u32, jt, k| libc::sock_filter { code: code as u16, jt, jf: 0, k };
        let number = u32::try_from(number).expect("a small number");
        let mut program = [
            statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number),
            statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
            statement(libc::BPF_RET | libc::BPF_K, 0, action),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        rustix::thread::set_no_new_privs(true).expect("always allowed");
        let operation = libc::SECCOMP_SET_MODE_FILTER;
        // SAFETY: `filter` and the program it points to outlive the call, and the kernel only reads them.
        let done = unsafe { libc::syscall(libc::SYS_seccomp, operation, 0_usize, &raw const filter) };
        answer(done).expect("a valid filter");
    }

    /// Runs `under` on a thread of its own with such a filter.
    fn filtered(number: i64, action: u32, under: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                install(number, action);
                under();
            });
            thread.join().expect("the thread lives");
        });
    }

    #[test]
    fn a_filter_is_survived_and_understood() {
        let errno = |errno: Errno| libc::SECCOMP_RET_ERRNO | u32::try_from(errno.raw_os_error()).expect("positive");
        for (action, verdict) in [
            (errno(Errno::PERM), Verdict::Refused(Errno::PERM)),
            (errno(Errno::NOSYS), Verdict::Refused(Errno::NOSYS)),
            (libc::SECCOMP_RET_KILL_PROCESS, Verdict::Killed { signal: libc::SIGSYS }),
            (libc::SECCOMP_RET_KILL_THREAD, Verdict::Killed { signal: libc::SIGSYS }),
            (libc::SECCOMP_RET_TRAP, Verdict::Killed { signal: libc::SIGSYS }),
        ] {
            filtered(libc::SYS_membarrier, action, || {
                assert_eq!(probe(Probe::Membarrier), verdict);
                assert_eq!(probe(Probe::Membarrier), verdict, "remembered");
                assert_eq!(probe(Probe::MemfdCreate), Verdict::Allowed);
            });
        }
    }

    #[test]
    fn a_filter_that_kills_at_prctl_does_not_hide_the_answer() {
        filtered(libc::SYS_prctl, libc::SECCOMP_RET_KILL_PROCESS, || {
            assert_eq!(
                probe(Probe::Membarrier),
                attempt(Probe::Membarrier).map_or_else(Verdict::Refused, |()| Verdict::Allowed)
            );
        });
    }

    #[test]
    fn a_child_that_cannot_be_made_leaves_the_matter_open() {
        filtered(libc::SYS_clone, libc::SECCOMP_RET_ERRNO | 11, || {
            assert_eq!(probe(Probe::Membarrier), Verdict::Unknown(Untried::NoChild(Errno::AGAIN)));
        });
    }

    #[test]
    fn a_verdict_is_remembered_for_its_thread_and_filters() {
        let key = Key { thread: std::thread::current().id(), filters: 7, probe: Probe::Userfaultfd };
        let killed = Verdict::Killed { signal: libc::SIGSYS };
        // Other tests may hold the lock for a moment.
        let kept = (0..1000).any(|_| {
            remember(key, killed);
            std::thread::yield_now();
            remembered(key) == Some(killed)
        });
        assert!(kept);
        assert_eq!(remembered(Key { filters: 8, ..key }), None);
    }
}

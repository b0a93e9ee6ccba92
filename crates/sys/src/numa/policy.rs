//! The memory policy and the CPUs of the calling thread, as set by `numactl`, a cpuset, a batch system, or itself.
//!
//! Sources: `get_mempolicy(2)`, `mbind(2)`, `sched_setaffinity(2)`; `include/uapi/linux/mempolicy.h`.

use std::ptr;

use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::{NodeId, NodeSet};
use crate::last_errno;
use crate::memory::area::Area;
use crate::proc::status::Status;
use crate::seccomp::{self, Probe, Verdict};

/// `MPOL_*`.
mod mode {
    pub(super) const DEFAULT: i32 = 0;
    pub(super) const PREFERRED: i32 = 1;
    pub(super) const BIND: i32 = 2;
    pub(super) const INTERLEAVE: i32 = 3;
    pub(super) const LOCAL: i32 = 4;
    pub(super) const PREFERRED_MANY: i32 = 5;
    pub(super) const WEIGHTED_INTERLEAVE: i32 = 6;
    /// Flags that the mode may contain: `MPOL_F_STATIC_NODES`, `MPOL_F_RELATIVE_NODES`, `MPOL_F_NUMA_BALANCING`.
    pub(super) const FLAGS: i32 = 7 << 13;
}

/// `MPOL_F_MEMS_ALLOWED`.
const MEMS_ALLOWED: usize = 4;

/// Where memory comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// From the node of the CPU that touches it first, or near it: the default.
    Local,
    /// From one of these nodes, or others if those have none.
    Preferred(NodeSet),
    /// Only from these nodes.
    Bound(NodeSet),
    /// From these nodes in turn.
    Interleaved(NodeSet),
    /// By a policy that is newer than this program.
    Unknown {
        /// The kernel's number.
        mode: i32,
    },
}

/// Why the kernel was not asked, or its error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NumaError {
    /// A seccomp filter kills, or might kill, a process that asks.
    #[error("a seccomp filter forbids {call} ({verdict}); allow it")]
    Filtered {
        /// The system call.
        call: &'static str,
        /// What was found out about it.
        verdict: Verdict,
    },
    /// The kernel refused.
    #[error("{call} is refused")]
    Refused {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        #[source]
        errno: Errno,
    },
}

/// A system call about the nodes of memory. Containers often allow some and not the others, so each is tried alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    GetMempolicy,
    Mbind,
    MovePages,
}

impl Call {
    const ALL: [Self; 3] = [Self::GetMempolicy, Self::Mbind, Self::MovePages];

    const fn name(self) -> &'static str {
        match self {
            Self::GetMempolicy => "get_mempolicy",
            Self::Mbind => "mbind",
            Self::MovePages => "move_pages",
        }
    }

    /// Checks that the calling thread can make it without harm.
    pub(super) fn can_be_made(self) -> Result<(), NumaError> {
        let (call, probe) = match self {
            Self::GetMempolicy => (self.name(), Probe::GetMempolicy),
            Self::Mbind => (self.name(), Probe::Mbind),
            Self::MovePages => (self.name(), Probe::MovePages),
        };
        match seccomp::probe(probe) {
            Verdict::Allowed => Ok(()),
            Verdict::Refused(errno) => Err(NumaError::Refused { call, errno }),
            verdict => Err(NumaError::Filtered { call, verdict }),
        }
    }

    /// Returns the kernel's refusal of it.
    pub(super) fn refused(self) -> NumaError {
        NumaError::Refused { call: self.name(), errno: last_errno() }
    }
}

/// Checks that the calling thread can ask for policies (`get_mempolicy`), set them (`mbind`), and ask for places
/// (`move_pages`), all without harm. What needs only one of them works without the others.
///
/// # Errors
///
/// The first of them that cannot be made: [`NumaError::Filtered`], or the kernel's error: ENOSYS without NUMA, EPERM in
/// a container.
pub fn can_ask() -> Result<(), NumaError> {
    Call::ALL.into_iter().try_for_each(Call::can_be_made)
}

/// Returns the memory policy of the calling thread.
///
/// # Errors
///
/// `get_mempolicy` cannot be made, see [`can_ask`].
pub fn of_this_thread() -> Result<Policy, NumaError> {
    let mut mode = 0_i32;
    let nodes = get(&raw mut mode, 0)?;
    Ok(match mode & !mode::FLAGS {
        // A preferred policy without nodes prefers the local one.
        mode::PREFERRED | mode::PREFERRED_MANY if nodes.is_empty() => Policy::Local,
        mode::DEFAULT | mode::LOCAL => Policy::Local,
        mode::PREFERRED | mode::PREFERRED_MANY => Policy::Preferred(nodes),
        mode::BIND => Policy::Bound(nodes),
        mode::INTERLEAVE | mode::WEIGHTED_INTERLEAVE => Policy::Interleaved(nodes),
        mode => Policy::Unknown { mode },
    })
}

/// Returns the nodes from which the calling thread may have memory (`cpuset(7)`, `mems`). Where the call is forbidden,
/// as in most containers, `/proc/thread-self/status` tells the same.
///
/// # Errors
///
/// `get_mempolicy` cannot be made, see [`can_ask`], and the file does not tell.
pub fn allowed_nodes() -> Result<NodeSet, NumaError> {
    get(ptr::null_mut(), MEMS_ALLOWED).or_else(|error| {
        let told = Status::of_this_thread().ok().and_then(|status| status.mems_allowed);
        Ok(told.ok_or(error)?.into_iter().map(NodeId).collect())
    })
}

fn get(mode: *mut i32, flags: usize) -> Result<NodeSet, NumaError> {
    Call::GetMempolicy.can_be_made()?;
    let mut nodes = NodeSet::default();
    let mask = nodes.words_mut().as_mut_ptr();
    // SAFETY: the kernel writes a number to `mode`, a local of the caller or null, and to the mask only as many bits as
    // passed.
    let answer = unsafe { libc::syscall(libc::SYS_get_mempolicy, mode, mask, NodeSet::BITS, 0_usize, flags) };
    if answer == 0 { Ok(nodes) } else { Err(Call::GetMempolicy.refused()) }
}

/// Makes future pages of `area` come from `node`, or from others if it has none.
///
/// For shared memory the policy belongs to the object, and holds for all its mappings (`mm/shmem.c`,
/// `shmem_set_policy`). Only [`placement`](super::placement) tells where the pages really are.
///
/// # Errors
///
/// `mbind` cannot be made, see [`can_ask`]; EINVAL for a node that does not exist, has no memory, or is not among
/// [`allowed_nodes`].
pub fn prefer(area: &Area, node: NodeId) -> Result<(), NumaError> {
    Call::Mbind.can_be_made()?;
    let nodes: NodeSet = std::iter::once(node).collect();
    if nodes.is_empty() {
        // An empty mask would mean the local node.
        return Err(NumaError::Refused { call: Call::Mbind.name(), errno: Errno::INVAL });
    }
    let (start, mask) = (area.as_ptr(), nodes.words().as_ptr());
    // SAFETY: the area is mapped as long as it lives. The kernel reads the mask; a policy changes no contents.
    let answer = unsafe {
        libc::syscall(libc::SYS_mbind, start, area.len(), mode::PREFERRED as usize, mask, NodeSet::BITS, 0_usize)
    };
    if answer == 0 { Ok(()) } else { Err(Call::Mbind.refused()) }
}

/// Returns the CPUs that the calling thread may run on, ascending: as cpusets and `taskset` allow.
///
/// # Errors
///
/// The kernel's: EINVAL if it has more than 1024 CPUs.
pub fn affinity() -> Result<Vec<u32>, Errno> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).filter_map(|cpu| u32::try_from(cpu).ok()).collect())
}

/// Makes the calling thread run only on these CPUs.
///
/// # Errors
///
/// The kernel's: EINVAL if it may run on none of them.
pub fn set_affinity(cpus: &[u32]) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    cpus.iter().map(|&cpu| cpu as usize).filter(|&cpu| cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    rustix::thread::sched_setaffinity(None, &set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numa::placement;
    use crate::seccomp::tests::filtered;
    use crate::{Mapping, Protection, Source};

    /// Gives the calling thread a policy.
    fn set(mode: i32, nodes: &NodeSet) {
        let mask = nodes.words().as_ptr();
        // SAFETY: the kernel reads the mask; a policy changes no contents.
        let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, mask, NodeSet::BITS) };
        assert_eq!(answer, 0, "{}", last_errno());
    }

    #[test]
    fn policies_are_told_as_they_were_set() {
        if let Err(error) = can_ask() {
            return println!("skipped: {error}");
        }
        let allowed = allowed_nodes().unwrap();
        assert!(!allowed.is_empty());
        let first: NodeSet = allowed.iter().take(1).collect();
        let set = &set;
        std::thread::scope(|scope| {
            for (mode, expected) in [
                (mode::DEFAULT, Policy::Local),
                (mode::PREFERRED, Policy::Preferred(first)),
                (mode::BIND | 1 << 15, Policy::Bound(first)),
                (mode::INTERLEAVE, Policy::Interleaved(first)),
            ] {
                scope.spawn(move || {
                    set(mode, if mode == mode::DEFAULT { &NodeSet::NONE } else { &first });
                    assert_eq!(of_this_thread(), Ok(expected), "{mode:#x}");
                });
            }
        });
    }

    #[test]
    fn a_node_that_is_absent_is_refused() {
        if let Err(error) = can_ask() {
            return println!("skipped: {error}");
        }
        let allowed = allowed_nodes().unwrap();
        let page = rustix::param::page_size();
        let area = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).unwrap();
        prefer(&area, allowed.iter().next().unwrap()).unwrap();
        for absent in [1023, 1024, u32::MAX] {
            let refused = Err(NumaError::Refused { call: "mbind", errno: Errno::INVAL });
            assert_eq!(prefer(&area, NodeId(absent)), refused, "{absent}");
        }
    }

    /// As in a container with `CAP_SYS_NICE`, whose profile has no rule for `move_pages`.
    ///
    /// Fails on: a refused call that takes the others with it, or is told under another one's name.
    #[test]
    fn each_call_is_refused_for_itself_and_by_its_name() {
        let page = rustix::param::page_size();
        let area = Mapping::new(Source::Anonymous, page, Protection::ReadWrite, page).unwrap();
        let asked = || {
            let first = allowed_nodes().unwrap().iter().next().unwrap();
            [of_this_thread().map(drop), prefer(&area, first), placement::of_own_pages(area.range()).map(drop)]
        };
        if let Err(error) = can_ask() {
            return println!("skipped: {error}");
        }
        let numbers = [libc::SYS_get_mempolicy, libc::SYS_mbind, libc::SYS_move_pages];
        for (index, (number, call)) in numbers.into_iter().zip(Call::ALL).enumerate() {
            let mut expected = [Ok(()); 3];
            expected[index] = Err(NumaError::Refused { call: call.name(), errno: Errno::PERM });
            filtered(number, libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), || {
                assert_eq!(asked(), expected, "{call:?}");
                assert_eq!(can_ask(), expected[index]);
            });
            let verdict = Verdict::Killed { signal: libc::SIGSYS };
            expected[index] = Err(NumaError::Filtered { call: call.name(), verdict });
            filtered(number, libc::SECCOMP_RET_KILL_PROCESS, || assert_eq!(asked(), expected, "{call:?}"));
        }
    }

    /// As with Docker's profile, under which a cpuset holds all the same.
    ///
    /// Fails on: a container's process that takes all nodes of the machine for its own.
    #[test]
    fn the_nodes_of_a_cpuset_are_known_without_asking_the_kernel() {
        let told = Status::of_this_thread().unwrap().mems_allowed;
        let Ok(allowed) = get(ptr::null_mut(), MEMS_ALLOWED) else {
            return println!("skipped: {:?}", can_ask());
        };
        assert_eq!(told.map(|told| told.into_iter().map(NodeId).collect()), Some(allowed));
        for action in [libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(), libc::SECCOMP_RET_KILL_PROCESS] {
            filtered(libc::SYS_get_mempolicy, action, || assert_eq!(allowed_nodes(), Ok(allowed)));
        }
    }

    #[test]
    fn affinity_is_what_was_set() {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let last = affinity().unwrap().pop().unwrap();
                set_affinity(&[last]).unwrap();
                assert_eq!(affinity(), Ok(vec![last]));
                assert_eq!(set_affinity(&[]), Err(Errno::INVAL));
            });
        });
    }
}

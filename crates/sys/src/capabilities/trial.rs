//! The tries: each does the real thing once, on its own memory.

use std::time::Instant;

use rustix::io::Errno;

use super::{Confinement, Lack, ThpDisable, Trial};
use crate::Causes;
use crate::memory::area::Area;
use crate::memory::error::MapError;
use crate::memory::huge::{CollapseError, HUGE_PAGE, collapse};
use crate::memory::mapping::{Mapping, Protection, Source};
use crate::memory::shared_memory::{CreateError, Pages, SharedMemory};
use crate::numa::{Locating, locating, policy};
use crate::pages::pagemap::{Pagemap, ScanWay};
use crate::pages::smaps;
use crate::proc::{sysctl, thp};
use crate::proc_mem::ProcMem;
use crate::seccomp::{self, Part, Probe, Verdict};
use crate::threads::core_sync::{CoreSync, SyncPath};

const MARK: u8 = 0xc3;

pub(super) fn memory_object() -> Result<SharedMemory, Lack> {
    SharedMemory::create("palimpsest-probe", HUGE_PAGE, Pages::Base).map_err(|error| create_lack(&error))
}

pub(super) fn memory_policy() -> Trial {
    let found_by = match locating() {
        Locating::RestartableSequence => "one load",
        Locating::Getcpu => "getcpu",
    };
    let lack = |error| {
        Lack::new(Causes(&error).to_string(), "allow get_mempolicy, mbind and move_pages in the seccomp profile")
    };
    policy::can_ask().map(|()| format!("answered; the node of a thread is told by {found_by}")).map_err(lack)
}

fn create_lack(error: &CreateError) -> Lack {
    let fix = match error {
        CreateError::FileSizeLimit { .. } => "ulimit -f unlimited".to_owned(),
        CreateError::Descriptors { limit } => format!("ulimit -n {}", limit.saturating_mul(4)),
        CreateError::Refused(source) if source.raw_os_error() == Some(libc::ENFILE) => {
            "raise fs.file-max, or close files of other processes".to_owned()
        }
        CreateError::Allocate { .. } => "free some memory, or raise the cgroup's memory.max".to_owned(),
        // The length is a huge page's, so it fits.
        CreateError::Length { .. }
        | CreateError::Filtered { .. }
        | CreateError::Refused(_)
        | CreateError::Untried(_) => "allow memfd_create in the seccomp profile".to_owned(),
    };
    Lack::new(Causes(error).to_string(), fix)
}

fn map_lack(error: &MapError) -> Lack {
    let fix = match error {
        MapError::TooManyMappings { limit, .. } => format!("sysctl -w vm.max_map_count={}", limit * 4),
        MapError::LockedLimit { .. } => "ulimit -l unlimited".to_owned(),
        MapError::AddressSpaceLimit { .. } => "ulimit -v unlimited".to_owned(),
        // Nothing here asks for a place.
        MapError::Place { .. } | MapError::NoneNear { .. } | MapError::Kernel { .. } => {
            "allow PROT_EXEC mappings of a memfd (SELinux: file execute on tmpfs)".to_owned()
        }
    };
    Lack::new(Causes(error).to_string(), fix)
}

/// One object in two views.
pub(super) struct Views {
    write: Mapping,
    execute: Mapping,
}

pub(super) fn views(memory: &SharedMemory) -> Result<Views, Lack> {
    let map = |made: Result<Mapping, MapError>| made.map_err(|error| map_lack(&error));
    // Before the first access: otherwise an exhausted cgroup would answer with SIGBUS.
    memory.allocate(memory.len()).map_err(|error| create_lack(&error))?;
    Ok(Views {
        write: map(Mapping::unforked(Source::Shared(memory), memory.len(), HUGE_PAGE))?,
        execute: map(Mapping::new(Source::Shared(memory), memory.len(), Protection::ReadExecute, HUGE_PAGE))?,
    })
}

pub(super) fn dual_mapping(views: &Views) -> Trial {
    // SAFETY: the view is mapped writable, backed by allocated pages, and only this function knows its address.
    unsafe { views.write.as_ptr().write_volatile(MARK) };
    if first_byte(&views.execute) == MARK {
        Ok("what is written through one view is read through the other".to_owned())
    } else {
        Err(Lack::new("a byte written through one view of a memfd did not show in the other", "use a Linux kernel"))
    }
}

fn first_byte(area: &Area) -> u8 {
    // SAFETY: callers pass readable mappings of at least a page that nobody else writes to.
    unsafe { area.as_ptr().read_volatile() }
}

pub(super) fn huge_text(views: &Views, confinement: &Confinement) -> Trial {
    huge(&views.execute, |error| collapse_lack(error, confinement, thp::shmem_enabled().ok()))
}

pub(super) fn anonymous_huge(confinement: &Confinement) -> Trial {
    let mapping = Mapping::new(Source::Anonymous, HUGE_PAGE, Protection::ReadWrite, HUGE_PAGE);
    let mapping = mapping.map_err(|error| map_lack(&error))?;
    // SAFETY: the page is mapped writable and only this function knows its address.
    unsafe { mapping.as_ptr().write_volatile(MARK) };
    huge(&mapping, |error| collapse_lack(error, confinement, None))
}

fn huge(area: &Area, lack: impl FnOnce(&CollapseError) -> Lack) -> Trial {
    let start = Instant::now();
    collapse(area).map_err(|error| lack(&error))?;
    let millis = start.elapsed().as_secs_f64() * 1e3;
    match smaps::pmd_mapped_bytes(area.range()) {
        Ok(bytes) if bytes == area.len() => Ok(format!("MADV_COLLAPSE took {millis:.1} ms; smaps shows it PMD-mapped")),
        Ok(bytes) => Err(Lack::new(
            format!("MADV_COLLAPSE succeeded, but smaps shows only {bytes} of {} bytes PMD-mapped", area.len()),
            "use Linux 6.1 or later",
        )),
        Err(_) => Ok(format!("MADV_COLLAPSE took {millis:.1} ms; without /proc its effect cannot be seen")),
    }
}

fn collapse_lack(error: &CollapseError, confinement: &Confinement, shmem: Option<thp::Shared>) -> Lack {
    let why = Causes(error).to_string();
    match error {
        CollapseError::PageSize { .. } => Lack::new(why, "use a kernel with 4 KiB pages"),
        CollapseError::NoMemory(_) => Lack::new(why, "echo 1 > /proc/sys/vm/compact_memory"),
        CollapseError::Busy(_) => Lack::new(why, "try again"),
        CollapseError::Ineligible(_) if confinement.thp_disable == ThpDisable::On => {
            Lack::new("PR_SET_THP_DISABLE is set for this process", "start it without prctl(PR_SET_THP_DISABLE, 1)")
        }
        CollapseError::Ineligible(_) if shmem == Some(thp::Shared::Deny) => Lack::new(
            "shmem_enabled is \"deny\", which MADV_COLLAPSE respects",
            "echo never > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        CollapseError::Ineligible(_) => {
            Lack::new(why, "use Linux 6.1 or later, built with CONFIG_TRANSPARENT_HUGEPAGE")
        }
    }
}

pub(super) fn huge_pool() -> Trial {
    const FIX: &str = "sysctl -w vm.nr_hugepages=64";
    let free = sysctl::free_huge_pages_2_mib();
    if let Ok(0) = free {
        return Err(Lack::new("the pool has no free 2 MiB page", FIX));
    }
    let memory = SharedMemory::create("palimpsest-probe", HUGE_PAGE, Pages::Hugetlb);
    memory.and_then(|memory| memory.allocate(HUGE_PAGE)).map_err(|error| Lack::new(Causes(&error).to_string(), FIX))?;
    Ok(free.map_or_else(|_| "a 2 MiB page was had".to_owned(), |free| format!("{free} free pages of 2 MiB")))
}

pub(super) fn proc_mem() -> Trial {
    let page = rustix::param::page_size();
    let mapping =
        Mapping::new(Source::Anonymous, page, Protection::ReadExecute, page).map_err(|error| map_lack(&error))?;
    let lack =
        |error| Lack::new(Causes(&error).to_string(), "mount /proc, and boot without proc_mem.force_override=never");
    let memory = ProcMem::open().map_err(lack)?;
    // SAFETY: 1. the page was mapped above and nobody has a reference to it; 2. nobody executes or reads it meanwhile.
    unsafe { memory.write(mapping.address(), &[MARK]) }.map_err(lack)?;
    if first_byte(&mapping) == MARK {
        Ok("a read-execute page was written".to_owned())
    } else {
        Err(Lack::new("a write through /proc/self/mem had no effect", "use a Linux kernel"))
    }
}

pub(super) fn core_sync() -> Result<SyncPath, Lack> {
    const FIX: &str = "allow membarrier in the seccomp profile, or mount /proc";
    let sync = CoreSync::new().map_err(|error| Lack::new(Causes(&error).to_string(), FIX))?;
    sync.sync().map_err(|error| Lack::new(Causes(&error).to_string(), FIX))?;
    Ok(sync.path())
}

pub(super) fn membarrier() -> Trial {
    verdict("membarrier", Probe::Membarrier).map(|()| "membarrier works for PRIVATE_EXPEDITED_SYNC_CORE".to_owned())
}

pub(super) fn freeze_calls() -> Result<(), Lack> {
    seccomp::probe_parts(&[Part::Service, Part::Freezing]).or_else(|(call, verdict)| judged(&call.to_string(), verdict))
}

pub(super) fn page_scan() -> Result<ScanWay, Lack> {
    match Pagemap::open() {
        Ok(mut pagemap) => {
            let way = pagemap.way();
            pagemap.close();
            Ok(way)
        }
        Err(error) => Err(Lack::new(Causes(&error).to_string(), "mount -t proc proc /proc")),
    }
}

fn verdict(call: &str, probe: Probe) -> Result<(), Lack> {
    judged(call, seccomp::probe(probe))
}

fn judged(call: &str, verdict: Verdict) -> Result<(), Lack> {
    let why = match verdict {
        Verdict::Allowed => return Ok(()),
        Verdict::Refused(Errno::INVAL) => {
            return Err(Lack::new(format!("this kernel does not know {call} as it is needed"), "use a newer kernel"));
        }
        Verdict::Refused(errno) => format!("{call} fails: {}", std::io::Error::from(errno)),
        Verdict::Killed { signal } => format!("a seccomp filter kills {call} with signal {signal}"),
        Verdict::Unknown(untried) => Causes(&untried).to_string(),
    };
    Err(Lack::new(why, format!("allow {call} in the seccomp profile")))
}

/// `struct uffdio_api` (`include/uapi/linux/userfaultfd.h`).
#[repr(C)]
struct UffdioApi {
    api: u64,
    features: u64,
    ioctls: u64,
}

const UFFD_API: u64 = 0xaa;
/// `_IOWR(0xaa, 0x3f, struct uffdio_api)`
const UFFDIO_API: libc::Ioctl = 0xc018_aa3f_u32 as libc::Ioctl;
const UFFD_FEATURES: [(u64, &str); 4] = [
    (1 << 0, "write protection"),
    (1 << 12, "of shared memory"),
    (1 << 13, "of absent pages"),
    (1 << 15, "asynchronous"),
];

pub(super) fn userfaultfd() -> Trial {
    use std::os::fd::AsRawFd;

    verdict("userfaultfd", Probe::Userfaultfd)?;
    let lack = |errno: Errno| {
        Lack::new(
            format!("userfaultfd fails: {}", std::io::Error::from(errno)),
            "sysctl -w vm.unprivileged_userfaultfd=1",
        )
    };
    let flags = rustix::mm::UserfaultfdFlags::CLOEXEC | rustix::mm::UserfaultfdFlags::from_bits_retain(1);
    // SAFETY: a descriptor without registered ranges changes nothing about memory.
    let descriptor = unsafe { rustix::mm::userfaultfd(flags) }.map_err(lack)?;
    let mut api = UffdioApi { api: UFFD_API, features: 0, ioctls: 0 };
    // SAFETY: UFFDIO_API reads and writes one `uffdio_api`, which outlives the call.
    if unsafe { libc::ioctl(descriptor.as_raw_fd(), UFFDIO_API, &raw mut api) } != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Lack::new(format!("UFFDIO_API fails: {error}"), "use a newer kernel"));
    }
    let names: Vec<_> =
        UFFD_FEATURES.iter().filter(|(bit, _)| api.features & bit != 0).map(|(_, name)| *name).collect();
    Ok(if names.is_empty() { "no write protection".to_owned() } else { names.join(", ") })
}

pub(super) fn memory_deny_write_execute() -> Option<bool> {
    // SAFETY: PR_GET_MDWE takes no pointer and only reads the process's flags.
    match unsafe { libc::prctl(libc::PR_GET_MDWE, 0_usize, 0_usize, 0_usize, 0_usize) } {
        ..0 => None,
        bits => Some(bits & 1 != 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_exhausted_is_named_in_the_fix() {
        let fix = |error: CreateError| create_lack(&error).fix;
        assert_eq!(fix(CreateError::Descriptors { limit: 16 }), "ulimit -n 64");
        assert!(fix(CreateError::Refused(Errno::NFILE.into())).contains("fs.file-max"));
        assert!(fix(CreateError::Refused(Errno::PERM.into())).contains("memfd_create"));
        assert_eq!(map_lack(&MapError::LockedLimit { len: HUGE_PAGE, limit: 65536 }).fix, "ulimit -l unlimited");
    }
}

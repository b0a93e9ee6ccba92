//! Tries what this machine, kernel, container and user allow.
//!
//! [`Capabilities::probe`] collects facts; [`Capabilities::features`], [`Capabilities::findings`] and
//! [`Capabilities::choice`] judge them without touching the system, so that reports can be tested with invented facts.

mod choice;
mod feature;
mod finding;
mod trial;

pub use crate::proc::thp::ThpDisable;
pub use choice::{Choice, TextBacking};
pub use feature::{Feature, Grade, Standing, Verdict};
pub use finding::{Finding, Status, Subject};

use rustix::process::Resource;

use crate::Causes;
use crate::memory::file::ExecRung;
use crate::pages::maps;
use crate::pages::pagemap::ScanWay;
use crate::proc::status::{SeccompMode, Status as ProcStatus};
use crate::proc::{ProcError, node, sysctl, thp};
use crate::threads::core_sync::SyncPath;

/// A mechanism that is not available here, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// What was found.
    pub why: String,
    /// What to do about it, in one line.
    pub fix: String,
}

impl Lack {
    fn new(why: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { why: why.into(), fix: fix.into() }
    }
}

/// The result of a try: a measured detail, or what is lacking.
pub type Trial = Result<String, Lack>;

/// Facts that need no try.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Machine {
    /// The kernel's release, as `uname -r` prints it.
    pub kernel: String,
    /// Instruction set that this program was built for.
    pub architecture: &'static str,
    /// Bytes of a base page.
    pub page_size: usize,
    /// Bytes of a transparent huge page; `None` if the kernel has none or `/sys` is not mounted.
    pub huge_page_size: Option<usize>,
    /// Numbers of the NUMA nodes.
    pub numa_nodes: Vec<u32>,
}

/// Prohibitions for the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Confinement {
    /// Whether system calls are filtered; `None` without `/proc`.
    pub seccomp: Option<SeccompMode>,
    /// Whether the kernel refuses writable and executable memory (`PR_SET_MDWE`); `None` before Linux 6.3.
    pub mdwe: Option<bool>,
    /// Whether transparent huge pages are off for this process.
    pub thp_disable: ThpDisable,
    /// The SELinux domain of this process, if SELinux enforces.
    pub selinux_domain: Option<String>,
}

/// Resource limits, the soft ones unless they say otherwise; `None` means unlimited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// `RLIMIT_AS`, in bytes.
    pub address_space: Option<u64>,
    /// `RLIMIT_FSIZE`, in bytes.
    pub file_size: Option<u64>,
    /// The hard `RLIMIT_FSIZE`, in bytes: the soft one can be raised as far.
    pub most_file_size: Option<u64>,
    /// `RLIMIT_MEMLOCK`, in bytes.
    pub locked_memory: Option<u64>,
    /// `RLIMIT_NOFILE`, in descriptors.
    pub open_files: Option<u64>,
}

/// The number of this process's mappings, and the kernel's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapCount {
    /// Mappings now.
    pub used: u64,
    /// `vm.max_map_count`.
    pub limit: u64,
}

/// The number of this process's descriptors, and its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DescriptorCount {
    /// Open descriptors now.
    pub used: u64,
    /// The soft `RLIMIT_NOFILE`.
    pub limit: u64,
}

/// All facts that Palimpsest considers before it chooses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capabilities {
    /// Kernel and page sizes.
    pub machine: Machine,
    /// Whether `/proc/self` can be read.
    pub proc: Trial,
    /// A memory object of one huge page for executable mappings, and the flag that it needed.
    pub memory_object: Result<ExecRung, Lack>,
    /// One object mapped twice, for writing and for executing.
    pub dual_mapping: Trial,
    /// `MADV_COLLAPSE` of the executable view.
    pub huge_text: Trial,
    /// A 2 MiB page from the hugetlb pool.
    pub huge_pool: Trial,
    /// `MADV_COLLAPSE` of private memory.
    pub anonymous_huge: Trial,
    /// Writing to a read-execute page through `/proc/self/mem`.
    pub proc_mem: Trial,
    /// `membarrier(PRIVATE_EXPEDITED_SYNC_CORE)`.
    pub membarrier: Trial,
    /// The way to synchronise cores that works.
    pub core_sync: Result<SyncPath, Lack>,
    /// `userfaultfd` and its features.
    pub userfaultfd: Trial,
    /// Memory policies: requesting a node's memory, and asking where pages are.
    pub memory_policy: Trial,
    /// Prohibitions.
    pub confinement: Confinement,
    /// Resource limits.
    pub limits: Limits,
    /// Use of mappings.
    pub mappings: Result<MapCount, Lack>,
    /// Use of descriptors; `None` if there is no limit, or no `/proc` to count them.
    pub descriptors: Option<DescriptorCount>,
    /// The system calls of a freeze, tried if a filter could answer them.
    pub freeze_calls: Result<(), Lack>,
    /// How written pages are found.
    pub page_scan: Result<ScanWay, Lack>,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Result<i64, Lack>,
    /// Settings of transparent huge pages, for people to read.
    pub thp_settings: Trial,
}

impl Capabilities {
    /// Tries everything, in a few tens of milliseconds. Uses up to 4 MiB of memory during the call. Afterwards the
    /// process is registered for `membarrier` or, if that is refused, has the handler of the signal broadcast.
    pub fn probe() -> Self {
        let confinement = confinement();
        // Counted before any is opened here.
        let descriptors = descriptors();
        let memory = trial::memory_object();
        let memory_object = memory.as_ref().map(|memory| memory.exec()).map_err(Lack::clone);
        let needs_it = |lack: &Lack| Lack::new("it needs the memory object above", lack.fix.clone());
        let views = memory.as_ref().map_err(needs_it).and_then(trial::views);
        let dual_mapping = views.as_ref().map_err(Lack::clone).and_then(trial::dual_mapping);
        let huge_text = views.as_ref().map_err(Lack::clone).and_then(|views| trial::huge_text(views, &confinement));
        Self {
            machine: machine(),
            proc: ProcStatus::of_process().map(|_| "mounted".to_owned()).map_err(|error| proc_lack(&error)),
            memory_object,
            dual_mapping,
            huge_text,
            huge_pool: trial::huge_pool(),
            anonymous_huge: trial::anonymous_huge(&confinement),
            proc_mem: trial::proc_mem(),
            membarrier: trial::membarrier(),
            core_sync: trial::core_sync(),
            userfaultfd: trial::userfaultfd(),
            memory_policy: trial::memory_policy(),
            confinement,
            limits: limits(),
            mappings: mappings().map_err(|error| proc_lack(&error)),
            descriptors,
            freeze_calls: trial::freeze_calls(),
            page_scan: trial::page_scan(),
            perf_event_paranoid: sysctl::perf_event_paranoid().map_err(|error| proc_lack(&error)),
            thp_settings: thp_settings().map_err(|error| proc_lack(&error)),
        }
    }
}

fn machine() -> Machine {
    Machine {
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        architecture: std::env::consts::ARCH,
        page_size: rustix::param::page_size(),
        huge_page_size: thp::hpage_pmd_size().ok(),
        // A kernel without NUMA, and a container without /sys, count as one node.
        numa_nodes: node::online().unwrap_or_else(|_| vec![0]),
    }
}

fn confinement() -> Confinement {
    let enforcing = std::fs::read("/sys/fs/selinux/enforce").is_ok_and(|text| text.trim_ascii() == b"1");
    let domain = || std::fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
    Confinement {
        seccomp: ProcStatus::of_this_thread().ok().and_then(|status| status.seccomp),
        mdwe: trial::memory_deny_write_execute(),
        thp_disable: thp::disabled_here(),
        selinux_domain: enforcing.then(|| domain().trim_matches(['\0', '\n']).to_owned()),
    }
}

fn limits() -> Limits {
    let soft = |resource| rustix::process::getrlimit(resource).current;
    Limits {
        address_space: soft(Resource::As),
        file_size: soft(Resource::Fsize),
        most_file_size: rustix::process::getrlimit(Resource::Fsize).maximum,
        locked_memory: soft(Resource::Memlock),
        open_files: soft(Resource::Nofile),
    }
}

fn mappings() -> Result<MapCount, ProcError> {
    Ok(MapCount { used: maps::count()? as u64, limit: sysctl::max_map_count()? })
}

fn descriptors() -> Option<DescriptorCount> {
    let limit = rustix::process::getrlimit(Resource::Nofile).current?;
    // One of them is the list itself.
    let used = std::fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1) as u64;
    Some(DescriptorCount { used, limit })
}

fn thp_settings() -> Result<String, ProcError> {
    Ok(format!("enabled: {}; shmem_enabled: {}", thp::enabled()?, thp::shmem_enabled()?))
}

fn proc_lack(error: &ProcError) -> Lack {
    let fix = if error.is_absent() {
        "mount -t proc proc /proc; mount -t sysfs sysfs /sys; or use a kernel that has the setting"
    } else {
        "allow this user to read it"
    };
    Lack::new(Causes(error).to_string(), fix)
}

#[cfg(test)]
mod tests;

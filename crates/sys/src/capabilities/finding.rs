//! The judgement of each fact: best, replaced, or missing.

use std::fmt;

use super::{Capabilities, Lack, TextBacking, ThpDisable, Trial};
use crate::memory::file::ExecRung;
use crate::memory::huge::HUGE_PAGE;
use crate::proc::status::SeccompMode;

/// The subject of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "kebab-case"))]
pub enum Subject {
    /// An executable memory object (memfd).
    MemoryObject,
    /// Two views of one object.
    DualMapping,
    /// Huge pages under executable code.
    HugeText,
    /// Huge pages of the hugetlb pool.
    HugePool,
    /// Huge pages under private memory.
    AnonymousHuge,
    /// Settings of transparent huge pages.
    ThpSettings,
    /// Writing of code through `/proc/self/mem`.
    ProcMem,
    /// Synchronisation of cores.
    CoreSync,
    /// `/proc`.
    Proc,
    /// Faults handled in user space.
    Userfaultfd,
    /// NUMA nodes.
    Numa,
    /// Memory of a node, and where pages are.
    MemoryPolicy,
    /// `PR_SET_MDWE`.
    Mdwe,
    /// System call filters.
    Seccomp,
    /// SELinux.
    Selinux,
    /// `RLIMIT_AS`.
    AddressSpace,
    /// `RLIMIT_FSIZE`.
    FileSize,
    /// `RLIMIT_MEMLOCK`.
    LockedMemory,
    /// `RLIMIT_NOFILE`.
    OpenFiles,
    /// `vm.max_map_count`.
    Mappings,
    /// Hardware counters.
    PerfEvents,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::MemoryObject => "memory-object",
            Self::DualMapping => "dual-mapping",
            Self::HugeText => "huge-text",
            Self::HugePool => "huge-pool",
            Self::AnonymousHuge => "anonymous-huge",
            Self::ThpSettings => "thp-settings",
            Self::ProcMem => "proc-mem",
            Self::CoreSync => "core-sync",
            Self::Proc => "proc",
            Self::Userfaultfd => "userfaultfd",
            Self::Numa => "numa",
            Self::MemoryPolicy => "memory-policy",
            Self::Mdwe => "mdwe",
            Self::Seccomp => "seccomp",
            Self::Selinux => "selinux",
            Self::AddressSpace => "address-space",
            Self::FileSize => "file-size",
            Self::LockedMemory => "locked-memory",
            Self::OpenFiles => "open-files",
            Self::Mappings => "mappings",
            Self::PerfEvents => "perf-events",
        })
    }
}

/// How good something is.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(tag = "status", rename_all = "kebab-case"))]
pub enum Status {
    /// As good as it can be.
    Best,
    /// Missing, but nothing here needs it.
    Unneeded {
        /// What was found.
        why: String,
    },
    /// Something else is used.
    Fallback {
        /// What is used.
        uses: String,
        /// What was found.
        why: String,
        /// How to get the better one, in one line.
        fix: String,
    },
    /// Nothing can replace it.
    Missing {
        /// What was found.
        why: String,
        /// How to get it, in one line.
        fix: String,
    },
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Finding {
    /// The subject.
    pub subject: Subject,
    /// The measured value, for people to read.
    pub measured: String,
    /// How good it is.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub status: Status,
}

/// With less address space than this, regions are smaller: one takes 1 GiB, besides alignment and the program.
const ROOMY_ADDRESS_SPACE: u64 = 4 << 30;
/// Mappings that a full region of packs needs: two views of each of 512 packs, and room for the program.
const ROOMY_MAPPINGS: u64 = 2048;
/// With higher values a process may not even count its own user-space events.
const PERF_USER_SPACE: i64 = 2;

impl Capabilities {
    /// Returns every fact with its judgement, the most important first.
    pub fn findings(&self) -> Vec<Finding> {
        vec![
            self.memory_object(),
            self.text(Subject::DualMapping, &self.dual_mapping),
            self.text(Subject::HugeText, &self.huge_text),
            self.spare(Subject::HugePool, &self.huge_pool, TextBacking::HugetlbMemfd),
            self.spare(Subject::ProcMem, &self.proc_mem, TextBacking::ProcMem),
            self.spare(Subject::AnonymousHuge, &self.anonymous_huge, TextBacking::ProcMem),
            self.thp_settings(),
            self.core_sync(),
            fallback(Subject::Proc, &self.proc, "no check that huge pages are really mapped"),
            unneeded(Subject::Userfaultfd, &self.userfaultfd),
            best(Subject::Numa, self.numa()),
            self.memory_policy(),
            best(Subject::Mdwe, self.mdwe()),
            best(Subject::Seccomp, self.seccomp()),
            best(Subject::Selinux, self.selinux()),
            self.address_space(),
            self.file_size(),
            best(Subject::LockedMemory, limit(self.limits.locked_memory, "bytes")),
            best(Subject::OpenFiles, limit(self.limits.open_files, "descriptors")),
            self.mappings(),
            self.perf_events(),
        ]
    }

    fn memory_object(&self) -> Finding {
        match &self.memory_object {
            Ok(ExecRung::Exec) => best(Subject::MemoryObject, "memfd_create grants MFD_EXEC"),
            Ok(ExecRung::Legacy) => {
                best(Subject::MemoryObject, "memfd_create grants it (before Linux 6.3, no flag needed)")
            }
            Ok(ExecRung::NoexecSeal) => Finding {
                subject: Subject::MemoryObject,
                measured: "memfd_create refuses MFD_EXEC".to_owned(),
                status: Status::Fallback {
                    uses: "MFD_NOEXEC_SEAL, which can be mapped executable all the same".to_owned(),
                    why: "vm.memfd_noexec is 2 in this pid name space".to_owned(),
                    fix: "sysctl -w vm.memfd_noexec=1".to_owned(),
                },
            },
            Err(lack) => self.text(Subject::MemoryObject, &Err(lack.clone())),
        }
    }

    /// Judges something that the best backing needs.
    fn text(&self, subject: Subject, trial: &Trial) -> Finding {
        judge(subject, trial, |lack| match self.choice().backing {
            Some(backing) => replaced(lack, format!("{backing}{}", pages(backing, self.anonymous_huge.is_ok()))),
            None => Status::Missing { why: lack.why, fix: lack.fix },
        })
    }

    /// Judges something that only the backing `needed_by` needs.
    fn spare(&self, subject: Subject, trial: &Trial, needed_by: TextBacking) -> Finding {
        judge(subject, trial, |lack| match self.choice().backing {
            Some(backing) if backing < needed_by => Status::Unneeded { why: lack.why },
            Some(backing) => replaced(lack, format!("{backing}{}", pages(backing, self.anonymous_huge.is_ok()))),
            None => Status::Missing { why: lack.why, fix: lack.fix },
        })
    }

    fn core_sync(&self) -> Finding {
        judge(Subject::CoreSync, &self.membarrier, |lack| match &self.core_sync {
            Ok(_) => replaced(lack, "a signal to every thread, slower".to_owned()),
            Err(both) => Status::Missing { why: both.why.clone(), fix: both.fix.clone() },
        })
    }

    fn thp_settings(&self) -> Finding {
        let measured = self.thp_settings.clone().unwrap_or_else(|lack| lack.why);
        let status = match self.confinement.thp_disable {
            ThpDisable::Off | ThpDisable::ExceptAdvised => Status::Best,
            ThpDisable::On => Status::Fallback {
                uses: "base pages".to_owned(),
                why: "PR_SET_THP_DISABLE is set for this process".to_owned(),
                fix: "start it without prctl(PR_SET_THP_DISABLE, 1)".to_owned(),
            },
        };
        Finding { subject: Subject::ThpSettings, measured, status }
    }

    fn numa(&self) -> String {
        match self.machine.numa_nodes.len() {
            1 => "1 node".to_owned(),
            nodes => format!("{nodes} nodes"),
        }
    }

    /// Judges memory policies. With one node there is nothing to choose.
    fn memory_policy(&self) -> Finding {
        match self.machine.numa_nodes.len() {
            0 | 1 => unneeded(Subject::MemoryPolicy, &self.memory_policy),
            _ => fallback(
                Subject::MemoryPolicy,
                &self.memory_policy,
                "copies lie where the kernel puts them, unverified",
            ),
        }
    }

    fn mdwe(&self) -> &'static str {
        match self.confinement.mdwe {
            Some(true) => "set; packs never need memory that is writable and executable",
            Some(false) => "not set; packs would work under it",
            None => "unknown to this kernel",
        }
    }

    fn seccomp(&self) -> &'static str {
        match self.confinement.seccomp {
            Some(SeccompMode::Disabled) => "no filter",
            Some(SeccompMode::Strict) => "strict",
            Some(SeccompMode::Filter) => "filtered; each call above was first tried in a child",
            None => "unknown without /proc; each call above was first tried in a child",
        }
    }

    fn selinux(&self) -> String {
        match &self.confinement.selinux_domain {
            Some(domain) => format!("enforcing on {domain}; memfd packs need no execmem, proc-mem packs do"),
            None => "not enforcing".to_owned(),
        }
    }

    fn address_space(&self) -> Finding {
        let measured = limit(self.limits.address_space, "bytes");
        let status = match self.limits.address_space {
            Some(bytes) if bytes < ROOMY_ADDRESS_SPACE => Status::Fallback {
                uses: "a smaller region for code".to_owned(),
                why: format!("RLIMIT_AS is {bytes} bytes, and a region reserves 1 GiB"),
                fix: "ulimit -v unlimited".to_owned(),
            },
            _ => Status::Best,
        };
        Finding { subject: Subject::AddressSpace, measured, status }
    }

    fn file_size(&self) -> Finding {
        let measured = limit(self.limits.file_size, "bytes");
        match self.limits.file_size {
            // If the limit matters, the memory object was refused because of it; this line names the limit.
            Some(bytes) if bytes < HUGE_PAGE as u64 => {
                let why = format!("RLIMIT_FSIZE is {bytes} bytes, less than a pack");
                let lack = Lack::new(why, "ulimit -f unlimited");
                let finding = self.text(Subject::FileSize, &Err(lack));
                Finding { measured, ..finding }
            }
            _ => best(Subject::FileSize, measured),
        }
    }

    fn mappings(&self) -> Finding {
        match &self.mappings {
            Err(lack) => unneeded(Subject::Mappings, &Err(lack.clone())),
            Ok(count) => {
                let measured = format!("{} of {}", count.used, count.limit);
                let status = if count.limit.saturating_sub(count.used) < ROOMY_MAPPINGS {
                    Status::Fallback {
                        uses: "what is left".to_owned(),
                        why: format!("{measured} mappings are in use, and a full region of packs takes 1024"),
                        fix: format!("sysctl -w vm.max_map_count={}", count.limit.saturating_mul(4)),
                    }
                } else {
                    Status::Best
                };
                Finding { subject: Subject::Mappings, measured, status }
            }
        }
    }

    fn perf_events(&self) -> Finding {
        match &self.perf_event_paranoid {
            Err(lack) => unneeded(Subject::PerfEvents, &Err(lack.clone())),
            Ok(level) => {
                let measured = format!("kernel.perf_event_paranoid is {level}");
                let status = if *level > PERF_USER_SPACE {
                    Status::Fallback {
                        uses: "times alone; no cache and TLB misses in the bench".to_owned(),
                        why: format!("{measured}, which leaves counters to privileged users"),
                        fix: format!("sysctl -w kernel.perf_event_paranoid={PERF_USER_SPACE}"),
                    }
                } else {
                    Status::Best
                };
                Finding { subject: Subject::PerfEvents, measured, status }
            }
        }
    }
}

fn judge(subject: Subject, trial: &Trial, status: impl FnOnce(Lack) -> Status) -> Finding {
    match trial {
        Ok(measured) => best(subject, measured.clone()),
        Err(lack) => Finding { subject, measured: "not to be had".to_owned(), status: status(lack.clone()) },
    }
}

fn best(subject: Subject, measured: impl Into<String>) -> Finding {
    Finding { subject, measured: measured.into(), status: Status::Best }
}

fn fallback(subject: Subject, trial: &Trial, uses: &str) -> Finding {
    judge(subject, trial, |lack| replaced(lack, uses.to_owned()))
}

fn unneeded(subject: Subject, trial: &Trial) -> Finding {
    judge(subject, trial, |lack| Status::Unneeded { why: lack.why })
}

fn replaced(lack: Lack, uses: String) -> Status {
    Status::Fallback { uses, why: lack.why, fix: lack.fix }
}

fn pages(backing: TextBacking, anonymous_huge: bool) -> &'static str {
    match backing {
        TextBacking::CollapsedMemfd | TextBacking::HugetlbMemfd => " (huge pages)",
        TextBacking::ProcMem if anonymous_huge => " (huge pages)",
        TextBacking::SmallMemfd | TextBacking::ProcMem => " (base pages: more iTLB misses)",
    }
}

fn limit(limit: Option<u64>, unit: &str) -> String {
    limit.map_or_else(|| "unlimited".to_owned(), |limit| format!("{limit} {unit}"))
}

//! Where the memory of a process is, mapping by mapping.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use palimpsest_numa::NodeId;
use palimpsest_sys::numa::numa_maps::{self, NumaMap, Shown};
use palimpsest_sys::numa::placement::{self, Place};
use palimpsest_sys::numa::policy::NumaError;
use palimpsest_sys::pages::maps::{self, MapEntry, Permissions};
use palimpsest_sys::proc::{ParseError, ProcError};
use rustix::process::Pid;
use serde::Serialize;

use crate::hidden;

/// What a mapping is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// What is executed.
    Text,
    /// Constants, tables and other parts of files that are not written.
    Files,
    /// Copies that `palimpsest-numa` has made.
    Copies,
    /// Programs in packs. Those of replicated packs prefer a node, and have a mapping on each.
    Packs,
    /// Variables of programs and libraries: parts of files that are written.
    Data,
    /// The heap of `brk`.
    Heap,
    /// The stack of the main thread.
    Stack,
    /// Memory without a file: heaps of allocators, stacks of threads.
    Anonymous,
    /// Memory files and shared memory.
    Shared,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Files => "files",
            Self::Copies => "copies",
            Self::Packs => "packs",
            Self::Data => "data",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Anonymous => "anonymous",
            Self::Shared => "shared",
        }
    }

    fn of(map: &MapEntry, shown: &Shown) -> Self {
        let name = match shown {
            Shown::Heap => return Self::Heap,
            Shown::Stack => return Self::Stack,
            Shown::File(path) => path.as_path(),
            Shown::Anonymous => Path::new(""),
        };
        let is_memory = name.starts_with("/dev/shm") || name.to_string_lossy().starts_with("/memfd:");
        let is_of_ours = |kind: &str| name.to_string_lossy().starts_with(&format!("/memfd:palimpsest-{kind}"));
        if is_of_ours("constant") {
            Self::Copies
        } else if ["code", "data"].iter().any(|kind| is_of_ours(kind)) {
            Self::Packs
        } else if map.permissions.contains(Permissions::EXECUTE) {
            Self::Text
        } else if is_memory || map.permissions.contains(Permissions::SHARED.union(Permissions::WRITE)) {
            Self::Shared
        } else if name.as_os_str().is_empty() {
            Self::Anonymous
        } else if map.permissions.contains(Permissions::WRITE) {
            Self::Data
        } else {
            Self::Files
        }
    }
}

/// Most pages of a mapping to ask for one by one. Some programs reserve terabytes.
const MOST_PAGES: usize = 1 << 22;

/// How closely to look at a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Detail {
    /// Bytes of each mapping.
    Mappings,
    /// Every page.
    Pages,
}

/// What is shown of a process.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pub(super) process: i32,
    pub(super) mappings: Vec<Mapping>,
}

/// One mapping.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Mapping {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Kind,
    /// Its file; empty if it has none.
    pub(super) name: String,
    /// What was decided about its memory, in the kernel's words.
    pub(super) policy: String,
    /// Bytes by node.
    pub(super) present: Vec<(NodeId, u64)>,
    /// One character per page, if that was asked for and any page is present; see [`sign`]. Empty for more than
    /// [`MOST_PAGES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pages: Option<String>,
}

/// Why a process cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProcessError {
    #[error("there is no process {process}, or the kernel has no NUMA")]
    Absent {
        process: i32,
        #[source]
        source: ProcError,
    },
    #[error("process {process} is there, and /proc hides it (hidepid, see proc(5)); be its user or root")]
    Hidden { process: i32 },
    #[error("process {process} cannot be looked into; be its user or root")]
    Refused {
        process: i32,
        #[source]
        source: ProcError,
    },
    #[error("where the memory of process {process} is cannot be told")]
    Numa {
        process: i32,
        #[source]
        source: ProcError,
    },
    #[error("cannot read /proc/{process}/maps")]
    Maps {
        process: i32,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot understand /proc/{process}/maps")]
    Parse {
        process: i32,
        #[source]
        source: ParseError,
    },
    #[error("the pages of process {process} are not told")]
    Pages {
        process: i32,
        #[source]
        source: NumaError,
    },
}

impl ProcessError {
    /// Returns why `numa_maps` was not understood; asks whether the process is hidden if it seems absent.
    fn of_numa(process: i32, source: ProcError, is_hidden: impl FnOnce() -> bool) -> Self {
        match &source {
            _ if source.is_absent() && is_hidden() => Self::Hidden { process },
            _ if source.is_absent() => Self::Absent { process, source },
            ProcError::Read { source: error, .. } if error.kind() == ErrorKind::PermissionDenied => {
                Self::Refused { process, source }
            }
            _ => Self::Numa { process, source },
        }
    }
}

impl Process {
    /// Reads what the kernel tells of a process that goes on running: its parts are from slightly different moments.
    pub(super) fn read(pid: Pid, detail: Detail) -> Result<Self, ProcessError> {
        let process = pid.as_raw_nonzero().get();
        let numa = numa_maps::of_process(pid)
            .map_err(|source| ProcessError::of_numa(process, source, || hidden::is_hidden(pid)))?;
        let text =
            fs::read(format!("/proc/{process}/maps")).map_err(|source| ProcessError::Maps { process, source })?;
        let maps = maps::parse(text).map_err(|source| ProcessError::Parse { process, source })?;
        let mut mappings = join(&maps, numa);
        if detail == Detail::Pages {
            for mapping in mappings.iter_mut().filter(|mapping| !mapping.present.is_empty()) {
                if (mapping.end - mapping.start) / rustix::param::page_size() > MOST_PAGES {
                    mapping.pages = Some(String::new());
                    continue;
                }
                let places = placement::of_pages(pid, mapping.start..mapping.end);
                let places = places.map_err(|source| ProcessError::Pages { process, source })?;
                mapping.pages = Some(places.into_iter().map(sign).collect());
            }
        }
        Ok(Self { process, mappings })
    }

    /// Returns the bytes by kind and node.
    pub(super) fn by_kind(&self) -> BTreeMap<Kind, BTreeMap<NodeId, u64>> {
        let mut all: BTreeMap<Kind, BTreeMap<NodeId, u64>> = BTreeMap::new();
        for mapping in &self.mappings {
            for (node, bytes) in &mapping.present {
                *all.entry(mapping.kind).or_default().entry(*node).or_default() += bytes;
            }
        }
        all
    }
}

/// Joins what two files say of a mapping; a mapping in only one of them has come or gone meanwhile.
fn join(maps: &[MapEntry], numa: Vec<NumaMap>) -> Vec<Mapping> {
    let mapping = |numa: NumaMap| {
        let place = maps.binary_search_by_key(&numa.start, |map| map.start).ok()?;
        let map = &maps[place];
        let name = match &numa.shown {
            Shown::File(path) => path.to_string_lossy().into_owned(),
            Shown::Heap | Shown::Stack | Shown::Anonymous => String::new(),
        };
        let kind = Kind::of(map, &numa.shown);
        let NumaMap { policy, present, .. } = numa;
        Some(Mapping { start: map.start, end: map.end, kind, name, policy, present, pages: None })
    };
    numa.into_iter().filter_map(mapping).collect()
}

/// Returns the character for a page: its node in base 36, `#` for higher ones, `.` for absent, `?` for unknown.
fn sign(place: Place) -> char {
    match place {
        Place::On(NodeId(node)) => char::from_digit(node, 36).unwrap_or('#'),
        Place::Absent => '.',
        Place::Untold(_) => '?',
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    const MAPS: &str = "\
400000-402000 r-xp 00000000 08:01 5 /bin/a
402000-403000 r--p 00002000 08:01 5 /bin/a
403000-404000 rw-p 00003000 08:01 5 /bin/a
500000-501000 rw-p 00000000 00:00 0 [heap]
600000-601000 r--s 00000000 00:01 9 /memfd:palimpsest-constant (deleted)
601000-602000 rw-s 00000000 00:01 8 /memfd:other (deleted)
602000-603000 r-xs 00000000 00:01 9 /memfd:palimpsest-code (deleted)
700000-701000 rw-p 00000000 00:00 0
";
    const NUMA: &str = "\
400000 default file=/bin/a mapped=2 N0=1 N1=1 kernelpagesize_kB=4
402000 default file=/bin/a mapped=1 N0=1 kernelpagesize_kB=4
403000 default file=/bin/a anon=1 N1=1 kernelpagesize_kB=4
500000 default heap anon=1 N0=1 kernelpagesize_kB=4
600000 prefer:1 file=/memfd:palimpsest-constant\\040(deleted) mapped=1 N1=1 kernelpagesize_kB=4
601000 default file=/memfd:other\\040(deleted) N0=1 kernelpagesize_kB=4
602000 prefer:1 file=/memfd:palimpsest-code\\040(deleted) mapped=1 N1=1 kernelpagesize_kB=4
700000 default anon=1 N0=1 kernelpagesize_kB=4
800000 default anon=1 N0=1 kernelpagesize_kB=4
";

    fn example() -> Process {
        let maps = maps::parse(MAPS).expect("well formed");
        Process { process: 7, mappings: join(&maps, numa_maps::parse(NUMA).expect("well formed")) }
    }

    #[test]
    fn mappings_have_the_kind_that_their_rights_and_names_tell() {
        let process = example();
        let kinds: Vec<Kind> = process.mappings.iter().map(|mapping| mapping.kind).collect();
        use Kind::{Anonymous, Copies, Data, Files, Heap, Packs, Shared, Text};
        assert_eq!(kinds, [Text, Files, Data, Heap, Copies, Shared, Packs, Anonymous]);
        assert_eq!(process.by_kind()[&Text], [(NodeId(0), 4096), (NodeId(1), 4096)].into_iter().collect());
        assert_eq!(process.mappings[4].policy, "prefer:1");
    }

    #[test]
    fn pages_have_one_sign_each() {
        let signs: String = [0, 9, 10, 36].map(|node| sign(Place::On(NodeId(node)))).into_iter().collect();
        assert_eq!(signs, "09a#");
        assert_eq!(sign(Place::Absent), '.');
    }

    #[test]
    fn this_process_has_text_and_a_page_for_each_address() {
        let own = rustix::process::getpid();
        let process = match Process::read(own, Detail::Pages) {
            Ok(process) => process,
            Err(error) => return println!("skipped: {}", palimpsest_sys::Causes(&error)),
        };
        assert!(process.by_kind()[&Kind::Text].values().sum::<u64>() > 0);
        let page = rustix::param::page_size();
        assert!(process.mappings.iter().all(|mapping| {
            let expected = (mapping.end - mapping.start) / page;
            mapping.pages.as_ref().map(String::len).is_none_or(|pages| pages == expected || pages == 0)
        }));
    }

    /// Fails on: a form that is unknown, or a look that lacks something else, told as a lack of rights; a process that
    /// is there, told as absent.
    #[test]
    fn each_reason_is_told_as_what_it_is() {
        let path = || "/proc/7/numa_maps".into();
        let source = numa_maps::parse("1000").expect_err("it has no policy");
        let error = ProcessError::of_numa(7, ProcError::Parse { path: path(), source }, || true);
        assert!(matches!(error, ProcessError::Numa { .. }), "{error}");
        assert!(palimpsest_sys::Causes(&error).to_string().contains("no memory policy"), "{error}");
        for (errno, is_hidden, expected) in [
            (Errno::ACCESS, true, "cannot be looked into"),
            (Errno::PERM, false, "cannot be looked into"),
            (Errno::MFILE, false, "cannot be told"),
            (Errno::NOENT, false, "there is no process 7"),
            (Errno::SRCH, false, "there is no process 7"),
            (Errno::NOENT, true, "hidepid"),
        ] {
            let read = ProcError::Read { path: path(), source: errno.into() };
            let error = ProcessError::of_numa(7, read, || is_hidden).to_string();
            assert!(error.contains(expected), "{errno}: {error}");
        }
    }

    #[test]
    fn a_process_that_is_absent_is_named() {
        // Above what `kernel.pid_max` can be.
        let absent = Pid::from_raw(i32::MAX).expect("not 0");
        let error = Process::read(absent, Detail::Mappings).expect_err("no such process");
        assert!(matches!(error, ProcessError::Absent { process: i32::MAX, .. }), "{error}");
    }
}

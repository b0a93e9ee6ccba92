//! One process, looked at once.

use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;

use palimpsest_fork::figures::{Figures, FiguresError};
use palimpsest_sys::memory::extent::EXTENT_NAME;
use palimpsest_sys::pages::{maps, smaps};
use palimpsest_sys::proc::status;
use rustix::process::Pid;
use serde::Serialize;

use super::figures::{self, Memory, State, Told};
use super::folder::Folder;
use super::refusal;
use crate::hidden::is_hidden;

/// Whether to tell each mapping of frozen or gathered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Detail {
    Sums,
    Mappings,
}

/// What `top` reports of a process.
#[derive(Debug, Serialize)]
pub(super) struct Look {
    pub(super) process: i32,
    /// The process's own name for itself: it may be anything.
    pub(super) name: String,
    /// What `/proc` shows of frozen memory and of huge pages, if it may be looked at.
    #[serde(flatten)]
    pub(super) memory: Option<Sums>,
    pub(super) figures: Option<Figures>,
    /// Remarks on the figures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) remarks: Vec<Remark>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) untold: Option<Untold>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) mappings: Vec<Mapping>,
}

/// All mappings of frozen memory together, and huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Sums {
    /// Bytes of address space.
    pub(super) frozen: usize,
    /// The part of them that was written to since, whose page tables each fork copies again.
    pub(super) dirty: usize,
    /// Private anonymous bytes in huge pages, whoever has made these: a fork copies one entry for each 2 MiB.
    pub(super) huge: usize,
}

/// A mapping of frozen or gathered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Mapping {
    pub(super) kind: Kind,
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) present: usize,
    /// Of a frozen one: bytes that were written to since.
    pub(super) dirty: usize,
    /// Bytes in anonymous huge pages.
    pub(super) huge: usize,
}

/// What a mapping shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Frozen,
    /// Anonymous memory with huge pages.
    Gathered,
}

/// A remark on figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Remark {
    /// They belong to the process that this one was forked from, at that moment.
    OfParent,
    /// The process was stopped in the middle of a change.
    Torn,
    /// More is to be gathered or frozen, in slices.
    UnderWay,
    /// Everything was thawed, since it did not pay.
    Thawed,
}

/// Why a process tells nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Untold {
    #[error("there is no such process, at least in this PID namespace")]
    Absent,
    #[error("it is there, and /proc hides it (hidepid, see proc(5)); look as its user, or by `sudo palimpsest top`")]
    Hidden,
    #[error("it has ended, or executed another program, while it was looked at")]
    Ended,
    #[error("it has neither the object of `palimpsest run` nor the library inside")]
    NotThere,
    #[error("nothing is frozen or gathered by now; its report says why (`run --report`)")]
    Nothing,
    #[error("{reason}")]
    Refused { reason: String },
    #[error("{reason}")]
    Wrong { reason: String },
    #[error("it cannot be looked at: {reason}")]
    Unread { reason: String },
    #[error("it does not answer: reading its memory waits for somebody")]
    Silent,
}

impl Untold {
    /// Whether something stands in the way of what could be told.
    pub(super) const fn is_failure(&self) -> bool {
        !matches!(self, Self::Nothing)
    }

    /// Returns the reason why a process seems absent; asks for it only then.
    fn or_hidden(self, is_hidden: impl FnOnce() -> bool) -> Self {
        if self == Self::Absent && is_hidden() { Self::Hidden } else { self }
    }
}

impl Look {
    pub(super) fn untold(pid: Pid, reason: Untold) -> Self {
        Self {
            process: pid.as_raw_nonzero().get(),
            name: String::new(),
            memory: None,
            figures: None,
            remarks: Vec::new(),
            untold: Some(reason),
            mappings: Vec::new(),
        }
    }
}

/// Looks at a process.
pub(super) fn look(pid: Pid, detail: Detail) -> Look {
    let look = look_openly(pid, detail);
    Look { untold: look.untold.map(|untold| untold.or_hidden(|| is_hidden(pid))), ..look }
}

fn look_openly(pid: Pid, detail: Detail) -> Look {
    let folder = match Folder::open(pid) {
        Ok(folder) => folder,
        Err(error) => return Look::untold(pid, untold(&error)),
    };
    let name = folder.read("comm").unwrap_or_default();
    let mut look = Look::untold(pid, Untold::Ended);
    look.name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
    match mappings(&folder) {
        Ok(mappings) => {
            let frozen = || mappings.iter().filter(|mapping| mapping.kind == Kind::Frozen);
            look.memory = Some(Sums {
                frozen: frozen().map(|mapping| mapping.end - mapping.start).sum(),
                dirty: frozen().map(|mapping| mapping.dirty).sum(),
                huge: mappings.iter().map(|mapping| mapping.huge).sum(),
            });
            look.mappings = mappings;
        }
        Err(error) => {
            look.untold = Some(refused(&folder, &error));
            return look;
        }
    }
    look.untold = tell(&folder, &mut look).err();
    let has_gathered = look.figures.is_some_and(|figures| figures.gathered_bytes > 0);
    // Huge pages of others are nothing of ours.
    look.mappings.retain(|mapping| detail == Detail::Mappings && (mapping.kind == Kind::Frozen || has_gathered));
    look
}

fn tell(folder: &Folder, look: &mut Look) -> Result<(), Untold> {
    // First, so that the list of mappings is not an older program's.
    let memory = folder.file("mem").map_err(|error| refused(folder, &error))?;
    let maps = maps::parse(folder.read("maps").map_err(|error| untold(&error))?)
        .map_err(|error| Untold::Unread { reason: error.to_string() })?;
    let first = maps.first().map_or(0, |map| map.start as u64);
    let told = figures::of(&Memory::new(memory), &maps);
    let (figures, state) = match told {
        Told::Figures { figures, state } => (*figures, state),
        Told::Wrong(error @ (FiguresError::Sign | FiguresError::Short { .. } | FiguresError::Version { .. })) => {
            return Err(Untold::Wrong { reason: error.to_string() });
        }
        Told::Nothing => return Err(Untold::Nothing),
        // Memory that is gone reads as empty.
        Told::NotThere if has_ended(folder, first) => return Err(Untold::Ended),
        Told::NotThere => return Err(Untold::NotThere),
    };
    let own = folder.read("status").ok().and_then(|text| status::parse(text).ok());
    if own.and_then(|status| status.ns_pid.last().copied()).is_some_and(|own| u64::from(own) != figures.process) {
        look.remarks.push(Remark::OfParent);
    }
    if state == State::Torn {
        look.remarks.push(Remark::Torn);
    }
    if figures.is_under_way {
        look.remarks.push(Remark::UnderWay);
    }
    if figures.is_over {
        look.remarks.push(Remark::Thawed);
    }
    look.figures = Some(figures);
    Ok(())
}

/// Whether the memory of a process with something at `address` is gone.
fn has_ended(folder: &Folder, address: u64) -> bool {
    let mut byte = [0];
    folder.file("mem").and_then(|memory| memory.read_at(&mut byte, address)).is_ok_and(|read| read == 0)
        || folder.read("maps").is_ok_and(|maps| maps.is_empty())
}

fn mappings(folder: &Folder) -> io::Result<Vec<Mapping>> {
    // Line by line, since it may be a gigabyte.
    let text = BufReader::with_capacity(1 << 16, folder.file("smaps")?);
    let mut found = Vec::new();
    for entry in smaps::Entries::new(text) {
        let entry = entry.map_err(io::Error::other)?;
        let is_extent = entry.map.path.as_deref().is_some_and(|path| path.as_os_str() == EXTENT_NAME);
        let permissions = entry.map.permissions;
        let is_shared = permissions.contains(maps::Permissions::SHARED);
        let (start, end, present, huge) = (entry.map.start, entry.map.end, entry.rss, entry.anon_huge_pages);
        let kind = match is_extent {
            // Views have no rights; repairs map memory from them.
            true if permissions == maps::Permissions::default() => continue,
            true => Kind::Frozen,
            false if huge > 0 && !is_shared && entry.map.inode == 0 => Kind::Gathered,
            false => continue,
        };
        let dirty = if kind == Kind::Frozen { entry.anonymous } else { 0 };
        found.push(Mapping { kind, start, end, present, dirty, huge });
    }
    Ok(found)
}

fn untold(error: &io::Error) -> Untold {
    // ESRCH: the process has ended since its folder was opened.
    match (error.kind(), error.raw_os_error().map(rustix::io::Errno::from_raw_os_error)) {
        (io::ErrorKind::NotFound, _) => Untold::Absent,
        (_, Some(rustix::io::Errno::SRCH)) => Untold::Ended,
        _ => Untold::Unread { reason: error.to_string() },
    }
}

fn refused(folder: &Folder, error: &io::Error) -> Untold {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return untold(error);
    }
    Untold::Refused { reason: refusal::reason(folder) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fails on: a hidden process that is told as absent, or another reason that is told as `hidepid`.
    #[test]
    fn who_is_hidden_is_not_told_as_absent() {
        assert_eq!(Untold::Absent.or_hidden(|| true), Untold::Hidden);
        assert_eq!(Untold::Absent.or_hidden(|| false), Untold::Absent);
        for other in [Untold::Ended, Untold::Nothing, Untold::Silent] {
            assert_eq!(other.clone().or_hidden(|| panic!("nobody need ask")), other);
        }
        assert!(Untold::Hidden.to_string().contains("hidepid") && Untold::Hidden.is_failure());
    }
}

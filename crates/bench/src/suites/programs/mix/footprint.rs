//! Memory that a server and its children occupy together, each page once.
//!
//! Resident sizes do not add up: pages that a child shares with its parent count in both, and frozen pages in neither
//! before they are read, although the sealed files hold them. So this counts the server's own pages, pages that only
//! one child has, and all that the frozen files hold.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use rustix::process::Pid;

/// The mapping of a frozen file, as `/proc/PID/smaps` names it.
const FROZEN: &str = "/memfd:palimpsest-frozen";

/// Returns the bytes of `server` and `children`.
pub(super) fn of(server: Pid, children: &[Pid]) -> io::Result<usize> {
    let read = |pid: Pid| fs::read_to_string(format!("/proc/{}/smaps", pid.as_raw_nonzero()));
    let mut files = BTreeMap::new();
    let mut bytes = add(&read(server)?, Part::Whole, &mut files);
    for &child in children {
        // The child may have ended.
        bytes += add(&read(child).unwrap_or_default(), Part::OwnAlone, &mut files);
    }
    Ok(bytes + files.values().sum::<usize>())
}

/// Which pages of a process count.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// Those that no other process has.
    OwnAlone,
}

/// Adds the mappings of a process. `files` gets the frozen files, which are full, and what is mapped of each.
fn add(smaps: &str, part: Part, files: &mut BTreeMap<String, usize>) -> usize {
    let mut bytes = 0;
    // For the mapping whose lines are being read: resident, private and anonymous bytes, and whether it is frozen.
    let (mut mapping, mut is_frozen) = ([0; 3], false);
    let mut close = |[resident, private, anonymous]: [usize; 3], is_frozen: bool| {
        bytes += match (is_frozen, part) {
            (false, Part::Whole) => resident,
            (false, Part::OwnAlone) => private,
            (true, Part::Whole) => anonymous,
            (true, Part::OwnAlone) => anonymous.min(private),
        };
    };
    for line in smaps.lines() {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let kilobytes = || rest.trim().trim_end_matches(" kB").parse::<usize>().unwrap_or(0) << 10;
        match name {
            "Rss:" => mapping[0] = kilobytes(),
            "Private_Clean:" | "Private_Dirty:" => mapping[1] += kilobytes(),
            "Anonymous:" => mapping[2] = kilobytes(),
            range if !range.ends_with(':') => {
                close(mapping, is_frozen);
                mapping = [0; 3];
                is_frozen = rest.contains(FROZEN);
                // `start-end rights offset device inode path`. A mapping without rights shows a whole file a second
                // time.
                let mut fields = rest.split_whitespace();
                let is_shown = fields.next().is_some_and(|rights| !rights.starts_with("---"));
                let (offset, inode) = (fields.next(), fields.nth(1));
                if let (true, true, Some(offset), Some(inode)) = (is_frozen, is_shown, offset, inode) {
                    // Counts each part of a file once, whoever maps it.
                    files.insert(format!("{inode}:{offset}"), len(range));
                }
            }
            _ => {}
        }
    }
    close(mapping, is_frozen);
    bytes
}

/// Returns the length of `start-end`.
fn len(range: &str) -> usize {
    let (start, end) = range.split_once('-').unwrap_or_default();
    let number = |text| usize::from_str_radix(text, 16).unwrap_or(0);
    number(end).saturating_sub(number(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "\
100000-300000 rw-p 00000000 00:01 77       /memfd:palimpsest-frozen (deleted)
Rss:                1024 kB
Private_Clean:         4 kB
Private_Dirty:       100 kB
Anonymous:            96 kB
VmFlags: rd wr
800000-1800000 ---p 00000000 00:01 77       /memfd:palimpsest-frozen (deleted)
Rss:                   0 kB
400000-402000 rw-p 00000000 00:00 0        [heap]
Rss:                   8 kB
Private_Dirty:         4 kB
Anonymous:             8 kB
";

    const CHILD: &str = "\
100000-300000 rw-p 00000000 00:01 77       /memfd:palimpsest-frozen (deleted)
Rss:                2048 kB
Private_Dirty:      1500 kB
Anonymous:            12 kB
400000-402000 rw-p 00000000 00:00 0        [heap]
Rss:                   8 kB
Private_Dirty:         4 kB
Anonymous:             8 kB
";

    #[test]
    fn each_page_counts_once() {
        let mut files = BTreeMap::new();
        assert_eq!(add(SERVER, Part::Whole, &mut files), (96 + 8) << 10);
        assert_eq!(add(CHILD, Part::OwnAlone, &mut files), (12 + 4) << 10);
        assert_eq!(files.values().sum::<usize>(), 2 << 20);
        assert_eq!(files.len(), 1);
    }

    #[test]
    fn this_process_occupies_memory() {
        assert!(of(rustix::process::getpid(), &[]).expect("procfs is there") > 1 << 20);
    }
}

//! How much memory this process occupies, with every page of a shared object counted once.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};

use palimpsest_sys::pages::maps::{Device, Permissions};
use palimpsest_sys::pages::smaps::{Entries, SmapsEntry};

use crate::harness::BenchError;

const SMAPS: &str = "/proc/self/smaps";
const STATUS: &str = "/proc/self/status";

/// The kernel's counts for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resident {
    /// Present bytes.
    pub(crate) bytes: usize,
    /// Mappings.
    pub(crate) mappings: usize,
    /// Bytes of page tables.
    pub(crate) page_table_bytes: usize,
}

impl Resident {
    /// Counts now, entry by entry: a list of all mappings would itself be memory that counts.
    pub(crate) fn now() -> Result<Self, BenchError> {
        let unreadable = |path| move |source| BenchError::Accounting { path, source };
        let file = File::open(SMAPS).map_err(unreadable(SMAPS))?;
        let mut present = Present::default();
        for entry in Entries::new(BufReader::new(file)) {
            present.add(&entry.map_err(|error| unreadable(SMAPS)(io::Error::other(error)))?);
        }
        let status = std::fs::read_to_string(STATUS).map_err(unreadable(STATUS))?;
        Ok(Self { bytes: present.bytes(), mappings: present.mappings, page_table_bytes: page_table_bytes(&status) })
    }
}

/// Present memory of the mappings seen so far.
///
/// Views of one object that differ in executability show the same pages. Only the view that shows more of them counts.
#[derive(Default)]
struct Present {
    mappings: usize,
    private: usize,
    shared: HashMap<(Device, u64), [usize; 2]>,
}

impl Present {
    fn add(&mut self, entry: &SmapsEntry) {
        self.mappings += 1;
        let present = entry.rss + entry.private_hugetlb + entry.shared_hugetlb;
        let permissions = entry.map.permissions;
        if permissions.contains(Permissions::SHARED) {
            let views = self.shared.entry((entry.map.device, entry.map.inode)).or_default();
            views[usize::from(permissions.contains(Permissions::EXECUTE))] += present;
        } else {
            self.private += present;
        }
    }

    fn bytes(&self) -> usize {
        self.private + self.shared.values().map(|[data, code]| data.max(code)).sum::<usize>()
    }
}

/// `VmPTE` of `/proc/self/status`, which counts KiB; 0 if the kernel does not tell.
fn page_table_bytes(status: &str) -> usize {
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmPTE:"))
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|kib| kib.parse::<usize>().ok())
        .unwrap_or(0)
        * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_VIEWS: &str = "\
7f0000000000-7f0000200000 r-xs 00000000 00:01 77                         /memfd:pack (deleted)
Rss:                2048 kB
ShmemPmdMapped:     2048 kB
VmFlags: rd ex sh
7f0000400000-7f0000600000 rw-s 00000000 00:01 77                         /memfd:pack (deleted)
Rss:                 100 kB
VmFlags: rd wr sh
7f0000800000-7f0000801000 rw-p 00000000 00:00 0
Rss:                   4 kB
VmFlags: rd wr
";

    #[test]
    fn pages_of_two_views_count_once() {
        let mut present = Present::default();
        for entry in Entries::new(TWO_VIEWS.as_bytes()) {
            present.add(&entry.expect("the kernel's format"));
        }
        assert_eq!(present.mappings, 3);
        assert_eq!(present.bytes(), (2048 + 4) * 1024);
    }

    #[test]
    fn page_tables_are_read_from_status() {
        assert_eq!(page_table_bytes("VmRSS:\t 9 kB\nVmPTE:\t      44 kB\n"), 44 * 1024);
        assert_eq!(page_table_bytes(""), 0);
    }

    #[test]
    fn this_process_occupies_memory() {
        let now = Resident::now().expect("procfs is there");
        assert!(now.bytes > 0);
        assert!(now.mappings > 4);
    }
}

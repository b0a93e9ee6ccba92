//! The calling thread's CPU, and the number of CPUs.

use std::path::Path;

use crate::numa::policy::affinity;
use crate::proc::node::parse_list;
use crate::proc::read_with;

/// Returns the CPU that the calling thread was on a moment ago.
pub fn current_cpu() -> u32 {
    u32::try_from(rustix::thread::sched_getcpu()).unwrap_or(0)
}

/// Returns a number above that of every CPU that the machine may have, including those that are switched off. Numbers
/// can have gaps, so that it may be more than there are.
pub fn possible_cpus() -> u32 {
    above_all(Path::new("/sys/devices/system/cpu/possible"), &affinity().unwrap_or_default())
}

/// Returns the same by a list of the possible CPUs; without one, by their count. What is shown to a container may lack
/// CPUs that it is `allowed`.
fn above_all(list: &Path, allowed: &[u32]) -> u32 {
    let above = |cpus: &[u32]| cpus.iter().max().map_or(0, |&cpu| cpu + 1);
    let possible = read_with(list, |text| parse_list(text)).map_or(0, |possible| above(&possible));
    let count = || {
        // SAFETY: the call takes no pointer.
        let count = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        u32::try_from(count).unwrap_or(1).max(1)
    };
    let possible = if possible == 0 { count() } else { possible };
    possible.max(above(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_on_one_of_the_cpus() {
        assert!(current_cpu() < possible_cpus());
    }

    /// Fails on: a count, where numbers have gaps; a list that lacks what this thread may use; no list.
    #[test]
    fn numbers_with_gaps_are_all_below() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("possible");
        for (text, allowed, expected) in
            [("0-3\n", &[0, 1][..], 4), ("0,2,4-5\n", &[2], 6), ("0-3\n", &[6, 7], 8), ("8\n", &[], 9)]
        {
            std::fs::write(&list, text).unwrap();
            assert_eq!(above_all(&list, allowed), expected, "{text}");
        }
        for text in ["\n", "all\n"] {
            std::fs::write(&list, text).unwrap();
            assert!(above_all(&list, &[]) >= 1 && above_all(&list, &[70_000]) >= 70_001, "{text}");
        }
        assert!(above_all(&folder.path().join("none"), &[]) >= 1);
    }
}

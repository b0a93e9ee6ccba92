//! Single numbers below `/proc/sys` and `/sys`.
//!
//! Source: `Documentation/admin-guide/sysctl/vm.rst` and `…/kernel.rst`. For a setting that this kernel lacks, the
//! error's [`ProcError::is_absent`] is true.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{ParseError, ProcError, number};

/// What `memfd_create` allows (`vm.memfd_noexec`, Linux 6.3, one per pid name space).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemfdNoexec {
    /// 0: without a flag the file is executable.
    Executable,
    /// 1: without a flag the file gets `MFD_NOEXEC_SEAL`.
    NoexecByDefault,
    /// 2: without `MFD_NOEXEC_SEAL` the call fails with EACCES.
    NoexecEnforced,
}

/// When the kernel refuses memory that it may not have (`vm.overcommit_memory`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Overcommit {
    /// 0: refuses only what is obviously too much.
    Heuristic,
    /// 1: refuses nothing.
    Always,
    /// 2: counts every private writable page against a limit.
    Never,
}

/// Reads `vm.memfd_noexec`.
///
/// # Errors
///
/// The file is absent, cannot be read, or holds an unknown value.
pub fn memfd_noexec() -> Result<MemfdNoexec, ProcError> {
    choice("/proc/sys/vm/memfd_noexec", |value| match value {
        0 => Some(MemfdNoexec::Executable),
        1 => Some(MemfdNoexec::NoexecByDefault),
        2 => Some(MemfdNoexec::NoexecEnforced),
        _ => None,
    })
}

/// Reads `vm.overcommit_memory`.
///
/// # Errors
///
/// As [`memfd_noexec`].
pub fn overcommit_memory() -> Result<Overcommit, ProcError> {
    choice("/proc/sys/vm/overcommit_memory", |value| match value {
        0 => Some(Overcommit::Heuristic),
        1 => Some(Overcommit::Always),
        2 => Some(Overcommit::Never),
        _ => None,
    })
}

/// Reads `vm.max_map_count`, the greatest number of mappings of a process.
///
/// # Errors
///
/// As [`memfd_noexec`].
pub fn max_map_count() -> Result<u64, ProcError> {
    choice("/proc/sys/vm/max_map_count", |value| u64::try_from(value).ok())
}

/// Reads `vm.unprivileged_userfaultfd`: whether userfaultfd of kernel faults needs no privilege.
///
/// # Errors
///
/// As [`memfd_noexec`].
pub fn unprivileged_userfaultfd() -> Result<bool, ProcError> {
    choice("/proc/sys/vm/unprivileged_userfaultfd", |value| match value {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    })
}

/// Reads `vm.nr_hugepages`: huge pages of the default size in the pool, used or not.
///
/// # Errors
///
/// As [`memfd_noexec`].
pub fn nr_hugepages() -> Result<u64, ProcError> {
    choice("/proc/sys/vm/nr_hugepages", |value| u64::try_from(value).ok())
}

/// Reads the number of unused 2 MiB pages in the pool.
///
/// # Errors
///
/// As [`memfd_noexec`].
pub fn free_huge_pages_2_mib() -> Result<u64, ProcError> {
    choice("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", |value| u64::try_from(value).ok())
}

/// Reads `kernel.perf_event_paranoid`: -1 allows all, 2 only user space, higher values (Debian) nothing unprivileged.
///
/// # Errors
///
/// As [`memfd_noexec`].
pub fn perf_event_paranoid() -> Result<i64, ProcError> {
    choice("/proc/sys/kernel/perf_event_paranoid", Some)
}

fn choice<T>(path: &str, known: impl FnOnce(i64) -> Option<T>) -> Result<T, ProcError> {
    let path = Path::new(path);
    let failed = |source| ProcError::read(path, source);
    // On the stack: callers ask when mappings are scarce.
    let mut buffer = [0; 64];
    let len = File::open(path).and_then(|mut file| file.read(&mut buffer)).map_err(failed)?;
    let text = &buffer[..len];
    let parsed = signed(text).and_then(known);
    parsed.ok_or_else(|| ProcError::parse(path, ParseError::new(1, text, "known number")))
}

fn signed(text: &[u8]) -> Option<i64> {
    let text = text.trim_ascii();
    match text.strip_prefix(b"-") {
        Some(digits) => i64::try_from(number(digits, 10)?).ok().map(|value| -value),
        None => i64::try_from(number(text, 10)?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read() {
        assert_eq!(signed(b"65530\n"), Some(65530));
        assert_eq!(signed(b"-1\n"), Some(-1));
        assert_eq!(signed(b"--1\n"), None);
        assert_eq!(signed(b"+1\n"), None);
        assert_eq!(signed(b"99999999999999999999"), None);
        assert_eq!(signed(b""), None);
    }

    #[test]
    fn an_absent_setting_is_told_from_a_bad_one() {
        assert!(choice("/proc/sys/vm/there_is_no_such_setting", Some).expect_err("absent").is_absent());
        assert!(max_map_count().expect("/proc is mounted") > 0);
        let bad = choice("/proc/sys/vm/max_map_count", |_| None::<()>).expect_err("no value is known");
        assert!(!bad.is_absent());
        assert_eq!(bad.to_string(), "cannot understand /proc/sys/vm/max_map_count");
    }
}

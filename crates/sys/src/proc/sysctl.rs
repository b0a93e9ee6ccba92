//! Single numbers below `/proc/sys` and `/sys`.
//!
//! Source: `Documentation/admin-guide/sysctl/vm.rst` and `…/kernel.rst`. For a setting that this kernel lacks, the
//! error's [`ProcError::is_absent`] is true.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::{ParseError, ProcError, number};

/// Reads `vm.max_map_count`, the greatest number of mappings of a process.
///
/// # Errors
///
/// The file is absent, cannot be read, or holds an unknown value.
pub fn max_map_count() -> Result<u64, ProcError> {
    choice("/proc/sys/vm/max_map_count", |value| u64::try_from(value).ok())
}

/// Reads the number of unused 2 MiB pages in the pool.
///
/// # Errors
///
/// As [`max_map_count`].
pub fn free_huge_pages_2_mib() -> Result<u64, ProcError> {
    choice("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", |value| u64::try_from(value).ok())
}

/// Reads `kernel.perf_event_paranoid`: -1 allows all, 2 only user space, higher values (Debian) nothing unprivileged.
///
/// # Errors
///
/// As [`max_map_count`].
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

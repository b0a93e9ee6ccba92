//! Reads what the guest prints: `ok NAME`, `FAILED NAME: why`, `NAME VALUE` for a count, `# …` for readers, and at last
//! `P of N checks passed`.

use std::process::ExitStatus;

use super::{Arch, GuestError, arch::End};

/// What a guest that has passed reported.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Report {
    /// How many checks passed.
    pub(super) passed: usize,
    /// Counts, by name.
    pub(super) counts: Vec<(String, u64)>,
}

/// Judges how the guest ended: it has passed if its status, its last line and a line for each check say so, and all
/// three agree.
pub(super) fn judge(arch: Arch, status: ExitStatus, lines: &[String]) -> Result<Report, GuestError> {
    let named = |word: &str| lines.iter().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect();
    let (passed, failed): (Vec<String>, Vec<String>) = (named("ok "), named("FAILED "));
    let last = last(lines);
    let total = passed.len() + failed.len();
    let is_whole = last == format!("{} of {total} checks passed", passed.len());
    match arch.end(status.code()) {
        End::Passed if is_whole && failed.is_empty() && total > 0 => {
            Ok(Report { passed: passed.len(), counts: lines.iter().filter_map(|line| count(line)).collect() })
        }
        // A panic is a line `FAILED` too, and the last one.
        End::Failed if !failed.is_empty() => Err(GuestError::Checks { arch, failed, total }),
        End::Passed | End::Failed => {
            Err(GuestError::Contradiction { arch, status, passed: passed.len(), failed, last })
        }
        End::Other(meaning) => Err(GuestError::NoEnd { arch, status, meaning, last }),
    }
}

/// Returns the last line that is not empty.
pub(super) fn last(lines: &[String]) -> String {
    lines.iter().rfind(|line| !line.is_empty()).cloned().unwrap_or_default()
}

fn count(line: &str) -> Option<(String, u64)> {
    let (name, value) = line.split_once(' ')?;
    name.contains('.').then_some((name.to_owned(), value.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn judged(code: i32, lines: &[&str]) -> Result<Report, GuestError> {
        let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        judge(Arch::X86_64, ExitStatus::from_raw(code << 8), &lines)
    }

    #[test]
    fn a_guest_passes_with_status_and_last_line_and_a_line_for_each_check() {
        let lines = ["# x86-64", "ok a.b", "paging.fork.1g.cow.tables 3", "# 5 forks", "ok c", "2 of 2 checks passed"];
        let report = judged(33, &lines).expect("all agrees");
        assert_eq!(report, Report { passed: 2, counts: vec![("paging.fork.1g.cow.tables".to_owned(), 3)] });
    }

    #[test]
    fn failed_checks_are_named() {
        let error = judged(35, &["ok a", "FAILED b: it is 1 and should be 2", "1 of 2 checks passed"]).expect_err("b");
        let text = error.to_string();
        assert_eq!(text, "1 of 2 checks failed in the x86_64 guest: b: it is 1 and should be 2");
    }

    #[test]
    fn a_panic_is_a_failure() {
        let error = judged(35, &["ok a", "", "FAILED cpu 2: panicked at x.rs"]).expect_err("a panic");
        assert!(matches!(&error, GuestError::Checks { failed, .. } if failed[0].starts_with("cpu 2")), "{error}");
    }

    #[test]
    fn a_status_without_the_lines_is_no_pass() {
        let wrong: [(i32, &[&str]); 5] = [
            (33, &[]),
            (33, &["0 of 0 checks passed"]),
            (33, &["ok a"]),
            (33, &["ok a", "2 of 2 checks passed"]),
            (33, &["ok a", "FAILED b: why", "1 of 2 checks passed"]),
        ];
        for (status, lines) in wrong {
            let judged = judged(status, lines);
            assert!(matches!(judged, Err(GuestError::Contradiction { .. })), "{lines:?}: {judged:?}");
        }
    }

    #[test]
    fn lines_without_the_status_are_no_pass() {
        for status in [0, 1] {
            let judged = judged(status, &["ok a", "1 of 1 checks passed"]);
            assert!(matches!(judged, Err(GuestError::NoEnd { .. })), "{judged:?}");
        }
        let killed = judge(Arch::Aarch64, ExitStatus::from_raw(9), &["ok a".to_owned()]).expect_err("killed");
        assert!(killed.to_string().contains("a signal has ended QEMU") && killed.to_string().contains("\"ok a\""));
    }
}

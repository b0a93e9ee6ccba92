//! Features that depend on other programs: `run`, which is tried on a shell, and the guests, which need QEMU.

use std::env;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::process::{Command, Stdio};

use palimpsest_sys::HUGE_PAGE;
use palimpsest_sys::capabilities::{Capabilities, Feature, Lack, Standing, Verdict};
use palimpsest_sys::proc::thp;
use palimpsest_sys::seccomp;

use crate::run::locate;

/// Judges them.
pub(super) fn judge(capabilities: &Capabilities) -> Vec<Standing> {
    let lacks_gathering = gather_lack(capabilities, thp::enabled().ok());
    let run = match capabilities.freeze_lack() {
        Some(lack) if lacks_gathering.is_none() && lacks_memory_files_alone(capabilities) => {
            Verdict::Slower { why: format!("memory is gathered, and never frozen: {}", lack.why), fix: lack.fix }
        }
        Some(lack) => Verdict::fails(&lack),
        None => with_threads(run(), lacks_gathering),
    };
    vec![
        Standing { feature: Feature::Run, verdict: run },
        Standing { feature: Feature::PagingGuests, verdict: guests(|program| locate(program).is_some()) },
    ]
}

/// What is tried, as one would type it.
const LINE: [&str; 7] = ["run", "--at", "fork", "--report", "--", "sh", "-c"];
/// A shell forks for it.
const SCRIPT: &str = "(exit 0); exit 0";

/// Makes this program run a shell that forks, in a process of its own.
fn run() -> Verdict {
    let mut command = match env::current_exe() {
        Ok(itself) => Command::new(itself),
        Err(error) => return refused(format!("this program cannot be started again: {error}")),
    };
    // The user's own settings, such as a report to a file, are for the programs that he runs.
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PALIMPSEST_")) {
        if name != "PALIMPSEST_PRELOAD" {
            command.env_remove(name);
        }
    }
    command.args(LINE).arg(SCRIPT).stdin(Stdio::null()).stdout(Stdio::null());
    match said_by(&mut command) {
        Ok((success, said)) => told(success, &String::from_utf8_lossy(&said)),
        Err(error) => refused(format!("this program cannot be started again: {error}")),
    }
}

/// Returns whether it succeeded, and what it said on standard error. With SIGCHLD ignored, which is inherited, nobody
/// can tell how it ended: then only what it said decides.
fn said_by(command: &mut Command) -> io::Result<(bool, Vec<u8>)> {
    let mut child = command.stderr(Stdio::piped()).spawn()?;
    let mut said = Vec::new();
    let read = child.stderr.take().map_or(Ok(0), |mut stderr| stderr.read_to_end(&mut said));
    let success = child.wait().map_or(true, |status| status.success());
    read.map(|_| (success, said))
}

/// Judges by what standard error said.
fn told(success: bool, said: &str) -> Verdict {
    let line = |part: &str| said.lines().find(|line| line.contains(part));
    let plain = |line: &str| line.strip_prefix("palimpsest: ").unwrap_or(line).to_owned();
    if !success || line("froze process").is_none() {
        let first = said.lines().next().unwrap_or("a shell ran and was not frozen");
        return refused(plain(first));
    }
    if let Some(line) = line("stopped early") {
        return refused(plain(line));
    }
    match line("run unfrozen") {
        Some(line) => {
            Verdict::Slower { why: plain(line), fix: "set XDG_CACHE_HOME to a folder of your own".to_owned() }
        }
        None => Verdict::Works { how: "a shell was frozen and has forked".to_owned() },
    }
}

/// Returns why nothing can be gathered, if so. `enabled` tells when anonymous memory gets huge pages.
fn gather_lack(capabilities: &Capabilities, enabled: Option<thp::Anonymous>) -> Option<Lack> {
    let has_pieces = capabilities.machine.huge_page_size == Some(HUGE_PAGE);
    let is_off_here = capabilities.confinement.thp_disable != thp::ThpDisable::Off;
    let (why, fix) = match enabled {
        _ if !has_pieces => {
            ("huge pages have not 2 MiB here", "use a kernel with pages of 4 KiB and huge pages of 2 MiB")
        }
        Some(thp::Anonymous::Never) | None => {
            ("huge pages are not wanted", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
        }
        Some(_) if is_off_here => {
            ("huge pages are switched off for this process", "start it without PR_SET_THP_DISABLE")
        }
        Some(thp::Anonymous::Always | thp::Anonymous::Madvise) => {
            return capabilities.anonymous_huge.as_ref().err().cloned();
        }
    };
    Some(Lack { why: why.to_owned(), fix: fix.to_owned() })
}

/// Whether nothing is in the way but a filter, and that of nothing but freezing.
fn lacks_memory_files_alone(capabilities: &Capabilities) -> bool {
    capabilities.proc.is_ok()
        && capabilities.freeze_calls.is_err()
        && seccomp::probe_parts(&[seccomp::Part::Service]).is_ok()
}

/// Adds what becomes of programs with threads, which are only gathered.
fn with_threads(run: Verdict, lack: Option<Lack>) -> Verdict {
    match (run, lack) {
        (Verdict::Works { how }, None) => Verdict::Works { how: format!("{how}; programs with threads are gathered") },
        (Verdict::Works { .. }, Some(Lack { why, fix })) => {
            Verdict::Slower { why: format!("programs with threads need --threads stop: {why}"), fix }
        }
        (other, _) => other,
    }
}

fn refused(why: String) -> Verdict {
    Verdict::Fails { why, fix: format!("see what `palimpsest {} '{SCRIPT}'` says", LINE.join(" ")) }
}

/// Judges the bare-metal guests, by whether a program `is_there`.
fn guests(is_there: impl Fn(&OsStr) -> bool) -> Verdict {
    const EMULATORS: [(&str, &str); 2] =
        [("qemu-system-x86_64", "qemu-system-x86"), ("qemu-system-aarch64", "qemu-system-arm")];
    let missing: Vec<_> = EMULATORS.into_iter().filter(|(program, _)| !is_there(OsStr::new(program))).collect();
    if missing.is_empty() {
        return Verdict::Works { how: "QEMU for both architectures".to_owned() };
    }
    let programs: Vec<&str> = missing.iter().map(|(program, _)| *program).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    Verdict::Fails {
        why: format!(
            "no {} in PATH; needed to run the guest kernels, not to use page tables",
            programs.join(" and no ")
        ),
        fix: format!("apt-get install {}", packages.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_trial_says_decides() {
        let froze = "palimpsest: froze process 7 (sh)\nfrozen 4 kB\n";
        assert!(matches!(told(true, froze), Verdict::Works { .. }));
        let memory = format!("palimpsest: programs that this one executes run unfrozen: no folder\n{froze}");
        assert!(matches!(told(true, &memory), Verdict::Slower { why, .. } if why.starts_with("programs that")));
        for (success, said) in [
            (true, ""),
            (true, "palimpsest: not frozen: the process has 3 threads\n"),
            (false, froze),
            (true, "palimpsest: froze process 7 (sh)\nstopped early: no descriptor is left\n"),
        ] {
            assert!(matches!(told(success, said), Verdict::Fails { .. }), "{said}");
        }
        assert!(
            matches!(told(false, "palimpsest: sh: not found\n"), Verdict::Fails { why, .. } if why == "sh: not found")
        );
    }

    /// Fails on: a promise to programs with threads that an old kernel does not keep.
    #[test]
    fn who_has_threads_is_told_what_he_needs() {
        let mut machine = Capabilities::probe();
        machine.machine.huge_page_size = Some(HUGE_PAGE);
        machine.confinement.thp_disable = thp::ThpDisable::Off;
        let works = || Verdict::Works { how: "it forks".to_owned() };
        let mut told = |asked, enabled| {
            machine.anonymous_huge = asked;
            with_threads(works(), gather_lack(&machine, enabled))
        };
        let made = || Ok("made".to_owned());
        let how = "it forks; programs with threads are gathered".to_owned();
        assert_eq!(told(made(), Some(thp::Anonymous::Madvise)), Verdict::Works { how });
        let lack = Lack { why: "none is made".to_owned(), fix: "use Linux 6.1 or later".to_owned() };
        let old = told(Err(lack), Some(thp::Anonymous::Madvise));
        assert!(matches!(&old, Verdict::Slower { why, fix } if why.contains("--threads") && fix.contains("6.1")));
        let never = told(made(), Some(thp::Anonymous::Never));
        assert!(matches!(&never, Verdict::Slower { fix, .. } if fix.starts_with("echo madvise")), "{never:?}");
        machine.anonymous_huge = made();
        let mut told = |size, thp_disable| {
            (machine.machine.huge_page_size, machine.confinement.thp_disable) = (size, thp_disable);
            with_threads(works(), gather_lack(&machine, Some(thp::Anonymous::Always)))
        };
        let (on, off) = (thp::ThpDisable::On, thp::ThpDisable::Off);
        assert!(matches!(told(Some(HUGE_PAGE), on), Verdict::Slower { fix, .. } if fix.contains("PR_SET_THP_DISABLE")));
        assert!(matches!(told(Some(HUGE_PAGE << 8), off), Verdict::Slower { why, .. } if why.contains("2 MiB")));
        assert!(matches!(told(Some(HUGE_PAGE), off), Verdict::Works { .. }));
        let fails = refused("no shell".to_owned());
        assert_eq!(with_threads(fails.clone(), gather_lack(&machine, None)), fails);
    }

    #[test]
    fn guests_need_both_emulators() {
        assert!(matches!(guests(|_| true), Verdict::Works { .. }));
        let Verdict::Fails { fix, .. } = guests(|program| program == "qemu-system-x86_64") else {
            panic!("one is missing")
        };
        assert_eq!(fix, "apt-get install qemu-system-arm");
    }
}

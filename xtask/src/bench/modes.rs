//! How the programs of `cargo xtask bench redis` and `python` are started, and what is common to measuring them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As it is.
    Plain,
    /// With an allocator that asks for huge pages, the best that a fork gets without Palimpsest.
    Thp,
    /// With the preload object.
    Frozen,
    /// With the preload object, which makes huge pages of what it freezes.
    FrozenHuge,
}

impl Mode {
    /// All of them; the first is what the others are compared with.
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Thp, Self::Frozen, Self::FrozenHuge];

    /// As in the identifiers of figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Thp => "thp",
            Self::Frozen => "frozen",
            Self::FrozenHuge => "frozen_huge",
        }
    }

    /// Sets the environment of `command`. `threads` is what the object does about other threads.
    pub(crate) fn prepare(self, command: &mut Command, object: &Path, threads: &str) {
        command.stdin(Stdio::null());
        if matches!(self, Self::Frozen | Self::FrozenHuge) {
            command.env("LD_PRELOAD", object).env("PALIMPSEST_THREADS", threads);
        }
        if self == Self::FrozenHuge {
            command.env("PALIMPSEST_HUGE", "collapse");
        }
    }
}

/// Why a program gave no figures.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("{program} is not installed; Debian has it in {package}")]
    Missing { program: &'static str, package: &'static str },
    #[error("{available} MB of memory are available, and {needed} are needed; end other programs")]
    Memory { available: u64, needed: u64 },
    #[error("cannot {action}")]
    Io {
        action: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{program} ended before it was asked to; see its messages above")]
    Ended { program: &'static str },
    #[error("{program} answered {answer:?} to {question:?}")]
    Answer { program: &'static str, question: String, answer: String },
}

/// Makes an error of what went wrong during `action`.
pub(crate) fn failed(action: &'static str) -> impl FnOnce(std::io::Error) -> ProgramError {
    move |source| ProgramError::Io { action, source }
}

/// Takes a figure in microseconds with its identifier.
pub(crate) type Sink<'a> = dyn FnMut(String, f64) + 'a;

/// Ends a program when it is dropped, by its number.
pub(crate) struct Ended(pub(crate) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Children that it is waiting for end by themselves; neither call can fail but for a program that has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A folder that goes when it is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// A new folder below that for temporary files.
    pub(crate) fn new(name: &str) -> Result<Self, ProgramError> {
        let path = std::env::temp_dir().join(format!("palimpsest-{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(failed("make a folder for temporary files"))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What stays is only rubbish.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks that so many megabytes are available.
pub(crate) fn need_memory(needed: u64) -> Result<(), ProgramError> {
    let available = available_megabytes(&fs::read_to_string("/proc/meminfo").map_err(failed("read /proc/meminfo"))?);
    if available < needed { Err(ProgramError::Memory { available, needed }) } else { Ok(()) }
}

fn available_megabytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Rounds in which everybody has a turn, until there were enough or the time is over; there is one at least.
pub(crate) fn rounds<E>(most: usize, limit: Duration, mut round: impl FnMut(usize) -> Result<(), E>) -> Result<(), E> {
    let start = Instant::now();
    for number in 0..most {
        if number > 0 && start.elapsed() > limit {
            break;
        }
        round(number)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_counted_in_megabytes() {
        assert_eq!(available_megabytes("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), 2);
        assert_eq!(available_megabytes(""), 0);
    }

    #[test]
    fn there_is_one_round_at_least_and_errors_end_them() {
        let mut seen = Vec::new();
        let all = |seen: &mut Vec<usize>, limit, last| {
            rounds(3, limit, |number| {
                seen.push(number);
                if number == last { Err(number) } else { Ok(()) }
            })
        };
        assert_eq!(all(&mut seen, Duration::ZERO, 9), Ok(()));
        assert_eq!(all(&mut seen, Duration::from_secs(60), 1), Err(1));
        assert_eq!(seen, [0, 0, 1]);
    }
}

//! One campaign of `afl-fuzz`, and what its statistics say.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::build::Built;
use super::{MEBIBYTES, Target, fresh};
use crate::suites::programs::{ProgramError, doing, run_within};

/// What a campaign reached.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Statistics {
    /// Runs per second.
    pub(super) per_second: f64,
    /// Percent of edges that are the same each time an input is run.
    pub(super) stability: f64,
    /// Percent of the map that was reached. A target that gets no input reaches next to nothing.
    pub(super) coverage: f64,
}

/// Returns where a target's campaign leaves its files.
fn folder(built: &Built, target: Target) -> PathBuf {
    built.scratch.join(target.name())
}

/// Returns the inputs that a target's last campaign has kept.
pub(super) fn queue(built: &Built, target: Target) -> PathBuf {
    folder(built, target).join("default/queue")
}

/// Returns an AFL++ command made for measuring: no screen, no questions about the machine, the same random numbers each
/// time.
pub(super) fn quiet(name: &str) -> Command {
    let mut command = Command::new(name);
    command.envs([
        ("AFL_NO_UI", "1"),
        ("AFL_NO_AFFINITY", "1"),
        ("AFL_SKIP_CPUFREQ", "1"),
        ("AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES", "1"),
        ("AFL_FAST_CAL", "1"),
        // Filling the database takes time on a busy machine.
        ("AFL_FORKSRV_INIT_TMOUT", "120000"),
    ]);
    // Set by `cargo run` for this program.
    command.env_remove("LD_LIBRARY_PATH").stdin(Stdio::null());
    command
}

/// Fuzzes for `time`.
pub(super) fn run(target: Target, built: &Built, seeds: &Path, time: Duration) -> Result<Statistics, ProgramError> {
    let out = folder(built, target);
    fresh(&out)?;
    let log = out.with_extension("log");
    let open = || fs::File::create(&log).map_err(doing(format!("write {}", log.display())));
    let (program, environment) = target.program(built, MEBIBYTES);
    let mut fuzzer = quiet("afl-fuzz");
    fuzzer.envs(environment).stdout(open()?).stderr(Stdio::null());
    fuzzer.arg("-i").arg(seeds).arg("-o").arg(&out);
    fuzzer.args(["-V", &time.as_secs().to_string(), "-s", "1", "-t", "2000", "-m", "none", "--"]).arg(program);
    // The margin is for the set-up, and for a crash of afl-fuzz that leaves it waiting.
    run_within(&mut fuzzer, time + Duration::from_secs(180))?;
    let file = out.join("default/fuzzer_stats");
    let text = fs::read_to_string(&file).unwrap_or_default();
    let number =
        |name| value(&text, name).ok_or_else(|| ProgramError::NoNumber { file: file.clone(), name, log: tail(&log) });
    Ok(Statistics {
        per_second: number("execs_per_sec")?,
        stability: number("stability")?,
        coverage: number("bitmap_cvg")?,
    })
}

/// Returns the number after `name` in AFL++'s statistics.
fn value(text: &str, name: &str) -> Option<f64> {
    let (_, value) = text.lines().filter_map(|line| line.split_once(':')).find(|(key, _)| key.trim() == name)?;
    value.trim().trim_end_matches('%').parse().ok()
}

fn tail(log: &Path) -> String {
    const LINES: usize = 12;
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read() {
        let text = "execs_done        : 348\nexecs_per_sec     : 43.36\n\
                    stability         : 100.00%\nbitmap_cvg        : 10.35%\n";
        assert_eq!(value(text, "execs_per_sec"), Some(43.36));
        assert_eq!(value(text, "stability"), Some(100.0));
        assert_eq!(value(text, "bitmap_cvg"), Some(10.35));
        assert_eq!(value(text, "execs"), None);
    }
}

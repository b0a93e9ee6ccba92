//! Real programs, whole lives: plainly, and from copies of their text or huge pages of their file.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::super::programs::{ProgramError, Scratch, Tool, doing, finish};
use super::life::{Mode, Subject};
use super::{located, modes};
use crate::harness::record::Unit;
use crate::harness::sampler::interleave;
use crate::harness::{Context, Group, Samples};
use crate::machine::processor_time_of_ended_children;

/// A program that is measured if it is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Real {
    /// A compiler in Rust: most of its text is in libraries that are loaded with it.
    Rustc,
    /// A server, whose life here is short.
    Postgres,
    /// A program of Go, which loads no object: nothing but its file's own pages can be huge.
    Terraform,
}

impl Real {
    pub(super) const ALL: [Self; 3] = [Self::Rustc, Self::Postgres, Self::Terraform];

    /// Returns the id of its group.
    pub(super) fn id(self) -> &'static str {
        match self {
            Self::Rustc => "numa.text.rustc",
            Self::Postgres => "numa.text.postgres",
            Self::Terraform => "numa.text.terraform",
        }
    }

    /// Returns the ways in which it runs; [`Mode::Plain`] first.
    fn modes(self) -> &'static [Mode] {
        match self {
            Self::Rustc | Self::Postgres => &[Mode::Plain, Mode::Private],
            Self::Terraform => &[Mode::Plain, Mode::Own],
        }
    }

    fn tool(self) -> Tool {
        let (program, package) = match self {
            Self::Rustc => ("rustc", "rustc"),
            Self::Postgres => ("postgres", "postgresql"),
            Self::Terraform => ("terraform", "terraform"),
        };
        Tool { program, package }
    }

    pub(super) fn group(self) -> Group {
        let what = match self {
            Self::Rustc => "rustc that checks 300 functions",
            Self::Postgres => "postgres that lists its settings",
            Self::Terraform => "terraform that tells its version",
        };
        let title = format!("processor time of {what}, start and end included");
        modes(self.id(), &title, Unit::Milliseconds, self.modes())
    }

    /// Returns the program, and the arguments with which it works; or why there is none.
    fn line(self, folder: &Path) -> Result<Result<(PathBuf, Vec<OsString>), String>, ProgramError> {
        if let Some(missing) = self.tool().missing() {
            return Ok(Err(missing));
        }
        let words = |words: &[&str]| words.iter().map(OsString::from).collect();
        Ok(match self {
            Self::Rustc => {
                // What is in PATH may be a proxy that executes it.
                let told = finish(Command::new("rustc").args(["--print", "sysroot"]))?;
                let sysroot = PathBuf::from(String::from_utf8_lossy(&told.stdout).trim());
                let source = folder.join("checked.rs");
                let text: String = (0..300).map(|number| CHECKED.replace("NUMBER", &number.to_string())).collect();
                fs::write(&source, text).map_err(doing("write a program in Rust"))?;
                let mut arguments: Vec<OsString> =
                    words(&["--edition=2021", "--crate-type=lib", "--emit=metadata", "-A", "warnings", "--out-dir"]);
                arguments.extend([folder.into(), source.into()]);
                Ok((sysroot.join("bin/rustc"), arguments))
            }
            // The one thing that it does as root, too.
            Self::Postgres => Ok(("postgres".into(), words(&["--describe-config"]))),
            // What looks for a newer version would wait for a network.
            Self::Terraform => Ok(("terraform".into(), words(&["version", "-json"]))),
        })
    }
}

/// A function of the checked program.
const CHECKED: &str = "pub fn checked_NUMBER(values: &[u64]) -> Option<String> {
    let mut counts = std::collections::BTreeMap::<u64, Vec<usize>>::new();
    for (index, value) in values.iter().enumerate().filter(|(_, value)| **value % 7 != NUMBER % 7) {
        counts.entry(value ^ NUMBER).or_default().push(index);
    }
    let most = counts.iter().max_by_key(|(value, places)| (places.len(), **value))?;
    Some(format!(\"{most:?} of {}\", counts.len()))
}
";

/// Returns samples of whole lives, or why there are none.
pub(super) fn lives(context: &Context<'_>, real: Real) -> Result<Result<Samples, String>, ProgramError> {
    let folder = Scratch::new(real.id())?;
    let (program, arguments) = match real.line(&folder.0)? {
        Ok(line) => line,
        Err(missing) => return Ok(Err(missing)),
    };
    // Once a file is cached in huge pages, all who execute it have them.
    let copies = match real {
        Real::Rustc | Real::Postgres => None,
        Real::Terraform => Some(Subject::copy("terraform", &located("terraform").unwrap_or(program.clone()))?),
    };
    let program_of = |mode: Mode| copies.as_ref().map_or_else(|| program.clone(), |copies| copies.program(mode));
    let started = |mode: Mode, flags: &[&str]| -> Result<Command, ProgramError> {
        let program = program_of(mode);
        let mut command = match mode.flags() {
            None => Command::new(&program),
            Some(local) => {
                let mut command = context.local_text().map_err(ProgramError::Unfrozen)?;
                command.args(local).args(flags).arg("--").arg(&program);
                command
            }
        };
        command.args(&arguments).env("CHECKPOINT_DISABLE", "1").stdin(Stdio::null());
        Ok(command)
    };
    let mut samples = Samples::default();
    let id = |mode: Mode| format!("{}.{}", real.id(), mode.name());
    for &mode in real.modes().iter().filter(|mode| mode.is_ours()) {
        let told = finish(&mut started(mode, &["--report"])?)?;
        samples.note(&id(mode), amount(&String::from_utf8_lossy(&told.stderr)));
    }
    interleave(&mut real.modes().to_vec(), context.effort.rounds(3, 20, Duration::from_secs(20)), |&mut mode| {
        let mut command = started(mode, &["--quiet"])?;
        // Nobody else waits for children meanwhile.
        let before = processor_time_of_ended_children();
        finish(&mut command)?;
        let taken = processor_time_of_ended_children().saturating_sub(before);
        samples.add(&id(mode), taken.as_secs_f64() * 1e3);
        Ok::<(), ProgramError>(())
    })?;
    Ok(Ok(samples))
}

/// Returns how much text is in huge pages, by a report.
pub(super) fn amount(report: &str) -> String {
    let kib = |line: &str| {
        let of_object = line.split_once(" KiB of it in huge pages").and_then(|(before, _)| before.rsplit(' ').next());
        let of_file = || line.strip_prefix("palimpsest: ")?.split_once(" KiB of the text of ")?.0.split(' ').next();
        of_object.or_else(of_file)?.parse::<u64>().ok()
    };
    format!("{} MiB of text in huge pages", report.lines().filter_map(kib).sum::<u64>() >> 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_program_of_a_report_counts() {
        let report = "palimpsest: 0 KiB of text on node 0, the only one, 0 KiB of it in huge pages\n\
            palimpsest: 14400 KiB of text on node 0, the only one, 14336 KiB of it in huge pages\n\
            other\n";
        assert_eq!(amount(report), "14 MiB of text in huge pages");
        let of_file =
            "palimpsest: 83968 of 83970 KiB of the text of /bin/x are in huge pages of the file; it is static\n";
        assert_eq!(amount(of_file), "82 MiB of text in huge pages");
        assert_eq!(amount(""), "0 MiB of text in huge pages");
    }
}

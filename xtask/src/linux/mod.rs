//! Guests with Debian's kernel in QEMU, whose `/init` (`guests/init`) runs test programs and reports how each ended.

mod cpio;
mod initramfs;
pub(crate) mod kernel;

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use crate::{guest::Arch, process, programs::TestProgram, step::StepError, workspace::Workspace};

/// Starts the lines of the console that are for this program; `guests/init` prints them.
const MARK: &str = "palimpsest-guest:";
/// Time limit for the whole run, which takes ten minutes in a CI of half an hour; the guest stops a program that hangs
/// well before.
const LIMIT: Duration = Duration::from_secs(5000);

/// A variable of [`Guest`]: Debian's kernels make huge pages unasked otherwise, and then nothing is left to gather.
pub(crate) const HUGE_PAGES: (&str, &str) = ("transparent_hugepage", "madvise");

/// A guest.
pub(crate) struct Guest<'a> {
    /// Its name in messages and in the name of its initramfs.
    pub(crate) name: &'static str,
    pub(crate) arch: Arch,
    /// The image of its kernel, if not the one that is fetched.
    pub(crate) kernel: Option<&'a Path>,
    /// The part of QEMU's command line that is this guest's own: its CPUs, with their model, and its memory.
    pub(crate) machine: &'a [&'a str],
    /// Settings on the kernel's command line. Those whose names start with `PALIMPSEST_` are variables of its programs.
    pub(crate) variables: &'a [(&'a str, &'a str)],
    /// Files for its folder `/programs`, by name: what programs use and cannot build there.
    pub(crate) files: &'a [(&'a str, PathBuf)],
}

/// Runs `programs` by `init` in a guest of their own, and reports which failed.
pub(crate) fn boot(
    workspace: &Workspace,
    init: &Path,
    programs: &[TestProgram],
    guest: &Guest<'_>,
) -> Result<Vec<String>, StepError> {
    if programs.is_empty() {
        return Ok(Vec::new());
    }
    let folder = kernel::folder(workspace, guest.arch);
    // Not there yet if the kernel is one of the caller's.
    fs::create_dir_all(&folder).map_err(|source| StepError::File { action: "make", path: folder.clone(), source })?;
    let initramfs = folder.join(format!("{}.cpio", guest.name));
    fs::write(&initramfs, initramfs::build(guest.arch, init, programs, guest.files)?)
        .map_err(|source| StepError::File { action: "write", path: initramfs.clone(), source })?;
    let mut qemu = process::tied(guest.arch.emulator(), workspace);
    let (machine, console) = match guest.arch {
        Arch::X86_64 => ("q35", "ttyS0"),
        Arch::Aarch64 => ("virt,gic-version=3", "ttyAMA0"),
    };
    let variables = guest.variables.iter().map(|(name, value)| format!(" {name}={value}"));
    let line = format!("console={console} quiet panic=-1{}", variables.collect::<String>());
    qemu.args(["-machine", machine])
        .args(guest.machine)
        .args(["-nographic", "-no-reboot", "-nic", "none", "-append"])
        .arg(line);
    let image = guest.kernel.map_or_else(|| kernel::image(workspace, guest.arch), Path::to_owned);
    qemu.arg("-kernel").arg(image).arg("-initrd").arg(&initramfs);
    let console = run(&mut qemu, guest.name)?;
    let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    Ok(failures(&console, &names))
}

/// Does the same, and returns how many passed.
///
/// # Errors
///
/// One did not pass, or there is none.
pub(crate) fn boot_all(
    workspace: &Workspace,
    init: &Path,
    programs: &[TestProgram],
    guest: &Guest<'_>,
) -> Result<usize, StepError> {
    let failed = boot(workspace, init, programs, guest)?;
    match programs.len() {
        0 => Err(StepError::NoPrograms),
        total if failed.is_empty() => Ok(total),
        total => Err(StepError::Programs { failed, total }),
    }
}

/// Runs `qemu`, shows the guest's console and returns the marked lines.
fn run(qemu: &mut Command, name: &'static str) -> Result<Vec<String>, StepError> {
    process::announce(qemu);
    let spawned = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut child = spawned.map_err(|source| process::not_started(qemu, source))?;
    let reader = child.stdout.take().map(|stdout| thread::spawn(move || show(stdout, name)));
    process::wait_within(qemu, child, LIMIT)?;
    Ok(reader.and_then(|reader| reader.join().ok()).unwrap_or_default())
}

fn show(console: ChildStdout, name: &str) -> Vec<String> {
    let mut marked = Vec::new();
    for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        println!("{name}| {line}");
        // A test may have left an unfinished line before the mark.
        if let Some((_, report)) = line.split_once(MARK) {
            marked.push(report.trim().to_owned());
        }
    }
    marked
}

/// Returns why each program of `names` that did not pass failed, from the guest's reports.
fn failures(reports: &[String], names: &[&str]) -> Vec<String> {
    let mut failed = Vec::new();
    for name in names {
        let outcome = reports.iter().find_map(|report| report.strip_prefix(name)?.strip_prefix(' '));
        match outcome {
            Some(outcome) if outcome.starts_with("passed") => {}
            Some(outcome) => failed.push(format!("{name} {outcome}")),
            None => failed.push(format!("{name} was not run to its end")),
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_passes_only_by_a_report_that_says_so() {
        let reports = ["text.lib passed after 1.0 s", "sys.lib failed exit 101 after 2.0 s", "end"].map(str::to_owned);
        let failed = failures(&reports, &["text.lib", "sys.lib", "text"]);
        assert_eq!(failed, ["sys.lib failed exit 101 after 2.0 s", "text was not run to its end"]);
    }
}

//! `cargo xtask guest paging`: builds the kernel of `guests/paging/`, boots it in QEMU, shows its lines, and judges how
//! it ended.

mod arch;
pub(crate) mod c;
mod console;
pub(crate) mod forks;
mod native;
pub(crate) mod numa;
mod unmodified;

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{ChildStdout, Command, ExitStatus, Stdio},
    thread,
    time::Duration,
};

use crate::{
    need::Need,
    process,
    runner::remedies,
    step::{Done, StepError},
    workspace::Workspace,
};

pub(crate) use arch::Arch;
use console::Report;

/// The folder of the package, which is no member of the workspace.
pub(crate) const FOLDER: &str = "guests/paging";
/// The name of its program.
const PROGRAM: &str = "palimpsest-kernel";
/// Where QEMU puts the number of stress rounds, counted from the start of memory. Behind it come the other words that
/// `guests/paging/src/asked.rs` reads.
const STRESS_AT: u64 = 47 << 20;
/// Whether programs are loaded at full length.
const WHOLE_PROGRAMS_AT: u64 = STRESS_AT + 8;
/// The slot that the image is to run in, plus one; `guests/paging/src/arch/*/boot.s` has the address.
const SLOT_AT: u64 = STRESS_AT + 16;
/// Whether the run is brief.
const BRIEF_AT: u64 = STRESS_AT + 24;
/// How many slots there are.
const SLOTS: u64 = 128;

/// How the guest is run.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Arguments {
    /// The architecture; both if none is given.
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// Rounds of random forks, stores and unmappings on all CPUs, after the checks; 100 take half a minute.
    #[arg(long, default_value_t = 0, value_name = "ROUNDS")]
    stress: u64,
    /// Loads eBPF programs of the lengths that the kernel's `test_tag` loads: 84 million instructions instead of 1.3
    /// million, which takes minutes.
    #[arg(long)]
    whole_programs: bool,
    /// The slot in which the kernel's image runs, of 128; a random one if none is given.
    #[arg(long, value_parser = clap::value_parser!(u64).range(..SLOTS))]
    slot: Option<u64>,
    /// Run only the checks of the kernel's own image: its place, rights, replicas, and the patching of its code.
    #[arg(long)]
    brief: bool,
    /// Seconds after which a guest that is still running is ended; by default 1200, plus 12 for each round of --stress,
    /// plus 6000 with --whole-programs.
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// More arguments for QEMU, for example `-- -d int`.
    #[arg(last = true)]
    qemu: Vec<String>,
}

impl Arguments {
    fn limit(&self) -> Duration {
        let programs = if self.whole_programs { 6000 } else { 0 };
        let limit = || self.stress.saturating_mul(12).saturating_add(1200 + programs);
        Duration::from_secs(self.limit.unwrap_or_else(limit))
    }
}

/// Why the guest did not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GuestError {
    #[error("the {arch} guest cannot run here: {missing}; `cargo xtask install` brings it", arch = arch.name())]
    Missing { arch: Arch, missing: String },
    #[error("{} of {total} checks failed in the {} guest: {}", failed.len(), arch.name(), failed.join("; "))]
    Checks { arch: Arch, failed: Vec<String>, total: usize },
    #[error("the {} guest did not come to its end: {meaning} ({status}); its last line: {last:?}", arch.name())]
    NoEnd { arch: Arch, status: ExitStatus, meaning: &'static str, last: String },
    #[error(
        "the {} guest ended with {status}, and its lines do not fit that: {passed} lines `ok`, {} `FAILED`, last \
         {last:?}",
        arch.name(),
        failed.len()
    )]
    Contradiction { arch: Arch, status: ExitStatus, passed: usize, failed: Vec<String>, last: String },
    #[error(
        "the {} guest was ended after {seconds} s; a slow machine may need `--limit {}`; its last line: {last:?}",
        arch.name(),
        seconds * 2
    )]
    TimeLimit { arch: Arch, seconds: u64, last: String },
    #[error("cannot run the {} guest", arch.name())]
    Run {
        arch: Arch,
        #[source]
        source: StepError,
    },
}

/// Runs the guest on the architectures that `arguments` names, and says how many checks passed.
pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<(), GuestError> {
    let archs = arguments.arch.map_or_else(|| Arch::ALL.to_vec(), |arch| vec![arch]);
    // Reports what is missing before it builds anything.
    for &arch in &archs {
        let missing = remedies(workspace, arch.needs());
        if !missing.is_empty() {
            return Err(GuestError::Missing { arch, missing });
        }
    }
    for arch in archs {
        let report = run_on(workspace, arch, arguments)?;
        println!("{}: {} checks passed, {} counts", arch.name(), report.passed, report.counts.len());
    }
    Ok(())
}

/// Runs the step `guest-x86_64`.
pub(crate) fn x86_64(workspace: &Workspace) -> Result<Done, StepError> {
    step(workspace, Arch::X86_64)
}

/// Runs the step `guest-aarch64`.
pub(crate) fn aarch64(workspace: &Workspace) -> Result<Done, StepError> {
    step(workspace, Arch::Aarch64)
}

fn step(workspace: &Workspace, arch: Arch) -> Result<Done, StepError> {
    let run = |arguments| run_on(workspace, arch, &arguments).map_err(|error| StepError::Guest(Box::new(error)));
    let report = run(Arguments::default())?;
    let slot = report.counts.iter().find(|(name, _)| name == "kernel.slot").map_or(0, |(_, slot)| *slot);
    let other = (slot + 1) % SLOTS;
    let again = run(Arguments { slot: Some(other), brief: true, ..Arguments::default() })?;
    Ok(Done::PassedWith(format!("{} checks in slot {slot}, {} in slot {other}", report.passed, again.passed)))
}

fn run_on(workspace: &Workspace, arch: Arch, arguments: &Arguments) -> Result<Report, GuestError> {
    let run = |source| GuestError::Run { arch, source };
    let image = build(workspace, arch).map_err(run)?;
    let mut qemu = process::tied(arch.emulator(), workspace);
    qemu.args(arch.machine()).args(loader(arch, arguments)).args(&arguments.qemu).arg("-kernel").arg(image);
    let (ended, lines) = boot(&mut qemu, arguments.limit()).map_err(run)?;
    match ended {
        Ok(status) => console::judge(arch, status, &lines),
        Err(StepError::TimeLimit { seconds, .. }) => {
            Err(GuestError::TimeLimit { arch, seconds, last: console::last(&lines) })
        }
        Err(source) => Err(run(source)),
    }
}

/// Returns arguments that make QEMU put the values asked for where the guest looks for them. Without them, memory is
/// zero.
fn loader(arch: Arch, arguments: &Arguments) -> Vec<String> {
    let words = [
        (STRESS_AT, arguments.stress),
        (WHOLE_PROGRAMS_AT, arguments.whole_programs.into()),
        (SLOT_AT, arguments.slot.map_or(0, |slot| slot + 1)),
        (BRIEF_AT, arguments.brief.into()),
    ];
    let asked_for = words.into_iter().filter(|(_, value)| *value != 0);
    asked_for
        .flat_map(|(at, value)| {
            let address = arch.memory_start() + at;
            ["-device".to_owned(), format!("loader,addr={address:#x},data={value},data-len=8")]
        })
        .collect()
}

/// Builds the guest and returns its image.
fn build(workspace: &Workspace, arch: Arch) -> Result<PathBuf, StepError> {
    let folder = workspace.separate_target(FOLDER);
    let mut cargo = cargo(workspace, &["build", "--release", "--target", arch.triple()]);
    process::stream(&mut cargo)?;
    Ok(folder.join(arch.triple()).join("release").join(PROGRAM))
}

/// Returns `cargo` in the package's folder, where it finds the package's flags, with a target folder below the
/// workspace's.
pub(crate) fn cargo(workspace: &Workspace, arguments: &[&str]) -> Command {
    let mut cargo = process::cargo(workspace);
    cargo.current_dir(workspace.root.join(FOLDER)).args(arguments);
    // These would replace the flags in `.cargo/config.toml`; without those, the image would not be where it is linked.
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    process::apart(&mut cargo, workspace, FOLDER);
    cargo
}

/// How QEMU ended, and what the guest said.
type Ended = (Result<ExitStatus, StepError>, Vec<String>);

/// Runs `qemu` and shows the guest's lines.
fn boot(qemu: &mut Command, limit: Duration) -> Result<Ended, StepError> {
    process::announce(qemu);
    let spawned = qemu.stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0).spawn();
    let mut child = spawned.map_err(|source| process::not_started(qemu, source))?;
    let reader = child.stdout.take().map(|stdout| thread::spawn(move || show(stdout)));
    let ended = process::end_within(qemu, child, limit);
    Ok((ended, reader.and_then(|reader| reader.join().ok()).unwrap_or_default()))
}

fn show(console: ChildStdout) -> Vec<String> {
    let lines = BufReader::new(console).split(b'\n').map_while(Result::ok);
    let shown = lines.map(|line| {
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        println!("guest| {line}");
        line
    });
    shown.collect()
}

/// What the lints of the guest need in addition to those of the workspace.
pub(crate) const TARGETS: [Need; 2] = [Arch::X86_64.target(), Arch::Aarch64.target()];

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(words: &[&str]) -> Result<Arguments, clap::Error> {
        Cli::try_parse_from([&["guest"], words].concat()).map(|cli| cli.arguments)
    }

    #[test]
    fn both_architectures_are_the_default() {
        let arguments = parse(&[]).expect("valid arguments");
        assert_eq!((arguments.arch, arguments.stress, arguments.limit().as_secs()), (None, 0, 1200));
        assert!(arguments.qemu.is_empty());
    }

    #[test]
    fn stress_takes_longer_unless_a_limit_is_given() {
        let limit =
            |words: &[&str]| parse(words).map(|arguments| arguments.limit().as_secs()).expect("valid arguments");
        assert_eq!(limit(&["--stress", "100"]), 2400);
        assert_eq!(limit(&["--stress", "100", "--limit", "5"]), 5);
        assert_eq!(limit(&["--stress", "18446744073709551615"]), u64::MAX);
    }

    #[test]
    fn an_architecture_is_named_as_cargo_names_it() {
        assert_eq!(parse(&["--arch", "x86_64"]).expect("valid arguments").arch, Some(Arch::X86_64));
        assert_eq!(parse(&["--arch=aarch64"]).expect("valid arguments").arch, Some(Arch::Aarch64));
        let refused = parse(&["--arch", "riscv64"]).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("x86_64") && refused.contains("aarch64"), "{refused}");
    }

    #[test]
    fn what_follows_two_dashes_is_for_qemu() {
        let arguments = parse(&["--stress", "5", "--limit", "60", "--", "-d", "int"]).expect("valid arguments");
        assert_eq!((arguments.stress, arguments.limit), (5, Some(60)));
        assert_eq!(arguments.qemu, ["-d", "int"]);
        assert!(parse(&["-d", "int"]).is_err());
    }

    #[test]
    fn what_is_asked_for_is_put_behind_the_image() {
        let loader = |arch, words: &[&str]| loader(arch, &parse(words).expect("valid arguments"));
        assert!(loader(Arch::X86_64, &[]).is_empty());
        let stress = ["--stress", "7"];
        assert_eq!(loader(Arch::X86_64, &stress), ["-device", "loader,addr=0x2f00000,data=7,data-len=8"]);
        assert_eq!(loader(Arch::Aarch64, &stress), ["-device", "loader,addr=0x42f00000,data=7,data-len=8"]);
        let whole = ["--whole-programs"];
        assert_eq!(loader(Arch::X86_64, &whole), ["-device", "loader,addr=0x2f00008,data=1,data-len=8"]);
        assert_eq!(parse(&whole).expect("valid arguments").limit().as_secs(), 7200);
        assert_eq!(loader(Arch::Aarch64, &["--stress", "7", "--whole-programs"]).len(), 4);
        let slot = ["--slot", "0", "--brief"];
        let words = ["-device", "loader,addr=0x2f00010,data=1,data-len=8", "-device"];
        assert_eq!(loader(Arch::X86_64, &slot)[..3], words);
        assert_eq!(loader(Arch::X86_64, &slot)[3], "loader,addr=0x2f00018,data=1,data-len=8");
        assert!(parse(&["--slot", "128"]).is_err());
    }
}

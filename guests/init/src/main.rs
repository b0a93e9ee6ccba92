//! `/init` of the guests with Debian's kernel: mounts what tests expect, runs every program of `/tests` with its
//! arguments, reports each on the console, and powers off.
//!
//! The other end is `xtask/src/linux/mod.rs`, which reads the lines that start with [`MARK`].
#![forbid(unsafe_code)]

use std::{
    ffi::OsStr,
    fs, io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    mount::{MountFlags, mount},
    process::{Pid, Signal, kill_process_group},
    system::{RebootCommand, reboot},
};

/// Starts every line that is meant for the host.
const MARK: &str = "palimpsest-guest:";
/// Time limit for one program, which ends a hang. Emulation is 10 to 30 times slower than the host, and the host may be
/// slow; where all of CI takes half an hour, the slowest program takes a minute and a half.
const LIMIT: Duration = Duration::from_secs(1800);
/// The environment of tests: folders, and how many cases tests play, so that each takes only minutes.
const ENVIRONMENT: [(&str, &str); 10] = [
    ("PATH", "/bin"),
    ("HOME", "/tmp"),
    ("TMPDIR", "/tmp"),
    ("PROPTEST_CASES", "16"),
    // As in `.cargo/config.toml`.
    ("PROPTEST_RNG_SEED", "20261122"),
    ("PALIMPSEST_ORACLE_PROGRAMS", "60"),
    ("PALIMPSEST_SNAPSHOT_ROUNDS", "200"),
    ("PALIMPSEST_DISCARDED_MIB", "16"),
    ("PALIMPSEST_HOLDS", "25"),
    ("PALIMPSEST_TOGGLES", "200"),
];
/// 2 MiB pages put aside for the tests of the hugetlb backing.
const HUGE_PAGES: &str = "32";

fn main() -> ExitCode {
    let mut arguments = std::env::args();
    match arguments.next().as_deref().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str) {
        Some("sleep") => return sleep(arguments.next().as_deref()),
        Some("true") => return ExitCode::SUCCESS,
        _ => {}
    }
    if std::process::id() != 1 {
        eprintln!("guest-init is /init of a test guest: it powers the machine off, so it runs only as process 1");
        return ExitCode::FAILURE;
    }
    prepare();
    match programs() {
        Ok(programs) => programs.iter().for_each(|program| report(program)),
        Err(error) => println!("{MARK} cannot list /tests: {error}"),
    }
    println!("{MARK} end");
    rustix::fs::sync();
    if let Err(error) = reboot(RebootCommand::PowerOff) {
        println!("{MARK} cannot power off: {error}");
    }
    ExitCode::FAILURE
}

/// Does what `sleep SECONDS` does. It is one of two programs that tests can start in the guest; the other is `true`.
fn sleep(seconds: Option<&str>) -> ExitCode {
    match seconds.and_then(|seconds| seconds.parse().ok()) {
        Some(seconds) => {
            thread::sleep(Duration::from_secs(seconds));
            ExitCode::SUCCESS
        }
        None => ExitCode::FAILURE,
    }
}

/// Mounts the file systems and sets the limits. Only reports a failure; the tests then show what it breaks.
fn prepare() {
    for (source, target, kind) in [
        ("proc", "/proc", "proc"),
        ("sysfs", "/sys", "sysfs"),
        ("devtmpfs", "/dev", "devtmpfs"),
        ("tmpfs", "/tmp", "tmpfs"),
        ("tmpfs", "/dev/shm", "tmpfs"),
    ] {
        let mounted = fs::create_dir_all(target)
            .and_then(|()| Ok(mount(source, target, kind, MountFlags::empty(), None::<&std::ffi::CStr>)?));
        if let Err(error) = mounted {
            println!("{MARK} cannot mount {kind} at {target}: {error}");
        }
    }
    if let Err(error) = fs::write("/proc/sys/vm/nr_hugepages", HUGE_PAGES) {
        println!("{MARK} cannot put {HUGE_PAGES} huge pages aside: {error}");
    }
}

fn programs() -> io::Result<Vec<PathBuf>> {
    let mut programs = fs::read_dir("/tests")?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    programs.sort();
    Ok(programs)
}

fn report(program: &Path) {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let start = Instant::now();
    let outcome = match run(program) {
        Ok(Some(status)) if status.success() => "passed".to_owned(),
        Ok(Some(status)) => match status.signal() {
            Some(signal) => format!("failed signal {signal}"),
            None => format!("failed exit {}", status.code().unwrap_or(-1)),
        },
        Ok(None) => format!("failed time limit {} s", LIMIT.as_secs()),
        Err(error) => format!("failed to start: {error}"),
    };
    println!("{MARK} {name} {outcome} after {:.1} s", start.elapsed().as_secs_f64());
}

/// Runs `program`; `None` when it was stopped at the time limit.
fn run(program: &Path) -> io::Result<Option<ExitStatus>> {
    // One line, separated by blanks; the host wrote it.
    let arguments = fs::read_to_string(Path::new("/arguments").join(program.file_name().unwrap_or_default()))?;
    let mut child = Command::new(program)
        .args(arguments.split_whitespace())
        .current_dir("/tmp")
        .env_clear()
        .envs(ENVIRONMENT)
        // Comes from the kernel's command line.
        .envs(std::env::vars().filter(|(name, _)| name.starts_with("PALIMPSEST_")))
        .process_group(0)
        .spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > LIMIT {
            kill_group(&child)?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn kill_group(child: &Child) -> io::Result<()> {
    match i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        Some(group) => Ok(kill_process_group(group, Signal::KILL)?),
        None => Ok(()),
    }
}

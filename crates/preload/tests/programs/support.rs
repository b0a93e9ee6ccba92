//! Starts programs with and without the object, with a time limit, and ends them by their number.

use std::ffi::OsString;
use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// When a program that does not answer is ended. It ends a hang; nothing else depends on it.
pub(crate) const LIMIT: Duration = Duration::from_secs(900);

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    /// With the object, and with this done about other threads: `refuse` or `stop`. Frozen at once, whatever it gains.
    Frozen(&'static str),
    /// As `palimpsest run` does it without a flag.
    Default,
}

/// Returns the object as Cargo has built it for these tests: beside the test executable.
pub(crate) fn object() -> PathBuf {
    let own = std::env::current_exe().expect("/proc is mounted");
    let folder = own.parent().expect("an executable is in a folder");
    let object = folder.join("libpalimpsest_preload.so");
    assert!(object.exists(), "Cargo has not built {}", object.display());
    object
}

/// Returns a command that runs `program` in a mode, with its report in `folder`. `beside` is preloaded too, after the
/// object.
pub(crate) fn command(program: impl AsRef<Path>, mode: Mode, folder: &TempDir, beside: Option<&Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    let mut preload: Vec<PathBuf> = beside.into_iter().map(Path::to_owned).collect();
    if mode != Mode::Plain {
        preload.insert(0, object());
        command.env("PALIMPSEST_REPORT", folder.path().join("report"));
    }
    if let Mode::Frozen(threads) = mode {
        command.env("PALIMPSEST_THREADS", threads);
        // Freeze small memory too, to see whether the program bears it.
        command.env("PALIMPSEST_PAYS_AFTER", "any").env("PALIMPSEST_PAUSE", "none");
    }
    if !preload.is_empty() {
        let separator = OsString::from(":");
        command.env(
            "LD_PRELOAD",
            preload.iter().map(|path| path.as_os_str().to_owned()).collect::<Vec<_>>().join(&*separator),
        );
    }
    command.stdin(Stdio::null()).process_group(0);
    command
}

/// What the object has reported, if it has.
pub(crate) fn report(folder: &TempDir) -> String {
    fs::read_to_string(folder.path().join("report")).unwrap_or_default()
}

/// Waits until a freeze in slices is done: while the program has nothing else to do, it takes the rest of them. At its
/// end only a program that `palimpsest run` has started tells how far it was.
pub(crate) fn wait_for_report(running: &mut Running, folder: &TempDir) {
    wait_until("the freeze is done and told", || {
        assert!(running.has_ended().is_none(), "the program has ended");
        (!report(folder).is_empty()).then_some(())
    });
}

/// The number of slices in a report.
pub(crate) fn slices(report: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix("slices")).unwrap_or_else(|| panic!("{report}"));
    line.split(',').next().and_then(|number| number.trim().parse().ok()).expect("a number")
}

/// A running program and its children; they end with this value.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}")))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// Returns whether it has ended, and how.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child of this process")
    }

    /// Lets it end by itself.
    pub(crate) fn ends(mut self) -> ExitStatus {
        wait_until("the program ends", || self.has_ended())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.has_ended().is_none() {
            let _ = kill_process(self.pid(), Signal::TERM);
            let patience = Instant::now() + Duration::from_secs(10);
            while self.has_ended().is_none() && Instant::now() < patience {
                thread::sleep(Duration::from_millis(10));
            }
        }
        // The group is this program's own; whoever is left in it is its child.
        let _ = kill_process_group(self.pid(), Signal::KILL);
        let _ = self.0.wait();
    }
}

/// Asks until there is an answer.
pub(crate) fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {LIMIT:?} until {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a program to its end and returns what it printed on standard output; its standard error is shown when it fails.
pub(crate) fn output(command: &mut Command) -> String {
    let mut running = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut stdout = running.0.stdout.take().expect("a pipe");
    let mut stderr = running.0.stderr.take().expect("a pipe");
    let printed = thread::spawn(move || {
        let mut text = Vec::new();
        stdout.read_to_end(&mut text).map(|_| text)
    });
    let complaints = thread::spawn(move || {
        let mut text = String::new();
        stderr.read_to_string(&mut text).map(|_| text)
    });
    // On a time-out the panic drops it, which closes the pipes.
    let status = running.ends();
    let printed = printed.join().expect("the reader ends").expect("standard output is read");
    let complaints = complaints.join().expect("the reader ends").expect("standard error is text");
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{printed}\n{complaints}");
    printed
}

/// Returns the lines of a program's output that must be equal in every mode: those that do not begin with `#`. Sorted,
/// since parents and children mix theirs.
pub(crate) fn facts(output: &str) -> Vec<&str> {
    let mut facts: Vec<&str> = output.lines().filter(|line| !line.starts_with('#')).collect();
    facts.sort_unstable();
    facts
}

/// The numbers after each `#name `.
pub(crate) fn figures(output: &str, name: &str) -> Vec<u64> {
    let prefix = format!("#{name} ");
    output.lines().filter_map(|line| line.strip_prefix(&prefix)?.trim().parse().ok()).collect()
}

/// A field of `/proc/PID/status` in kB; `None` when the process is gone.
pub(crate) fn status_kb(pid: i32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// Checks that a child got few page tables: it must have saved at least half of those for the frozen memory. The rest
/// of a program, and what a child reads before it is looked at, costs the same frozen and plain.
pub(crate) fn assert_few_tables(plain_kb: u64, frozen_kb: u64, report: &str) {
    println!("page tables of the first child: plain {plain_kb} kB, frozen {frozen_kb} kB\n{report}");
    let frozen_line = report.lines().find_map(|line| line.strip_prefix("frozen ")).expect("a report of a freeze");
    let memory_kb: u64 = frozen_line.split_whitespace().next().and_then(|kb| kb.parse().ok()).expect("a number of kB");
    // One table of a page maps as many pages as it has entries of eight bytes.
    let page_kb = rustix::param::page_size() as u64 / 1024;
    let tables_kb = memory_kb / (page_kb * 1024 / 8);
    assert!(
        plain_kb.saturating_sub(frozen_kb) >= tables_kb / 2,
        "the frozen memory has {tables_kb} kB of tables, and the child has copied most"
    );
}

/// The children of a process's main thread.
pub(crate) fn children(pid: Pid) -> Vec<i32> {
    let pid = pid.as_raw_nonzero();
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The first of these programs that is installed.
pub(crate) fn installed(candidates: &[&str]) -> Option<PathBuf> {
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    candidates.iter().find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|path| path.is_file()))
}

/// [`installed`], or a line that says what is missing.
macro_rules! need {
    ($package:literal, $($program:literal),+) => {
        match crate::support::installed(&[$($program),+]) {
            Some(program) => program,
            None => {
                println!("skipped: {} is not installed", $package);
                return;
            }
        }
    };
}
pub(crate) use need;

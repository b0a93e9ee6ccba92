//! `palimpsest top`, as its users see it.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// When a hang is ended; nothing else depends on it.
const LIMIT: Duration = Duration::from_secs(900);

/// Gives a shell some memory.
const GROWN: &str = "x=$(head -c 8388608 /dev/zero | tr '\\0' x); ";

/// A shell that has forked frozen and waits for a line.
struct Shell {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(script: &str) -> Self {
        Self::served(&["--pause", "none", "--pays-after", "any", "--", "sh", "-c", script])
    }

    /// Starts a program by `run` with this line.
    fn served(line: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        command.arg("run").args(line);
        for variable in ["LD_PRELOAD", "PALIMPSEST_PRELOAD"] {
            command.env_remove(variable);
        }
        command.env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program was built");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it writes");
        line.trim_end().to_owned()
    }

    /// Sends a line, for a shell that reads one.
    fn go_on(&mut self) {
        self.child.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("it reads");
    }

    fn end(&mut self) {
        // A shell that has ended reads no line.
        let _gone = self.child.stdin.take().map(|mut input| input.write_all(b"\n"));
        self.child.wait().expect("a child of ours");
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

fn top(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_palimpsest")).arg("top").args(arguments).output().expect("the program was built")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the processes of one look; `None` if memory of others may not be read.
fn told(arguments: &[&str]) -> Option<Vec<Value>> {
    let output = top(&[&["--once", "--json"], arguments].concat());
    let looks: Vec<Value> = serde_json::from_slice(&output.stdout).expect("JSON");
    if looks.iter().any(|look| look["untold"].get("refused").is_some()) {
        println!("skipped: memory of other processes may not be read here: {}", text(&output.stdout));
        return None;
    }
    Some(looks)
}

#[test]
fn a_frozen_process_tells_its_figures() {
    let mut shell = Shell::start(&format!("{GROWN} (exit 0); (exit 0); echo $$; read line; exit 0"));
    let pid = shell.line();
    let Some(looks) = told(&["-v", &pid]) else { return };
    let [look] = &looks[..] else { panic!("{looks:?}") };
    let number = |path: &str| look.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {look}"));
    assert_eq!((look["name"].as_str(), number("/process").to_string()), (Some("sh"), pid.clone()));
    assert_eq!((number("/figures/process"), number("/figures/forks")), (number("/process"), 2));
    assert_eq!(number("/frozen"), number("/figures/frozen_bytes"));
    assert!(number("/frozen") >= 8 << 20 && number("/frozen") >= number("/dirty"));
    assert!(number("/figures/once/nanos") > 0 || number("/figures/once/secs") > 0);
    let mappings = look["mappings"].as_array().expect("a list");
    assert_eq!(mappings.len() as u64, number("/figures/extents"), "{look}");
    // The table for people, with all processes.
    let shown = text(&top(&["--once"]).stdout);
    let line = shown.lines().find(|line| line.trim_start().starts_with(&format!("{pid} sh")));
    assert!(line.is_some_and(|line| line.contains(" ms once, ")), "{shown}");
    shell.end();
    let after = top(&["--once", &pid]);
    assert_eq!(after.status.code(), Some(1));
    assert!(text(&after.stdout).contains("there is no such process"), "{}", text(&after.stdout));
}

/// Has 64 MiB, forks once, and waits until its input ends.
const WAITS: &str = "
import os, select, sys
heap = bytearray(64 << 20)
for place in range(0, len(heap), 4096):
    heap[place] = 1
if os.fork() == 0:
    os._exit(0)
os.wait()
print(os.getpid(), flush=True)
while not select.select([sys.stdin], [], [], 1)[0]:
    pass
";

/// Returns why the memory of a program that waits is not gathered here, if it is not.
fn ungathered() -> Option<String> {
    let system = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let release = system("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map_while(|number| number.trim().parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 11) {
        return Some(format!("Linux {} does not tell of one mapping (6.11)", release.trim()));
    }
    let enabled = system("/sys/kernel/mm/transparent_hugepage/enabled");
    (!enabled.contains("[madvise]")).then(|| format!("huge pages are {:?} here, not by advice", enabled.trim()))
}

/// Returns how often the kernel had no huge page for anybody.
fn refusals() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    text.lines().filter_map(|line| line.strip_prefix("thp_collapse_alloc_failed ")?.parse::<u64>().ok()).sum()
}

/// What `run` does by default. Fails on: gathered memory of which `top` tells nothing.
#[test]
fn a_gathered_process_tells_its_figures() {
    if let Some(reason) = ungathered() {
        return println!("skipped: {reason}");
    }
    // Debian's first, which is linked dynamically; others may not be.
    let is_python = |path: &&str| Command::new(path).arg("--version").output().is_ok();
    let Some(python) = ["/usr/bin/python3", "python3"].into_iter().find(is_python) else {
        return println!("skipped: no python3 (Debian package python3)");
    };
    let before = refusals();
    // Long enough for a look at the process on any machine.
    let mut program = Shell::served(&["--pause", "500ms", "--", python, "-c", WAITS]);
    let pid = program.line();
    let until = Instant::now() + LIMIT;
    let look = loop {
        let Some(looks) = told(&["-v", &pid]) else { return };
        let gathered = looks[0]["figures"]["gathered_bytes"].as_u64().unwrap_or(0);
        if gathered >= 60 << 20 && looks[0].get("remarks").is_none() {
            break looks[0].clone();
        }
        if refusals() > before {
            return println!("skipped: the kernel had no huge page for somebody meanwhile");
        }
        assert!(Instant::now() < until, "{looks:?}");
        std::thread::sleep(Duration::from_millis(50));
    };
    let number = |path: &str| look.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {look}"));
    assert!(number("/huge") >= 60 << 20 && number("/frozen") == number("/figures/frozen_bytes"), "{look}");
    let per_fork = number("/figures/per_fork/nanos") + 1_000_000_000 * number("/figures/per_fork/secs");
    assert!(per_fork > 0 && number("/figures/once/nanos") + number("/figures/once/secs") > 0, "{look}");
    let mappings = look["mappings"].as_array().expect("a list");
    let huge = |mapping: &Value| if mapping["kind"] == "gathered" { mapping["huge"].as_u64() } else { None };
    assert_eq!(mappings.iter().filter_map(huge).sum::<u64>(), number("/huge"), "{look}");
    let shown = text(&top(&["--once", "-v", &pid]).stdout);
    assert!(shown.contains("a fork saved: pays after ") && shown.contains(" MiB huge, "), "{shown}");
    program.end();
}

#[test]
fn a_child_counts_for_itself_from_its_first_fork_on() {
    let child = "(sh -c 'echo $PPID'; read line; (exit 0); echo; read line)";
    let mut shell = Shell::start(&format!("{GROWN} (exit 0); (exit 0); echo $$; {child}; exit 0"));
    let pids = [shell.line(), shell.line()];
    let pids = [&pids[0][..], &pids[1]];
    let Some(looks) = told(&pids) else { return };
    let [parent, child] = &looks[..] else { panic!("{looks:?}") };
    assert_eq!((parent["figures"]["forks"].as_u64(), parent.get("remarks")), (Some(3), None), "{parent}");
    // Until then it has written nothing: a fork is spared a page of its own.
    assert_eq!(child["figures"]["process"].to_string(), pids[0], "{child}");
    assert_eq!(child["remarks"], serde_json::json!(["of-parent"]), "{child}");
    shell.go_on();
    assert_eq!(shell.line(), "");
    let looks = told(&pids).expect("as before");
    for ((look, pid), forks) in looks.iter().zip(pids).zip([3, 1]) {
        assert_eq!(look["figures"]["process"].to_string(), pid, "{look}");
        assert_eq!(look["figures"]["forks"].as_u64(), Some(forks), "{look}");
        assert_eq!(look.get("remarks"), None, "{look}");
        assert!(look["frozen"].as_u64() >= Some(8 << 20), "{look}");
    }
    shell.end();
}

#[test]
fn who_has_nothing_to_tell_says_why() {
    let mut shell = Shell::start("echo $$; read line; exit 0");
    let pid = shell.line();
    let Some(looks) = told(&[&pid]) else { return };
    assert_eq!(looks[0]["untold"], "nothing", "{looks:?}");
    assert_eq!(top(&["--once", &pid]).status.code(), Some(0));
    shell.end();
    let mut plain = Command::new("sleep").arg("600").spawn().expect("coreutils are there");
    let output = top(&["--once", &plain.id().to_string()]);
    plain.kill().expect("a child of ours");
    plain.wait().expect("a child of ours");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("neither the object of `palimpsest run` nor the library"));
    for line in [&["0"][..], &["-1"], &["x"], &["--every", "0"]] {
        assert_eq!(top(line).status.code(), Some(2), "{line:?}");
    }
}

/// Fails on: a process that `/proc` hides, and that is told as absent by `top` or `numa`.
#[test]
fn a_process_that_proc_hides_is_said_to_be_hidden() {
    // The shell is process 1 of a namespace of its own: before Linux 5.8 all mounts of one have the same options.
    const HIDE: &str = "mount -t proc -o hidepid=2 none /proc || exit
        setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"; exit $?";
    let hidden = |line: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "sh", "-c", HIDE, "sh", env!("CARGO_BIN_EXE_palimpsest")]);
        command.args(line).output()
    };
    if !hidden(&["--version"]).is_ok_and(|output| output.status.success()) {
        return println!("skipped: only root can mount /proc so, and become somebody else");
    }
    for line in [&["top", "--once", "1"][..], &["numa", "1"]] {
        let output = hidden(line).expect("as before");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("is there, and /proc hides it (hidepid"), "{line:?}: {said}");
        assert_eq!(output.status.code(), Some(1), "{line:?}: {said}");
    }
    let absent = i32::MAX.to_string();
    for line in [&["top", "--once", &absent][..], &["numa", &absent]] {
        let output = hidden(line).expect("as before");
        let said = text(&output.stdout) + &text(&output.stderr);
        assert!(said.contains("there is no") && !said.contains("hidepid"), "{line:?}: {said}");
    }
}

#[test]
fn watching_ends_with_the_processes() {
    let mut shell = Shell::start("(exit 0); echo $$; read line; exit 0");
    let pid = shell.line();
    let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
    let mut watch = command.args(["top", "--every", "1", &pid]).stdout(Stdio::piped()).spawn().expect("it was built");
    let mut shown = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut line = || shown.next().map(|line| line.expect("text"));
    assert!(line().is_some_and(|line| line.contains("FROZEN")));
    shell.end();
    let mut last = String::new();
    while let Some(line) = line() {
        if !line.is_empty() {
            last = line;
        }
    }
    assert!(last.contains("there is no such process"), "{last}");
    assert_eq!(watch.wait().expect("a child of ours").code(), Some(0));
}

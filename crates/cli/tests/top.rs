//! `palimpsest top`, as its users see it.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

/// Gives a shell some memory.
const GROWN: &str = "x=$(head -c 8388608 /dev/zero | tr '\\0' x); ";

/// A shell that has forked frozen and waits for a line.
struct Shell {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start(script: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_palimpsest"));
        command.args(["run", "--pause", "none", "--pays-after", "any", "--", "sh", "-c", script]);
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

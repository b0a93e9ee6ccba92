//! Starts the interpreter, which is this test executable again, and compares what two of its runs say.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::Command;

use crate::calls::World;
use crate::interpreter::Interpreter;
use crate::program::Program;

/// Environment of the interpreter: the program, …
pub(crate) const PROGRAM: &str = "PALIMPSEST_ORACLE_CHILD";
/// … how its calls are made, …
pub(crate) const WORLD: &str = "PALIMPSEST_ORACLE_WORLD";
/// … and the name of its first process.
pub(crate) const PATH: &str = "PALIMPSEST_ORACLE_PATH";

/// Runs [`interpret`] before `main`: the harness would run it as a test in a second thread, and a process with two
/// threads cannot be frozen.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = interpret;

/// `personality(2)`: no randomised addresses.
const ADDR_NO_RANDOMIZE: libc::c_ulong = 0x004_0000;

/// The name of a world in the environment.
pub(crate) fn name(world: World) -> String {
    format!("{world:?}")
}

/// The world of this name.
fn named(text: &str) -> Option<World> {
    let number = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')?.parse().ok()).unwrap_or(0);
    World::all(number).into_iter().find(|world| name(*world) == text)
}

/// Enters the interpreter; returns at once in a process that is not one.
extern "C" fn interpret() {
    let (Ok(program), Ok(world), Ok(path)) = (std::env::var(PROGRAM), std::env::var(WORLD), std::env::var(PATH)) else {
        return;
    };
    let program = Program::from_hex(&program).expect("a program in hexadecimal");
    let world = named(&world).expect("a world");
    Interpreter::new(world, path).run(&program.0)
}

/// Prints a line of the interpreter.
pub(crate) fn say(line: &str) {
    // One write, so that the lines of two processes do not mix.
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).expect("standard output is open");
}

/// What one run said.
pub(crate) struct Log {
    /// Each process's lines in its order, by the process's name.
    processes: BTreeMap<String, Vec<String>>,
    /// Bytes that its freezes froze.
    pub(crate) frozen: usize,
    /// Refused freezes, and everything that the interpreter complained about.
    pub(crate) complaints: Vec<String>,
}

/// Runs a program.
pub(crate) fn run(program: &Program, world: World) -> Log {
    let mut command = Command::new(std::env::current_exe().expect("/proc is mounted"));
    command.env(PROGRAM, program.to_hex()).env(WORLD, name(world)).env(PATH, "0");
    command.envs(world.environment());
    let same_addresses = || {
        // SAFETY: changes how this process is laid out when it executes the interpreter.
        unsafe { libc::personality(ADDR_NO_RANDOMIZE) };
        // If this is refused, addresses differ, and the comparison holds all the same.
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes one system call and nothing else.
    unsafe { command.pre_exec(same_addresses) };
    let output = command.output().expect("this executable starts");
    let mut log = Log { processes: BTreeMap::new(), frozen: 0, complaints: Vec::new() };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some((name, line)) = line.strip_prefix('@').and_then(|line| line.split_once(' ')) {
            log.processes.entry(name.to_owned()).or_default().push(line.to_owned());
        } else if let Some(bytes) = line.strip_prefix("#frozen ") {
            log.frozen += bytes.parse::<usize>().expect("a number of bytes");
        } else if let Some(complaint) = line.strip_prefix('#') {
            log.complaints.push(complaint.to_owned());
        }
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    log.complaints.extend(stderr.lines().filter(|line| !line.is_empty()).map(str::to_owned));
    if world == World::Plain {
        assert_eq!(log.complaints, [""; 0], "the interpreter fails without any freeze: {program:?}");
    }
    let status = output.status;
    let last = format!("has ended with {:?}, signal {:?}", status.code(), status.signal());
    log.processes.entry("0".to_owned()).or_default().push(last);
    log
}

/// Returns the first difference of two runs of a program in each process, or `None`.
pub(crate) fn difference(plain: &Log, frozen: &Log) -> Option<String> {
    let mut text = String::new();
    for name in
        plain.processes.keys().chain(frozen.processes.keys().filter(|name| !plain.processes.contains_key(*name)))
    {
        let empty = Vec::new();
        let left = plain.processes.get(name).unwrap_or(&empty);
        let right = frozen.processes.get(name).unwrap_or(&empty);
        if left != right {
            let at = left.iter().zip(right).take_while(|(left, right)| left == right).count();
            let line = |lines: &[String]| lines.get(at).map_or("(nothing)", |line| line).to_owned();
            let (left, right) = (line(left), line(right));
            let same = left.bytes().zip(right.bytes()).take_while(|(left, right)| left == right).count();
            let op = left.split(" = ").next().unwrap_or_default();
            let _ = writeln!(text, "process {name}, line {at}: {op}, from its byte {same} on");
            let _ = writeln!(text, "  plain:  {}\n  frozen: {}", around(&left, same), around(&right, same));
        }
    }
    if text.is_empty() {
        return None;
    }
    let _ = write!(text, "plain complains: {:?}\nfrozen complains: {:?}", plain.complaints, frozen.complaints);
    Some(text)
}

/// Returns a line from shortly before a place on. Lines are ASCII.
fn around(line: &str, at: usize) -> &str {
    let start = at.saturating_sub(60);
    line.get(start..line.len().min(at + 160)).unwrap_or(line)
}
